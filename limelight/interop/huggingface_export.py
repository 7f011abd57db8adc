"""Folders of the Hugging Face hub, written: config.json, weights and a tokenizer.

The reader's own tables are used the other way. The options are read back before anything is
written, so a setting that they cannot express is refused by its name.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from limelight.errors import UserError
from limelight.interop.huggingface_config import FAMILIES, read_config
from limelight.interop.imported import ImportedModel, Origin
from limelight.interop.tokenizers import ImportedTokenizer
from limelight.loading import LoadedModel
from limelight.model import ModelConfig
from limelight.model.positions import sinusoids

_Options = dict[str, Any]
_ACTIVATIONS = {"gelu-tanh": "gelu_pytorch_tanh", "swiglu": "silu"}  # others have the same name
IN_FULL = {  # a setting that may be left open, and the value that it then has
    "source_vocab": "num_source_tokens",
    "decoder_layers": "num_decoder_layers",
    "d_ff": "ffn_dim",
    "kv_heads": "num_kv_heads",
    "head_dim": "d_head",
    "tied": "tying",
    "embedding_scale": "scales_embedding",
}


def options_for(config: ModelConfig) -> _Options:
    """The config.json of a model; a setting that has no equivalent is refused by its name."""
    kind = _model_type(config)
    family = FAMILIES[kind]
    names = {**family.sizes, **{theirs: ours for theirs, (ours, _) in family.numbers.items()}}
    activation = "silu" if "activation" in family.fixed else config.activation
    options: _Options = {
        "model_type": kind,
        "architectures": [family.architecture or _bert_class(config)],
        "vocab_size": config.vocab,
        **{theirs: getattr(config, IN_FULL.get(ours, ours)) for theirs, ours in names.items()},
        family.activation[0]: _ACTIVATIONS.get(activation, activation),
        "tie_word_embeddings": config.tying != "none",
        **_details(kind, config),
    }
    found, _ = read_config({k: v for k, v in options.items() if v is not None})
    for name in (f.name for f in fields(config) if not f.name.endswith("dropout")):
        ours, theirs = (getattr(c, IN_FULL.get(name, name)) for c in (config, found))
        if ours != theirs:
            raise UserError(
                f"{name}={getattr(config, name)!r} has no equivalent in Hugging Face's "
                f"{options['architectures'][0]}, which has {name}={getattr(found, name)!r}: train "
                "a model with that, or export this one with --to onnx"
            )
    return {**options, "dtype": "float32"}


def _model_type(config: ModelConfig) -> str:
    if config.family == "encoder-decoder":
        return "pegasus" if config.norm_order == "pre" else "marian"
    if config.family == "encoder-only":
        return "bert"
    if config.positions != "rotary":
        return "gpt2"
    if config.norm == "layer":
        return "starcoder2"
    return "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"


def _bert_class(config: ModelConfig) -> str:
    if config.classes:
        return "BertForSequenceClassification"
    if config.sentence_pairs:
        return "BertForPreTraining"
    return "BertForMaskedLM" if config.masked_head else "BertModel"


def _details(kind: str, config: ModelConfig) -> _Options:
    """What is no number of ours under another name."""
    labels = {"id2label": {str(i): f"LABEL_{i}" for i in range(config.classes)}}
    two_sided = {"is_encoder_decoder": True, "scale_embedding": config.scales_embedding}
    tables = {"vocab_size": config.num_source_tokens, "decoder_vocab_size": config.vocab}
    shared = {"share_encoder_decoder_embeddings": config.tying == "all"}
    own: dict[str, _Options] = {
        "llama": {"attention_bias": config.bias, "mlp_bias": config.bias},
        "starcoder2": {"use_bias": config.bias},
        "bert": {"type_vocab_size": 2, **(labels if config.classes else {})},
        "marian": {**two_sided, **tables, **shared},
        "pegasus": {**two_sided, "tie_word_embeddings": True},  # it has one table
    }
    rotary = FAMILIES[kind].fixed["positions"] == "rotary"
    return {**own.get(kind, {}), **(_rope(config) if rotary else {})}


def _rope(config: ModelConfig) -> _Options:
    """As all versions of `transformers` read it."""
    scaling: _Options = {"rope_type": config.rotary_scaling, "factor": config.rotary_factor}
    if config.rotary_scaling == "llama3":
        scaling |= {"low_freq_factor": config.rotary_low, "high_freq_factor": config.rotary_high}
        scaling["original_max_position_embeddings"] = config.rotary_length
    scaled = config.rotary_scaling != "none"
    return {"rope_theta": config.rotary_base, "rope_scaling": scaling if scaled else None}


def _tensors_for(config: ModelConfig, ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights by their names, and what their files have besides: sinusoids, a bias twice."""
    found = FAMILIES[_model_type(config)].table(config).to_theirs(ours)
    if config.tying == "none" and "cls.predictions.bias" in found:
        found["cls.predictions.decoder.bias"] = found["cls.predictions.bias"].clone()
    if config.family == "encoder-decoder":
        wave = sinusoids(torch.arange(config.max_len), config.d_model, torch.float32)
        halves = torch.cat([wave[:, 0::2], wave[:, 1::2]], dim=1)
        for side in ("encoder", "decoder"):
            found[f"model.{side}.embed_positions.weight"] = halves.clone()
    return found


def write_huggingface(loaded: LoadedModel, folder: Path) -> None:
    """config.json, generation_config.json, model.safetensors and the tokenizer."""
    config = loaded.model.config
    options, ids = options_for(config), _token_ids(loaded)
    if loaded.classes:
        options["id2label"] = {str(i): name for i, name in enumerate(loaded.classes)}
        options["label2id"] = {name: i for i, name in enumerate(loaded.classes)}
    write_json(folder / "config.json", {**options, **ids})
    if config.family != "encoder-only":
        write_json(folder / "generation_config.json", {**ids, **_generation(loaded)})
    elif loaded.tasks == ("embed",):
        _write_pooling(loaded, folder)
    for name, data in tokenizer_files(loaded).items():
        (folder / name).write_bytes(data)
    weights = {name: value.detach() for name, value in loaded.model.named_parameters()}
    tensors = _tensors_for(config, weights)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def write_json(path: Path, value: Any) -> None:
    """A file for people and programs."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _token_ids(loaded: LoadedModel) -> _Options:
    tokenizer = loaded.tokenizer
    ends = sorted(tokenizer.ends, key=lambda i: i != tokenizer.end)
    end = ends if len(ends) > 1 else tokenizer.end
    ids: _Options = {"pad_token_id": tokenizer.pad, "eos_token_id": end}
    if loaded.family == "encoder-decoder":  # or their own defaults would hold
        ids |= {"decoder_start_token_id": tokenizer.start, "forced_eos_token_id": None}
    return {**ids, "bos_token_id": _first_token(loaded)}


def _first_token(loaded: LoadedModel) -> int:
    """What the model reads before a text."""
    begins = loaded.tokenizer.text_start if loaded.tasks[0] == "write" else ()
    return (*begins, loaded.tokenizer.start)[0]


def _generation(loaded: LoadedModel) -> _Options:
    decode, longest = loaded.decode, loaded.model.config.max_len
    found: _Options = {"max_length": longest, "repetition_penalty": decode.repetition_penalty}
    found["no_repeat_ngram_size"] = decode.no_repeat_ngram
    if decode.temperature:
        names = ("temperature", "top_k", "top_p", "min_p")
        return {**found, "do_sample": True, **{name: getattr(decode, name) for name in names}}
    beam = decode.beam if loaded.family == "encoder-decoder" else 1
    penalty = {"length_penalty": decode.length_penalty} if beam > 1 else {}
    return {**found, "num_beams": beam, **penalty}


def _write_pooling(loaded: LoadedModel, folder: Path) -> None:
    """A sentence encoder as sentence-transformers reads it."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    parts = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", parts)
    longest = {"max_seq_length": loaded.max_tokens or loaded.max_len, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", longest)
    mode = "cls_token" if loaded.pooling == "first" else "mean_tokens"
    facts = {"word_embedding_dimension": loaded.model.config.d_model, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", facts)


# Tokenizers


def tokenizer_files(loaded: LoadedModel) -> dict[str, bytes]:
    """What `AutoTokenizer` reads, with the ids that ours has."""
    tokenizer = loaded.tokenizer
    facts: _Options = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}
    facts |= {"clean_up_tokenization_spaces": False, "model_max_length": loaded.max_len}
    if not isinstance(tokenizer, ImportedTokenizer):
        files = {"tokenizer.json": _with_frame(loaded)}
        facts["split_special_tokens"] = True  # what a user types never becomes one
        symbols = {i: symbol for symbol, i in tokenizer.vocabulary.items()}
    else:
        symbols = {i: symbol or "" for i, symbol in enumerate(tokenizer.coder.symbols)}
        own = {n: data for n, data in tokenizer.files.items() if n != "special_tokens.json"}
        if {"source.spm", "target.spm"} <= own.keys():
            return {**own, "tokenizer_config.json": _marian_tokenizer(tokenizer, own)}
        if "tokenizer.json" not in own:
            raise UserError(
                f"the tokenizer of this model ({tokenizer.coder.kind}) has no equivalent "
                "tokenizer.json: export it with --to ctranslate2 or --to onnx, which keep its files"
            )
        files = {"tokenizer.json": own["tokenizer.json"].decode()}
    ids = {"pad": tokenizer.pad, "eos": tokenizer.end, "mask": tokenizer.mask}
    ids["bos"] = _first_token(loaded)
    if loaded.family == "encoder-only":
        ids |= {"cls": tokenizer.start, "sep": tokenizer.end}
    facts |= {f"{name}_token": symbols[i] for name, i in ids.items() if i >= 0}
    if template := loaded.carried.get("chat_template.jinja"):
        files["chat_template.jinja"] = template
    files["tokenizer_config.json"] = json.dumps(facts, indent=2, ensure_ascii=False)
    return {name: text.encode() for name, text in files.items()}


def _marian_tokenizer(tokenizer: ImportedTokenizer, files: dict[str, bytes]) -> bytes:
    """SentencePiece's models and vocab.json stay as they were published."""
    ids = {"pad": tokenizer.pad, "eos": tokenizer.end}
    facts: _Options = {f"{name}_token": tokenizer.coder.symbols[i] for name, i in ids.items()}
    facts |= {"tokenizer_class": "MarianTokenizer", "source_lang": "", "target_lang": ""}
    facts["separate_vocabs"] = "target_vocab.json" in files
    return json.dumps(facts, indent=2).encode()


def _with_frame(loaded: LoadedModel) -> str:
    """Our tokenizer.json, with special tokens, and put around a text as our models read it."""
    special = {f"⟨{name}⟩": i for name, i in loaded.tokenizer.special.items()}
    core = tokenizers.Tokenizer.from_str(loaded.tokenizer.files["tokenizer.json"].decode())
    core.add_special_tokens([*special])
    before, behind = ([f"⟨{name}⟩" for name in names] for names in _frame_of(loaded))
    core.post_processor = TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *behind, "$B:1", *behind],
        special_tokens=[(token, special[token]) for token in {*before, *behind}],
    )
    found: str = core.to_str()
    return found


def _frame_of(loaded: LoadedModel) -> tuple[list[str], list[str]]:
    """The special tokens of ours before and behind a text, by name."""
    tag = loaded.default_tag or (loaded.tags[0] if len(loaded.tags) == 1 else "")
    tags = [tag] if tag else []
    if loaded.family == "encoder-decoder":
        return tags, ["end"]
    if loaded.family == "encoder-only":
        return ["start"], ["end"]
    return (["end"], []) if loaded.kind == "texts" else (["start", *tags], ["separator"])


def in_our_terms(loaded: LoadedModel, folder: Path) -> ImportedModel:
    """What an import of such a folder should find."""
    config = loaded.model.config
    origin = Origin("huggingface", options_for(config)["architectures"][0], str(folder))
    weights = {name: value.detach() for name, value in loaded.model.named_parameters()}
    return ImportedModel(config, weights, loaded.tokenizer, origin, "texts")
