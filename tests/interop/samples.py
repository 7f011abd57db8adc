"""Folders as the hub has them, of small random models, saved by `transformers` itself."""

import json
import random
from functools import cache
from pathlib import Path

import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.against.copying import randomise

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "the",
    "dog",
    "ran",
    "to",
    "its",
    "home",
    "in",
    "that",
    "city",
    "of",
    "light",
]
TEXTS = [" ".join(random.Random(i).sample(WORDS, 6)) for i in range(40)]
FAMILIES = ("gpt2", "llama", "qwen2", "qwen3", "bert", "marian", "pegasus")


@cache
def byte_level(bos=False):
    """A tokenizer of GPT-2's kind with the tokens of a chat model; perhaps a start token."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(TEXTS, trainer)
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    return core.to_str()


@cache
def wordpiece():
    core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    core.train_from_iterator(TEXTS, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return core.to_str()


@cache
def unigram():
    """SentencePiece's kind, as Pegasus has it."""
    core = tokenizers.Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(TEXTS, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return core.to_str()


CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shape(seed):
    """Sizes that fit together, all drawn."""
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    return {
        "heads": heads,
        "kv": draw.choice([n for n in (1, 2, 4) if heads % n == 0]),
        "width": heads * draw.choice([4, 6, 8]),
        "layers": draw.randint(1, 3),
        "deeper": draw.randint(1, 3),
        "inner": draw.randint(5, 30),
        "tied": draw.random() < 0.5,
        "eps": draw.choice([1e-12, 1e-6, 1e-5]),
        "draw": draw,
    }


def _llama(kind, seed, vocab):
    s = shape(seed)
    draw = s["draw"]
    rope = {"rope_type": "default", "rope_theta": draw.choice([10000.0, 100000.0, 500.0])}
    if kind == "llama" and (way := draw.choice(["default", "linear", "llama3"])) != "default":
        rope |= {"rope_type": way, "factor": 4.0}
        if way == "llama3":
            rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope["original_max_position_embeddings"] = 16
    config, model = {
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM),
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM),
        "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM),
    }[kind]
    more = {"head_dim": draw.choice([4, 10])} if kind == "qwen3" else {}
    return model(
        config(
            vocab_size=vocab,
            hidden_size=s["width"],
            intermediate_size=s["inner"],
            num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"],
            num_key_value_heads=s["kv"],
            max_position_embeddings=64,
            rms_norm_eps=s["eps"],
            tie_word_embeddings=s["tied"],
            rope_parameters=rope,
            bos_token_id=0,
            eos_token_id=2,
            pad_token_id=0,
            **more,
        )
    )


def _gpt2(seed, vocab):
    s = shape(seed)
    activation = s["draw"].choice(["gelu_new", "relu", "gelu"])
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=vocab,
            n_embd=s["width"],
            n_head=s["heads"],
            n_layer=s["layers"],
            n_inner=s["draw"].choice([None, s["inner"]]),
            n_positions=48,
            activation_function=activation,
            layer_norm_epsilon=s["eps"],
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _bert(seed, vocab, head):
    s = shape(seed)
    return getattr(hf, head)(
        hf.BertConfig(
            vocab_size=vocab,
            hidden_size=s["width"],
            num_attention_heads=s["heads"],
            num_hidden_layers=s["layers"],
            intermediate_size=s["inner"],
            max_position_embeddings=40,
            layer_norm_eps=s["eps"],
            num_labels=3,
            pad_token_id=0,
        )
    )


def _seq2seq(kind, seed, vocab):
    s = shape(seed)
    draw = s["draw"]
    config, model = {
        "marian": (hf.MarianConfig, hf.MarianMTModel),
        "pegasus": (hf.PegasusConfig, hf.PegasusForConditionalGeneration),
    }[kind]
    found = model(
        config(
            vocab_size=vocab,
            d_model=s["width"],
            encoder_layers=s["layers"],
            decoder_layers=s["deeper"],
            encoder_attention_heads=s["heads"],
            decoder_attention_heads=s["heads"],
            encoder_ffn_dim=s["inner"],
            decoder_ffn_dim=s["inner"],
            max_position_embeddings=48,
            scale_embedding=draw.random() < 0.5,
            activation_function=draw.choice(["swish", "relu", "gelu"]),
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
    )
    with torch.no_grad():
        found.final_logits_bias.copy_(torch.randn(1, vocab))
    found.generation_config.bad_words_ids = [[0]]  # as published ones have it
    return found


def theirs(kind, seed, head="BertForMaskedLM"):
    """Their model, off its start, in float32."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        model = _gpt2(seed, 300)
    elif kind == "bert":
        model = _bert(seed, 120, head)
    elif kind in ("marian", "pegasus"):
        model = _seq2seq(kind, seed, 90)
    else:
        model = _llama(kind, seed, 300)
    waves = {n: p.clone() for n, p in model.named_parameters() if "embed_positions" in n}
    randomise(model, 0.3)
    with torch.no_grad():
        for name, value in waves.items():  # constants that they keep as parameters
            model.get_parameter(name).copy_(value)
    return model.float().eval()


def hub_folder(path: Path, model, kind):
    """What `save_pretrained` writes, and a tokenizer."""
    model.save_pretrained(path)
    if kind in ("gpt2", "llama", "qwen2", "qwen3"):
        end = "<|endoftext|>" if kind == "gpt2" else "<|im_end|>"
        (path / "tokenizer.json").write_text(byte_level(kind == "llama"))
        facts = {"bos_token": "<|endoftext|>", "eos_token": end}
        facts |= {} if kind == "gpt2" else {"chat_template": CHAT}
    elif kind == "bert":
        (path / "tokenizer.json").write_text(wordpiece())
        facts = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    else:
        (path / "tokenizer.json").write_text(unigram())
        facts = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    facts["tokenizer_class"] = "PreTrainedTokenizerFast"  # or they would build one of their own
    (path / "tokenizer_config.json").write_text(json.dumps(facts))
    return path
