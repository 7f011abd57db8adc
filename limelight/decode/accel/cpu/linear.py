"""Linear layers for a few rows, as fast as this CPU computes them: in float32, or in int8."""

import math
import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from limelight.decode.accel.cpu.huge_pages import WEIGHTS
from limelight.device import survives
from limelight.errors import UserError
from limelight.model.stack import Classifier

_LARGEST, _ZERO_POINT = 63, 64  # of x in bytes: seven bits, as older processors overflow with 8
_TINY = 1e-30  # the scale of a row of zeros
MANY_OUTPUTS = 2**18  # numbers: from here on, copying a bias into each row first is slow
PROBE = """
import torch
weight, scales = torch.ones(256, 256), torch.ones(256)
rounded = torch.quantize_per_channel(weight, scales, torch.zeros(256).long(), 0, torch.qint8)
kernel = torch.ops.quantized.linear_prepack(rounded, None)
multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
for rows in (1, 64):
    multiply(torch.ones(rows, 256), 1.0, 64, kernel).sum().item()
"""


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


class Int8Linear(PackedLinear):
    """A linear layer with int8 weights and inputs: approximate.

    Every row is scaled by its own largest number, so that no text depends on its batch.
    """

    def __init__(self, *parts: nn.Linear | Classifier, query_scale_dim: int = 1) -> None:
        super().__init__(*parts, query_scale_dim=query_scale_dim)
        scales = self.weight.abs().amax(dim=1).clamp(min=1e-8) / 127  # one for each output
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch will rename this some day
            rounded = torch.quantize_per_channel(self.weight, scales, zeros, 0, torch.qint8)
        self.multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        self.kernel = torch.ops.quantized.linear_prepack(rounded, None)
        del self.weight

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        if x.size(0) == 1:  # fewer operations
            scale = max(x.abs().max().item(), _TINY) / _LARGEST
            return self.multiply(x, scale, _ZERO_POINT, self.kernel).add_(self.bias)
        scales = x.abs().amax(dim=-1, keepdim=True).clamp_(min=_TINY).div_(_LARGEST)
        product = self.multiply(x * scales.reciprocal(), 1.0, _ZERO_POINT, self.kernel)
        return torch.addcmul(self.bias, product, scales, out=product)

    def add_into(self, x: Tensor, inner: Tensor) -> Tensor:
        return x.add_(self(inner))


def linear_class(int8: bool, dtype: torch.dtype) -> type[PackedLinear]:
    """`PackedLinear`, or `Int8Linear` if this CPU survives it."""
    if not int8:
        return PackedLinear
    if dtype != torch.float32:
        raise UserError(
            f"int8 is made from float32, and this model is in {dtype}: convert it first"
        )
    if not survives(PROBE):
        raise UserError("int8 does not work on this CPU with this torch: choose float32")
    return Int8Linear
