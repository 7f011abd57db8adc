"""GGUF files for llama.cpp and Ollama: what is written to a hub, under their names."""

import json
from pathlib import Path
from typing import Any

from limelight.errors import FailedError, UserError
from limelight.interop import names
from limelight.interop.certificate import TEXTS, Certificate, certify_by, gguf_logits
from limelight.interop.gguf_file import (
    CONTROL,
    PRE_TOKENIZERS,
    SIZES,
    GgufFile,
    gguf_names,
    gguf_tokenizer,
)
from limelight.interop.huggingface_export import IN_FULL, in_our_terms, options_for, tokenizer_files
from limelight.interop.sentencepiece import BYTE, parse_sentencepiece
from limelight.interop.tokenizers import ImportedTokenizer
from limelight.loading import LoadedModel

FILE = "model.gguf"
_NORMAL = 1  # tokenizer.ggml.token_type
_HEAD = ("attention.key_length", "attention.value_length", "rope.dimension_count")
_CONSTANT: dict[str, dict[str, Any]] = {  # settings that llama.cpp knows with one value only
    "llama": {"rotary_scaling": "none", "bias": False},
    "qwen2": {"rotary_scaling": "none"},
    "qwen3": {"rotary_scaling": "none"},
    "starcoder2": {"rotary_scaling": "none", "bias": True, "activation": "gelu-tanh"},
}


def check_gguf(loaded: LoadedModel) -> None:
    """Refuse, by its name, a setting without equivalent, and a tokenizer."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError("to write GGUF, pip install 'limelight[interop]'") from None
    config = loaded.model.config
    options = options_for(config)
    if (kind := options["model_type"]) not in _CONSTANT:
        known = ", ".join(_CONSTANT)
        raise UserError(
            f"family={config.family!r} with positions={config.positions!r} is a model of type "
            f"{kind}, and {known} can become GGUF: export this one with --to huggingface"
        )
    for name, value in _CONSTANT[kind].items():
        if (ours := getattr(config, name)) != value:
            raise UserError(
                f"{name}={ours!r} has no equivalent in a GGUF of type {kind}, which has "
                f"{name}={value!r}: export this model with --to huggingface"
            )
    _tokenizer(loaded)


def write_gguf(loaded: LoadedModel, folder: Path) -> None:
    """One file with metadata, tokenizer and float32 weights."""
    import gguf

    config = loaded.model.config
    kind: str = options_for(config)["model_type"]
    writer = gguf.GGUFWriter(folder / FILE, kind)
    writer.add_name(loaded.recipe.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    numbers = {theirs: getattr(config, IN_FULL.get(ours, ours)) for theirs, ours in SIZES.items()}
    numbers |= dict.fromkeys(_HEAD, config.d_head) | {"vocab_size": config.vocab}
    for name, value in numbers.items():
        writer.add_uint32(f"{kind}.{name}", value)
    writer.add_rope_freq_base(config.rotary_base)
    rms = config.norm == "rms"
    (writer.add_layer_norm_rms_eps if rms else writer.add_layer_norm_eps)(config.norm_eps)
    for name, value in _tokenizer(loaded).items():
        getattr(writer, f"add_{name}")(value)
    weights = {name: value.detach() for name, value in loaded.model.named_parameters()}
    table = names.llama(config, paired=kind == "llama")
    known = gguf_names(table, kind, config.layers)
    for theirs, tensor in table.to_theirs(weights).items():
        writer.add_tensor(known[theirs], tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tokenizer(loaded: LoadedModel) -> dict[str, Any]:
    """What `gguf.GGUFWriter.add_...` gets of a tokenizer; one without equivalent is refused."""
    tokenizer, size = loaded.tokenizer, loaded.model.config.vocab
    pieces = isinstance(tokenizer, ImportedTokenizer) and "tokenizer.spm" in tokenizer.files
    found = _sentencepiece(tokenizer.files["tokenizer.spm"]) if pieces else _byte_level(loaded)
    tokens, types = found["token_list"], found["token_types"]
    for i in range(len(tokens), size):
        tokens.append(f"<unused{i}>")
        types.append(CONTROL)  # no text has it
        found.get("token_scores", []).append(0.0)
    found["eos_token_id"], found["pad_token_id"] = tokenizer.end, tokenizer.pad
    found["bos_token_id"] = (*tokenizer.text_start, tokenizer.start)[0]
    found["add_bos_token"], found["add_eos_token"] = bool(tokenizer.text_start), False
    if template := loaded.carried.get("chat_template.jinja"):
        found["chat_template"] = template
    return found


def _sentencepiece(data: bytes) -> dict[str, Any]:
    model = parse_sentencepiece(data)
    tokens, scores, types = map(list, zip(*model.pieces, strict=True))
    if BYTE not in types:
        raise UserError("a SentencePiece tokenizer without bytes has no equivalent in GGUF")
    found = {"tokenizer_model": "llama", "token_list": tokens, "token_scores": scores}
    return {**found, "token_types": types, "add_space_prefix": model.add_dummy_prefix}


def _byte_level(loaded: LoadedModel) -> dict[str, Any]:
    found = json.loads(tokenizer_files(loaded)["tokenizer.json"])
    model = found["model"]
    rules = (name for name, rule in PRE_TOKENIZERS.items() if rule == found["pre_tokenizer"])
    pre = next(rules, "")
    whole = bool(model.get("ignore_merges")) == (pre == "llama-bpe")
    if model["type"] != "BPE" or found["normalizer"] or not pre or not whole:
        kind = loaded.recipe.tokenizer.kind
        raise UserError(
            f"tokenizer.kind={kind!r} has no equivalent in GGUF, which has 'bpe': export this "
            "model with --to huggingface"
        )
    special = {token["content"]: token["id"] for token in found["added_tokens"]}
    ids = {**model["vocab"], **special}
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    types = [CONTROL if token in special else _NORMAL for token in tokens]
    kinds = {"tokenizer_model": "gpt2", "tokenizer_pre": pre}
    return {**kinds, "token_list": tokens, "token_types": types, "token_merges": merges}


def compare_gguf(loaded: LoadedModel, folder: Path) -> Certificate:
    """`transformers` computes with tensors and metadata; our own reader reads the tokenizer."""
    file, model = GgufFile(folder / FILE), in_our_terms(loaded, folder)
    read = gguf_tokenizer(file)
    for text in TEXTS:
        if read.encode(text) != loaded.tokenizer.encode(text):
            raise FailedError(f"the GGUF's tokenizer differs on {text!a:.60}; nothing was written")
    return certify_by(model, lambda: (gguf_logits(model, file.path, _config_in(file)), len(TEXTS)))


def _config_in(file: GgufFile) -> Any:
    """What `transformers` reads in the metadata, and what it leaves out for some types."""
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained(
        file.path.parent, gguf_file=file.path.name, local_files_only=True
    )
    options = {name: value for name, value in read.to_dict().items() if "rope" not in name}
    kind = options["model_type"]
    return AutoConfig.for_model(
        **{
            **options,
            "head_dim": file.metadata[f"{kind}.attention.key_length"],
            "rope_theta": file.metadata[f"{kind}.rope.freq_base"],
            **{f"{name}_token_id": None for name in ("bos", "eos", "pad")},  # for texts alone
        }
    )
