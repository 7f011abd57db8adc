"""Weights in bytes: a quarter of the size on the disk, and float32 again when they are read.

A row w of a matrix becomes whole numbers q from -127 to 127 and a scale s of its own, with w about
s q: no weight moves by more than s / 2, which is 1/254 of the largest in its row. A row of a
convolution is all that makes one output channel. Vectors (biases, norms) are few and stay as they
are. Packed a second time, what was unpacked stays the same to the last bit: the scales have 12
bits, so that s q is exact in float32.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from limelight.errors import UserError

_LARGEST = 127
SCALES = ".scales"  # behind a matrix's name: where its scales are
_BITS = 12  # of a scale; with the 7 of a byte they fit the 24 of a float32


def quantize_rows(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as bytes and scales, everything else in float32."""
    packed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().float()  # noqa: PLW2901
        if tensor.dim() >= 2:
            scales = _scales_of(tensor.flatten(1))
            packed[name + SCALES] = scales
            packed[name] = (tensor / _per_row(scales, tensor)).round().to(torch.int8)
        else:
            packed[name] = tensor.contiguous()
    return packed


def _scales_of(matrix: Tensor) -> Tensor:
    """For each row the smallest scale of 12 bits that reaches its largest number with 127."""
    most = matrix.abs().amax(dim=1).double() / _LARGEST
    fraction, power = torch.frexp(most)
    scales = torch.ldexp(torch.ceil(fraction * 2**_BITS) / 2**_BITS, power)
    return torch.where(most > 0, scales, 1.0).float()


def dequantize_rows(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float32; a file without quantized matrices is returned as it is."""
    return {
        name: tensor * _per_row(packed[name + SCALES], tensor)
        if tensor.dtype == torch.int8
        else tensor
        for name, tensor in packed.items()
        if not is_scales(name, packed)
    }


def _per_row(scales: Tensor, tensor: Tensor) -> Tensor:
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
