"""Folders of the Hugging Face hub: config.json, weights (sharded too) and a tokenizer."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.interop.coders import parse_json
from limelight.interop.huggingface_config import Family, read_config, size_of
from limelight.interop.huggingface_tokenizer import (
    maybe_object,
    read_object,
    read_tokenizer,
    source_bytes,
)
from limelight.interop.imported import NEVER, ImportedModel, Origin, hashes
from limelight.interop.names import NameTable
from limelight.interop.pickled import read_checkpoint
from limelight.model import ModelConfig, build_empty
from limelight.model.positions import sinusoids
from limelight.run.weights import read_header, read_tensors

_LARGEST_MODEL = 2**37  # bytes of weights


def read(folder: Path) -> ImportedModel:
    """A model from a folder of the hub."""
    files = weight_files(folder)
    options = _with_names(read_object(folder / "config.json"), files)
    config, family = read_config(options)
    theirs = _tensors(folder, files, config)
    weights = _to_ours(theirs, config, family, options["model_type"])
    tokenizer, chat_template = read_tokenizer(folder, options, config)
    if config.family == "encoder-decoder" and _bans_padding(folder, tokenizer.pad, tokenizer.end):
        _never_write(weights, tokenizer.pad)
    classes = options.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"} if config.classes else {}
    architecture = (options.get("architectures") or [options["model_type"]])[0]
    return ImportedModel(
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        origin=Origin(
            "huggingface", str(architecture), str(folder), hashes([folder / "config.json", *files])
        ),
        kind="labelled" if config.classes else family.kind,
        decode=DecodeConfig() if family.kind == "pairs" else DecodeConfig(beam=1),
        classes=tuple(str(classes[key]) for key in sorted(classes, key=int)),
        chat_template=chat_template,
        **_sentence_encoder(folder),
    )


def _with_names(options: dict[str, Any], files: list[Path]) -> dict[str, Any]:
    """BERT's first files, of 2019, do not say what they are: their tensors do."""
    if "model_type" in options or "type_vocab_size" not in options:
        return options
    names = {name for path in files for name in _names_in(path)}
    heads = {
        "cls.seq_relationship.weight": "BertForPreTraining",
        "cls.predictions.bias": "BertForMaskedLM",
    }
    kinds = [architecture for name, architecture in heads.items() if name in names]
    return {"model_type": "bert", "architectures": [*kinds, "BertModel"][:1], **options}


def _names_in(path: Path) -> list[str]:
    if path.suffix != ".bin":
        return [*read_header(path)]
    content = read_checkpoint(path.resolve()).content
    return [str(name) for name in content] if isinstance(content, dict) else []


def weight_files(folder: Path) -> list[Path]:
    """The weights of a folder: a file, or the shards that an index names; safetensors first."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            return _shards(index, Path(name).suffix)
    raise UserError(f"{folder} has no model.safetensors and no pytorch_model.bin")


def _shards(index: Path, suffix: str) -> list[Path]:
    shards = read_object(index, 2**24).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"{index} has no weight_map")
    found = sorted({str(name) for name in shards.values()})
    for name in found:
        plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}", name)
        if not plain or Path(name).suffix != suffix:
            raise UserError(f"{index} names {name!a:.80}, which is not a weights file")
    return [index.parent / name for name in found]


def _tensors(folder: Path, files: list[Path], config: ModelConfig) -> dict[str, Tensor]:
    """All tensors by their names; types and sizes are checked before any is read."""
    found, total = dict[str, Tensor](), 0
    for path in files:
        for name, (kind, _) in ({} if path.suffix == ".bin" else read_header(path)).items():
            if kind not in ("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL"):
                raise UserError(f"{path}: {name:.80} is of type {kind}, which is not supported")
        total += path.stat().st_size
    if total > _LARGEST_MODEL:
        raise UserError(
            f"{folder} has {total:,} bytes of weights, and {_LARGEST_MODEL:,} are the most"
        )
    if (needed := 4 * parameters_of(config)) > 4 * total + 2**20:
        raise UserError(
            f"{folder}: config.json describes {needed // 4:,} parameters, and the weights have "
            f"{total:,} bytes"
        )
    for path in files:
        for name, tensor in _tensors_of(path).items():
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight")  # noqa: PLW2901
            name = name.replace("LayerNorm.beta", "LayerNorm.bias")  # noqa: PLW2901
            if name in found:
                raise UserError(f"{path} has the tensor {name:.80} a second time")
            found[name] = tensor
    return found


def _tensors_of(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".bin":
        return read_tensors(path)
    checkpoint = read_checkpoint(path.resolve())
    return checkpoint.tensors(checkpoint.content)


def parameters_of(config: ModelConfig) -> int:
    """How many parameters a model has, counted without making it."""
    deep = bool(config.decoder_layers)
    one, two = (replace(config, layers=n, decoder_layers=n * deep) for n in (1, 2))
    small, larger = (sum(p.numel() for p in build_empty(c).parameters()) for c in (one, two))
    return small + (larger - small) * (max(config.layers, config.num_decoder_layers) - 1)


_PREFIXES = {"gpt2": "transformer.", "bert": "bert."}


def _to_ours(
    theirs: dict[str, Tensor], config: ModelConfig, family: Family, kind: str
) -> dict[str, Tensor]:
    """Our weights in float32; what repeats another tensor must be equal to it."""
    if prefix := _PREFIXES.get(kind, "model." if config.positions == "rotary" else ""):
        bare = not any(name.startswith(prefix) for name in theirs)  # saved without its head
        theirs = {prefix + name: v for name, v in theirs.items()} if bare else theirs
    table = family.table(config)
    _check_derived(theirs, table, config)
    floats = {n: v.float() if v.is_floating_point() else v for n, v in theirs.items()}
    ours = table.to_ours(floats, "the file of weights")
    return {name: value.contiguous() for name, value in ours.items()}


def _check_derived(theirs: Mapping[str, Tensor], table: NameTable, config: ModelConfig) -> None:
    """Tied tables must be equal, and stored sinusoids those of the formula."""
    first = next(entry.theirs for entry in table.entries if entry.ours[0].endswith("tokens.weight"))
    for name, value in theirs.items():
        if not re.fullmatch(table.derived, name):
            continue
        if name.endswith("embed_positions.weight"):
            wave = sinusoids(torch.arange(len(value)), config.d_model, torch.float32)
            halves = torch.cat([wave[:, 0::2], wave[:, 1::2]], dim=1)
            if value.shape != halves.shape or (value.float() - halves).abs().max() > 1e-3:
                raise UserError(f"the positions {name} are not the sinusoids that they should be")
        elif name.endswith((*_TIED,)) and first in theirs and not torch.equal(value, theirs[first]):
            raise UserError(f"{name} differs from {first}, and config.json says that they are tied")
        elif name.endswith("predictions.decoder.bias") and not torch.equal(
            value, theirs.get("cls.predictions.bias", value)
        ):
            raise UserError(f"{name} differs from cls.predictions.bias")


_TIED = ("lm_head.weight", "predictions.decoder.weight", "coder.embed_tokens.weight")


def _bans_padding(folder: Path, pad: int, end: int) -> bool:
    """Whether their search never writes it: as generation_config.json says, or else as Marian."""
    said = maybe_object(folder / "generation_config.json")
    return pad != end and (not said or [pad] in (said.get("bad_words_ids") or []))


def _never_write(weights: dict[str, Tensor], token: int) -> None:
    """Their search bans the padding token; ours finds it impossible by its bias."""
    weights["classifier.bias"] = weights["classifier.bias"].clone()
    if not 0 <= token < len(weights["classifier.bias"]):
        raise UserError(f"the padding token {token} is not in the vocabulary")
    weights["classifier.bias"][token] = NEVER


def _sentence_encoder(folder: Path) -> dict[str, Any]:
    """Pooling and length of a sentence encoder; its other parts are refused."""
    if not (folder / "modules.json").is_file():
        return {}
    modules = parse_json(source_bytes(folder / "modules.json", 2**16), folder / "modules.json")
    kinds = [str(each.get("type", "")).rpartition(".")[2] for each in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(f"{folder / 'modules.json'}: {' '.join(kinds):.80} is not supported")
    pooling = read_object(folder / "1_Pooling" / "config.json")
    modes = {name.removeprefix("pooling_mode_") for name, on in pooling.items() if on is True}
    modes -= {"include_prompt"}
    ways: dict[frozenset[str], Any] = {
        frozenset({"mean_tokens"}): "mean",
        frozenset({"cls_token"}): "first",
    }
    if frozenset(modes) not in ways:
        raise UserError(f"{folder}: the pooling {', '.join(sorted(modes)):.80} is not supported")
    length = maybe_object(folder / "sentence_bert_config.json").get("max_seq_length")
    reads = {"max_tokens": size_of({"max_seq_length": length}, "max_seq_length")} if length else {}
    return {"pooling": ways[frozenset(modes)], **reads}
