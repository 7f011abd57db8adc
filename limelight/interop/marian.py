"""Marian's binary models, as Firefox ships them: int8 matrices, and a recurrent (SSRU) decoder.

The file: version and number of items; for each the lengths of name, shape and data, and a type;
all names; all shapes; padding; all data. An int8 matrix is stored transposed and followed by the
number that it must be divided by; the table of tokens is stored as it is. The decoder begins with
a vector of zeros: here it is the last row of the table, a token that is never written.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.interop.binary import BinaryReader
from limelight.interop.names import rename
from limelight.model.positions import angles

_MOST_ITEMS, _LONGEST_NAME, _MOST_DIMENSIONS = 20_000, 1024, 8
_FLOAT32, _INT8, _INTGEMM8 = 0x0404, 0x0101, 0x4101
_SETTINGS = "special:model.yml"
# What a translator of Firefox has, with what else is read; other values are refused by name.
_EXPECTED = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("rnn", "self-attention"),
    "dec-cell": ("ssru",),
    "transformer-preprocess": ("", "n"),
    "transformer-postprocess": ("dan", "da"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-ffn-depth": ("2",),
    "transformer-ffn-activation": ("relu", "gelu", "swish"),
    "transformer-no-projection": ("false",),
    "transformer-tied-layers": ("[]",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-pool": ("false",),
    "transformer-rnn-projection": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-no-bias": ("false",),
    "transformer-depth-scaling": ("false",),
    "layer-normalization": ("false",),
    "input-types": ("[]",),
    "lemma-dim-emb": ("0",),
    "factors-combine": ("sum",),
    "right-left": ("false",),
    "skip": ("false",),
    "ulr": ("false",),
    "output-omit-bias": ("false",),
}


def read_marian(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
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


def marian_config(settings: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The settings of our model for this one; what it cannot be is refused by name."""
    if not settings:
        raise UserError("this Marian model has no settings inside (special:model.yml)")
    for name, values in _EXPECTED.items():
        if settings.get(name, values[0]) not in values:
            raise UserError(
                f"this Marian model has {name}: {settings[name]!r:.80}, and only "
                f"{' or '.join(map(repr, values))} can be imported"
            )
    recurrent = settings.get("transformer-decoder-autoreg") == "rnn"
    table = next((t for name, t in tensors.items() if name.endswith("Wemb")), None)
    if table is None or table.dim() != 2:
        raise UserError("this Marian model has no table of tokens (Wemb)")
    source = tensors["encoder_Wemb"].size(0) + 1 if "encoder_Wemb" in tensors else 0
    return {
        "family": "encoder-decoder",
        "vocab": table.size(0) + 1,  # and the vector of zeros
        "layers": _whole(settings, "enc-depth"),
        "decoder_layers": _whole(settings, "dec-depth"),
        "d_model": table.size(1),
        "d_ff": _whole(settings, "transformer-dim-ffn"),
        "heads": _whole(settings, "transformer-heads"),
        "norm_order": "pre" if settings.get("transformer-preprocess") == "n" else "post",
        "norm_eps": 1e-6,
        "activation": {"swish": "silu"}.get(
            activation := settings.get("transformer-ffn-activation", "relu"), activation
        ),
        "positions": "learned",
        "decoder_cell": "ssru" if recurrent else "attention",
        "source_vocab": source,
    }


def _whole(settings: Mapping[str, str], name: str) -> int:
    value = settings.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise UserError(f"this Marian model has {name}: {value!r:.80}, which is no number")
    return int(value)


def half_sinusoids(first: int, count: int, d_model: int) -> Tensor:
    """The sinusoids of Marian and fairseq, count x D: all sines, then all cosines.

    The wavelengths end at 10000 in D/2 - 1 steps, not at the step after: other numbers than ours.
    """
    half = d_model // 2
    steps = torch.arange(half, dtype=torch.float64) * (math.log(10000) / max(1, half - 1))
    angle = torch.arange(first, first + count, dtype=torch.float64)[:, None] * torch.exp(-steps)
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()
