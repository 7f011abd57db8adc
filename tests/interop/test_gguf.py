"""GGUF files, against the tensors and the tokenizer that others read from them."""

import gguf
import numpy as np
import pytest
import regex
import sentencepiece
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from limelight.data.tokenizer import ALPHABET
from limelight.errors import UserError
from limelight.interop.export_model import export_model
from limelight.interop.gguf_file import GgufFile, gguf_llama, gguf_tokenizer, read
from limelight.interop.import_model import import_model
from limelight.interop.sentencepiece import BPE, SentencePieceModel, to_bytes
from limelight.model import build
from tests.interop.nasty import nasty_texts

VOCAB, D, LAYERS, HEADS, KV, FF = 300, 64, 2, 4, 2, 96
LAYER = {
    "attn_norm": (D,),
    "attn_q": (D, D),
    "attn_k": (D // 2, D),
    "attn_v": (D // 2, D),
    "attn_output": (D, D),
    "ffn_norm": (D,),
    "ffn_gate": (FF, D),
    "ffn_up": (FF, D),
    "ffn_down": (D, FF),
}
SHAPES = {
    "token_embd.weight": (VOCAB, D),
    "output_norm.weight": (D,),
    **{f"blk.{i}.{n}.weight": shape for i in range(LAYERS) for n, shape in LAYER.items()},
}
ROUNDED = {"attn_q": "Q8_0", "ffn_up": "Q4_1", "ffn_down": "Q4_0", "token_embd": "F16"}


def tokens():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pairs = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("1", "2"), ("Ġ", "a"), ("o", "u")]
    words = [*specials, *ALPHABET, *("".join(pair) for pair in pairs)]
    return [*words, *(f"unused{i}" for i in range(VOCAB - len(words)))], pairs


def write(path, change=lambda writer: None):
    """A random Llama of two layers, in several roundings."""
    draw, kind = np.random.default_rng(0), gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(D // HEADS)
    writer.add_vocab_size(VOCAB)
    names, pairs = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types([3] * 3 + [1] * (VOCAB - 3))
    writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    change(writer)
    for name, shape in SHAPES.items():
        values = draw.normal(0, 0.1, shape).astype(np.float32) + ("norm" in name)
        rounding = next((to for part, to in ROUNDED.items() if f"{part}." in name), "F32")
        raw = gguf.quants.quantize(values, kind[rounding])
        writer.add_tensor(name, raw, raw_dtype=kind[rounding])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_logits_are_those_of_transformers_reading_the_same_file(path):
    config, weights = gguf_llama(GgufFile(path))
    assert (config.rotary_base, config.tied, config.num_kv_heads) == (50000.0, "all", KV)
    assert config.head_dim == 0  # it is d_model / heads, and CTranslate2 knows no other
    ours = build(config).eval()
    ours.load_state_dict(weights, strict=False)
    ours.tie()
    theirs = transformers.LlamaForCausalLM(
        transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    ).eval()
    found = load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)["tensors"]
    assert theirs.load_state_dict(found, strict=False).missing_keys == ["lm_head.weight"]
    theirs.tie_weights()
    rows = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(rows), theirs(rows).logits, rtol=0, atol=1e-5)


def test_ids_are_those_of_the_pattern_that_llama_cpp_states(path):
    """Digits alone, then GPT-2's words; pieces by merging the best pair again and again."""
    found = gguf_tokenizer(GgufFile(path))
    names, pairs = tokens()
    symbol = transformers.convert_slow_tokenizer.bytes_to_unicode()
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def by_hand(text):
        for part in regex.split(r"(\p{N})", text):
            for word in regex.findall(words, part):
                pieces = [symbol[byte] for byte in word.encode()]
                for left, right in pairs:
                    i = 0
                    while i < len(pieces) - 1:
                        if (pieces[i], pieces[i + 1]) == (left, right):
                            pieces[i : i + 2] = [left + right]
                        i += 1
                yield from (names.index(piece) for piece in pieces)

    for text in nasty_texts():
        assert found.encode(text) == [*by_hand(text)], text


def test_what_a_file_says_of_its_tokenizer(path):
    found = read(path)
    tokenizer = found.tokenizer
    assert found.chat_template == "{{ messages }}"
    assert (tokenizer.start, tokenizer.end, tokenizer.ends) == (1, 2, {0, 2})
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode_template("<|im_start|>the") == [1, *tokenizer.encode("the")]
    assert 1 not in tokenizer.encode("<|im_start|>the")


def test_a_tokenizer_of_llama_2_is_sentencepieces(tmp_path):
    """The same pieces as in a file of SentencePiece, which its package reads."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{i:02X}>", 0.0, 6) for i in range(256)]
    texts = ["▁t", "he", "▁the", "in", "▁a", "an", "er", "re", "▁", *"thenairsdl"]
    pieces += [(text, -float(i), 1) for i, text in enumerate(texts)]

    def change(writer):
        writer.kv_data[0] = {n: v for n, v in writer.kv_data[0].items() if ".ggml." not in n}
        writer.add_tokenizer_model("llama")
        writer.add_token_list([text for text, _, _ in pieces])
        writer.add_token_scores([score for _, score, _ in pieces])
        writer.add_token_types([kind for _, _, kind in pieces])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    tokenizer = read(write(tmp_path / "llama2.gguf", change)).tokenizer
    assert (tokenizer.text_start, tokenizer.end, tokenizer.special_ids) == ((1,), 2, {0, 1, 2})
    model = SentencePieceModel(pieces, BPE, remove_extra_whitespaces=False, byte_fallback=True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=to_bytes(model))
    for text in nasty_texts():
        assert tokenizer.encode(text) == theirs.encode(text), text

    import_model(tmp_path / "llama2.gguf", tmp_path / "run")
    assert export_model(tmp_path / "run", tmp_path / "out", "gguf").texts == 3  # and out again
    again = read(tmp_path / "out" / "model.gguf").tokenizer
    assert (again.text_start, again.end) == ((1,), 2)
    assert again.encode_many(nasty_texts()) == tokenizer.encode_many(nasty_texts())
    with pytest.raises(UserError, match="has no equivalent tokenizer"):
        export_model(tmp_path / "run", tmp_path / "hub", "huggingface")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.add_string("llama.rope.scaling.type", "yarn"), "only linear is known"),
        (lambda w: w.add_uint32("llama.expert_count", 8), "mixture of experts"),
        (lambda w: w.add_tensor("blk.0.odd.weight", np.ones(4, np.float32)), "no Llama has"),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.arange(8.0, dtype=np.float32) + 1),
            "unknown way",
        ),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(tmp_path, change, sentence):
    file = GgufFile(write(tmp_path / "other.gguf", change))
    with pytest.raises(UserError, match=sentence):
        gguf_llama(file)


def test_frequencies_of_llama_3_are_recognised(tmp_path):
    from limelight.model import ModelConfig
    from limelight.model.positions import rotary_frequencies

    shape = {
        "vocab": 9,
        "d_model": D,
        "heads": HEADS,
        "positions": "rotary",
        "rotary_base": 50000.0,
    }
    scaling = {"rotary_scaling": "llama3", "rotary_factor": 8.0}
    plain, slow = (
        rotary_frequencies(ModelConfig(**shape, **more), torch.device("cpu"), torch.float64)
        for more in ({}, scaling)
    )
    divisors = (plain / slow).float().numpy()
    change = lambda writer: writer.add_tensor("rope_freqs.weight", divisors)  # noqa: E731
    config, _ = gguf_llama(GgufFile(write(tmp_path / "l3.gguf", change)))
    assert (config.rotary_scaling, config.rotary_factor) == ("llama3", 8.0)


def test_other_architectures_are_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match="architecture 'mamba': only llama"):
        gguf_llama(GgufFile(tmp_path / "m.gguf"))
