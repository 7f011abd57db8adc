"""Linear layers for a few rows, as fast as this CPU computes them."""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from limelight.decode.accel.cpu.huge_pages import WEIGHTS
from limelight.model.stack import Classifier

MANY_OUTPUTS = 2**18  # numbers: from here on, copying a bias into each row first is slow


def _best_kernel() -> Any:
    """oneDNN's, or None where torch's own is faster: MKL's on Intel processors, by 15 to 30%."""
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)  # missing in older torch
    if torch._C.has_mkl and "Intel" in str(capabilities().get("cpu_name")):
        return None
    return torch.ops.mkldnn._linear_pointwise.default if torch._C._has_mkldnn else None


ONEDNN = _best_kernel()


class PackedLinear:
    """x W + b, for a few rows x. Linear layers that read the same x become one.

    Each layout of the weights is made when it is first needed.
    """

    def __init__(self, *parts: nn.Linear | Classifier, query_scale_dim: int = 1) -> None:
        weights = [part.weight.detach() for part in parts]
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        copied = len(weights) > 1 or query_scale_dim > 1
        self.weight = torch.cat(weights) if copied else weights[0]  # out in
        self.bias = torch.cat(biases) if biases else self.weight.new_zeros(len(self.weight))
        self.bias_row = self.bias[None]  # of the shape of a result, which saves an expansion
        outputs, inputs = self.weight.shape
        self.narrowing = outputs < inputs
        self.widening = outputs > inputs
        if query_scale_dim > 1:  # the first part makes queries: divide them by sqrt(d_k) here, once
            for values in (self.weight, self.bias):
                values[: len(weights[0])] /= math.sqrt(query_scale_dim)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The result may be written to `out`, if there is one."""
        if x.size(0) == 1:
            return torch.addmm(self.bias_row, x, self.single_row_layout)
        if x.dtype == torch.float32 and ONEDNN is not None:
            return ONEDNN(x, self.packed, self.bias, "none", [], "")
        if self.widening and x.size(0) * self.bias.size(0) > MANY_OUTPUTS:
            with_one = torch.cat([x, x.new_ones(x.size(0), 1)], dim=1)
            return torch.mm(with_one, self.transposed_with_bias, out=out)
        return torch.addmm(self.bias, x, self.transposed)

    def add_into(self, x: Tensor, inner: Tensor) -> Tensor:
        """x + inner W + b, written over x: a sub-layer and its residual connection."""
        if x.size(0) == 1:
            return x.add_(self.bias).addmm_(inner, self.single_row_layout)
        if x.dtype == torch.float32 and ONEDNN is not None:
            return x.add_(self(inner))
        return x.add_(self.bias).addmm_(inner, self.transposed)

    @cached_property
    def packed(self) -> Tensor:
        """In oneDNN's blocks: the fastest for several rows."""
        return torch.ops.mkldnn._reorder_linear_weight(self.weight)

    @cached_property
    def transposed_with_bias(self) -> Tensor:
        """In+1 out: the bias is the weight of an input that is always 1."""
        outputs, inputs = self.weight.shape
        # A cache line between two rows: 4,096 bytes apart they would evict each other.
        joined = WEIGHTS.empty(self.weight, inputs + 1, outputs + 16)[:, :outputs]
        joined[:-1], joined[-1] = self.weight.t(), self.bias
        return joined

    @cached_property
    def transposed(self) -> Tensor:
        return self.transposed_with_bias[:-1]

    @cached_property
    def single_row_layout(self) -> Tensor:
        """In out. A single row is bound by memory, which is read faster in long rows."""
        if not self.narrowing:
            return self.transposed
        return WEIGHTS.empty(self.weight, *self.weight.shape).copy_(self.weight).t()
