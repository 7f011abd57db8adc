"""Products of a few rows with a matrix, as fast as this CPU gives them: in float32, or in int8."""

import math
import subprocess
import sys
import warnings
from functools import cached_property

import torch
from torch import Tensor, nn

from limelight.errors import UserError
from limelight.model.stack import Classifier

ONEDNN = torch.ops.mkldnn._linear_pointwise.default if torch._C._has_mkldnn else None
INT8 = torch.ops.quantized.linear_dynamic.default
PROBE = """
import torch
weight, scales = torch.ones(256, 256), torch.ones(256)
rounded = torch.quantize_per_channel(weight, scales, torch.zeros(256).long(), 0, torch.qint8)
kernel = torch.ops.quantized.linear_prepack(rounded, scales)
for rows in (1, 64):
    torch.ops.quantized.linear_dynamic(torch.ones(rows, 256), kernel).sum().item()
"""


class Product:
    """x W + b, for a few rows x. Linear layers that read the same x become one.

    The layouts that the processor likes are made when they are needed first.
    """

    def __init__(self, *parts: nn.Linear | Classifier, shrink: int = 1) -> None:
        weights: list[Tensor] = [part.weight for part in parts]
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        self.weight = torch.cat(weights) if len(weights) > 1 or shrink > 1 else weights[0]  # out in
        self.bias = torch.cat(biases) if biases else self.weight.new_zeros(len(self.weight))
        self.narrowing = self.weight.size(0) < self.weight.size(1)
        if shrink > 1:  # the first part makes queries: divide them by sqrt(d_k) here, once
            for values in (self.weight, self.bias):
                values[: len(weights[0])] /= math.sqrt(shrink)

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) > 1 and x.dtype == torch.float32 and ONEDNN is not None:
            return ONEDNN(x, self.packed, self.bias, "none", [], "")
        if len(x) == 1 and self.narrowing:
            return torch.addmv(self.bias, self.weight, x[0])[None]
        return torch.addmm(self.bias, x, self.turned)

    @cached_property
    def packed(self) -> Tensor:
        """In the blocks that oneDNN multiplies: the fastest for several rows."""
        return torch.ops.mkldnn._reorder_linear_weight(self.weight)

    @cached_property
    def turned(self) -> Tensor:
        """In out. A single row waits for memory alone, and that comes faster in long rows."""
        return self.weight.t().contiguous()


class Int8Product(Product):
    """The same with weights of one byte, and rows rounded to one byte on the way: not exact."""

    def __init__(self, *parts: nn.Linear | Classifier, shrink: int = 1) -> None:
        super().__init__(*parts, shrink=shrink)
        scales = self.weight.abs().amax(dim=1).clamp(min=1e-8) / 127  # one for each output
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch will rename this some day
            rounded = torch.quantize_per_channel(self.weight, scales, zeros, 0, torch.qint8)
        self.kernel = torch.ops.quantized.linear_prepack(rounded, self.bias)
        del self.weight

    def __call__(self, x: Tensor) -> Tensor:
        # Seven bits for x: older processors overflow with eight.
        return INT8(x, self.kernel, reduce_range=True)


def choose_product(int8: bool, dtype: torch.dtype) -> type[Product]:
    """The kind of product asked for; never the one that kills this CPU."""
    if not int8:
        return Product
    if dtype != torch.float32:
        raise UserError(
            f"int8 is made from float32, and this model is in {dtype}: convert it first"
        )
    tried = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False)
    if tried.returncode:  # processors that announce what they do not have end a process
        raise UserError("int8 does not work on this CPU with this torch: choose float32")
    return Int8Product
