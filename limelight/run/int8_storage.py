"""Weights in bytes: a quarter of the size on the disk, and float32 again when they are read.

A row w of a matrix becomes whole numbers q from -127 to 127 and a scale s of its own, with w about
s q: no weight moves by more than s / 2, which is 1/254 of the largest in its row. A row of a
convolution is all that makes one output channel. Vectors (biases, norms) are few and stay as they
are. Packed a second time, what was unpacked stays the same to the last bit: the scales have 12
bits, so that s q is exact in float32. `benchmarks/bundle.py` packs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from limelight.errors import UserError

SCALES = ".scales"  # behind a matrix's name: where its scales are


def dequantize_rows(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float32; a file without quantized matrices is returned as it is."""
    return {
        name: tensor * per_row(packed[name + SCALES], tensor)
        if tensor.dtype == torch.int8
        else tensor
        for name, tensor in packed.items()
        if not is_scales(name, packed)
    }


def per_row(scales: Tensor, tensor: Tensor) -> Tensor:
    """Scales in the shape in which they multiply a matrix, or the weights of a convolution."""
    return scales.view(-1, *[1] * (tensor.dim() - 1))


def is_scales(name: str, tensors: Mapping[str, object]) -> bool:
    """Whether these are a matrix's scales, and not weights."""
    return name.endswith(SCALES) and name.removesuffix(SCALES) in tensors


def check_packed(shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str]) -> None:
    """Every int8 matrix has a scale for each of its rows, and scales belong to such a matrix."""
    for name, shape in shapes.items():
        if kinds[name] == "I8":
            scales = name + SCALES
            if len(shape) < 2 or shapes.get(scales) != shape[:1] or kinds[scales] != "F32":
                raise UserError(
                    f"{name:.80} is in bytes, but there is no scale for each of its rows"
                )
        elif is_scales(name, kinds) and kinds[name.removesuffix(SCALES)] != "I8":
            raise UserError(f"{name:.80} are scales of what is not in bytes")
