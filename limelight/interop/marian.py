"""Marian's binary models, as Firefox ships them: int8 matrices, and a recurrent (SSRU) decoder.

The file: version and number of items; for each the lengths of name, shape and data, and a type;
all names; all shapes; padding; all data. An int8 matrix is stored transposed and followed by the
number that it must be divided by; the table of tokens is stored as it is. The decoder begins with
a vector of zeros: here it is the last row of the table, a token that is never written.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.files import read_bounded_bytes
from limelight.interop.binary import BinaryReader
from limelight.interop.imported import FORMATS, NEVER, ImportedModel, Origin, hashes
from limelight.interop.sentencepiece import SentencePieceCoder, with_start
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens
from limelight.model import ModelConfig

_MOST_ITEMS, _LONGEST_NAME, _MOST_DIMENSIONS = 20_000, 1024, 8
_FLOAT32, _INTGEMM8 = 0x0404, 0x4101
_SETTINGS = "special:model.yml"
_MAX_LEN = 1024  # Marian computes its sinusoids, so a model has no length of its own


def read(folder: Path) -> ImportedModel:
    """A folder of Firefox: `model.*.bin`, and `vocab.*.spm` or `srcvocab` and `trgvocab`."""
    model = _only(folder, "model.*.bin")
    config, weights = marian_model(model)
    separate = bool(config.source_vocab) or not [*folder.glob("vocab.*.spm")]
    names = ("srcvocab.*.spm", "trgvocab.*.spm") if separate else ("vocab.*.spm",)
    sides = []
    for prefix, name in zip(("source-", ""), names[-2:], strict=False):
        data = with_start(read_bounded_bytes(_only(folder, name)), "<start>")
        coder = SentencePieceCoder({f"{prefix if separate else ''}vocab.spm": data})
        start, special = len(coder.symbols) - 1, coder.model.special
        tokens = SpecialTokens(
            pad=start, start=start, end=special.get("eos", 0), others=(coder.unknown,)
        )
        sides.append(ImportedTokenizer(coder, tokens))
    tokenizer = sides[-1]
    if separate:
        tokenizer = ImportedTokenizer(tokenizer.coder, tokenizer.tokens, sides[0])
    if [len(tokenizer.source), len(tokenizer)] != [config.num_source_tokens, config.vocab]:
        raise UserError(f"{folder}: the vocabulary and {model.name} have different sizes")
    origin = Origin("marian", "transformer", str(folder), hashes([model]))
    return ImportedModel(config, weights, tokenizer, origin, "pairs")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UserError(f"{folder} has {len(found)} files {pattern}, and must have 1")
    return found[0]


def read_binary(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file in float32, and the settings that it carries."""
    file = BinaryReader(path)
    if file.number("Q", 2**64 - 1, "version") != 1:
        raise file.error("the version of its format is not 1")
    count = file.number("Q", _MOST_ITEMS, "the number of its items")
    headers = [file.numbers("4Q") for _ in range(count)]
    if any(h[0] > _LONGEST_NAME or h[2] > _MOST_DIMENSIONS for h in headers):
        raise file.error("an item has an endless name or shape")
    names = [file.text(length).rstrip("\0") for length, *_ in headers]
    shapes = [file.numbers(f"{dims}i") for _, _, dims, _ in headers]
    file.skip(file.number("Q", len(file), "its padding"))
    tensors, settings = dict[str, Tensor](), dict[str, str]()
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        start = file.at
        if name == _SETTINGS:
            settings = _read_settings(file.text(size))
        elif not name.endswith("_QuantMultA"):  # how activations were rounded; ours are not
            tensors[name] = _read_tensor(file, name, shape, kind)
        file.at = start
        file.skip(size)
    if file.left:
        raise file.error(f"{file.left} bytes are left at the end")
    return tensors, settings


def _read_tensor(file: BinaryReader, name: str, shape: tuple[int, ...], kind: int) -> Tensor:
    if kind == _FLOAT32:
        return torch.from_numpy(file.array("<f4", *shape).copy())
    if kind != _INTGEMM8 or len(shape) != 2:
        raise file.error(f"{name:.80} has the type {kind:#x}: only float32 and intgemm8 are read")
    rows, columns = shape
    stored = (rows, columns) if name.endswith("Wemb") else (columns, rows)
    numbers = file.array("i1", *stored)
    (divisor,) = file.array("<f4", 1)
    if not np.isfinite(divisor) or divisor == 0:
        raise file.error(f"{name:.80} is scaled by {divisor}")
    matrix = torch.from_numpy(numbers.astype(np.float32) / np.float32(divisor))
    return matrix if name.endswith("Wemb") else matrix.T


def _read_settings(text: str) -> dict[str, str]:
    """The simple lines of a YAML file, `name: value`; a list has the value "" and is not needed."""
    pairs = re.findall(r"^([\w-]+): *(.*?) *$", text.rstrip("\0"), re.MULTILINE)
    return {name: value.strip("\"'") for name, value in pairs}


def marian_model(path: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights; whatever ours cannot be is refused by name."""
    tensors, settings = read_binary(path)
    if not settings:
        raise UserError(f"{path} has no settings inside ({_SETTINGS})")
    for name, values in FORMATS["marian"].items():
        if settings.get(name, values[0]) not in values:
            raise UserError(
                f"{path} has {name}: {settings[name]!r:.80}, and only "
                f"{' or '.join(map(repr, values))} can be imported"
            )
    config = _config(path, settings, tensors)
    weights = _tables(path, config, tensors)
    for ours, theirs in _layer_names(config):
        if theirs not in tensors:
            raise UserError(f"{path} has no tensor {theirs}")
        tensor = tensors.pop(theirs)
        weights[ours] = tensor.flatten() if tensor.size(0) == 1 else tensor.T.contiguous()
    tensors.pop("none", None)
    if tensors:
        raise UserError(f"{path} has a tensor that no such model has: {min(tensors):.80}")
    return config, weights


def _config(path: Path, settings: Mapping[str, str], tensors: Mapping[str, Tensor]) -> ModelConfig:
    target = tensors.get("Wemb", tensors.get("decoder_Wemb"))
    source = tensors.get("Wemb", tensors.get("encoder_Wemb"))
    if target is None or source is None or target.dim() != 2 or source.dim() != 2:
        raise UserError(f"{path} has no table of tokens (Wemb)")

    def number(name: str) -> int:
        value = settings.get(name, "")
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise UserError(f"{path} has {name}: {value!r:.80}, which is no number")
        return int(value)

    recurrent = settings.get("transformer-decoder-autoreg") == "rnn"
    activation: Any = settings.get("transformer-ffn-activation", "relu")
    tied: Any = "target" if settings.get("tied-embeddings") == "true" else "none"
    return ModelConfig(
        family="encoder-decoder",
        vocab=target.size(0) + 1,  # and the vector of zeros
        source_vocab=0 if source is target else source.size(0) + 1,
        layers=number("enc-depth"),
        decoder_layers=number("dec-depth"),
        d_model=target.size(1),
        d_ff=number("transformer-dim-ffn"),
        heads=number("transformer-heads"),
        max_len=_MAX_LEN,
        norm_eps=1e-6,
        activation="silu" if activation == "swish" else activation,
        positions="learned",
        tied="all" if source is target else tied,
        decoder_cell="ssru" if recurrent else "attention",
        dropout=0.0,
    )


def _tables(path: Path, config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    positions = half_sinusoids(0, config.max_len, config.d_model)
    sides = ("source", "target")
    weights = {f"{side}.positions.weight": positions.clone() for side in sides}

    def table(name: str) -> Tensor:
        return torch.nn.functional.pad(tensors.pop(name), (0, 0, 0, 1))  # a vector of zeros

    if "Wemb" in tensors:
        weights["source.tokens.weight"] = table("Wemb")
    else:
        weights["source.tokens.weight"] = table("encoder_Wemb")
        weights["target.tokens.weight"] = table("decoder_Wemb")
    if config.tying == "none":
        if "decoder_ff_logit_out_Wt" not in tensors:
            raise UserError(f"{path} has no tensor decoder_ff_logit_out_Wt")
        weights["classifier.weight"] = table("decoder_ff_logit_out_Wt")
    bias = tensors.pop("decoder_ff_logit_out_b", None)
    if bias is None:
        raise UserError(f"{path} has no tensor decoder_ff_logit_out_b")
    weights["classifier.bias"] = torch.nn.functional.pad(bias.flatten(), (0, 1), value=NEVER)
    return weights


def _layer_names(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Our name and Marian's for all tensors of all layers."""
    cell = "ssru" if config.decoder_cell == "ssru" else "self"
    sides = {
        "encoder": (config.layers, ("self", "feed_forward")),
        "decoder": (config.num_decoder_layers, (cell, "cross", "feed_forward")),
    }
    for side, (count, parts) in sides.items():
        for i, part in product(range(count), parts):
            for theirs, ours in FORMATS["layers"]["marian"][part].items():
                yield f"{side}.layers.{i}.{ours}", f"{side}_l{i + 1}_{theirs}"


def half_sinusoids(first: int, count: int, d_model: int) -> Tensor:
    """The sinusoids of Marian and fairseq, count x D: all sines, then all cosines.

    Their wavelengths reach 10000 in D/2 - 1 steps and not in D/2, so the angles differ from ours.
    """
    half = d_model // 2
    steps = torch.arange(half, dtype=torch.float64) * (math.log(10000) / max(1, half - 1))
    angle = torch.arange(first, first + count, dtype=torch.float64)[:, None] * torch.exp(-steps)
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()
