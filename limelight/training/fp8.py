"""Matrix products in numbers of 8 bits, which tensor cores multiply twice as fast.

States and weights have 4 bits of exponent and 3 of fraction, gradients 5 and 2; a matrix has one
scale. Sums are made in float32 by the hardware (Micikevicius et al. 2022). It pays for the
classifier, the widest product of most models, and for the products of wide layers; in narrow ones
the casts take longer than the products gain. The gradient of logits is between -1 and 1, so its
scale is fixed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.errors import UserError
from limelight.model.layers import Layer
from limelight.training.loss import IGNORED, LossSums, Products, has_kernels

_WIDE, _FINE = torch.float8_e5m2, torch.float8_e4m3fn
_GRAD_SCALE = 2.0**14  # the smallest number of 5 + 2 bits is then a probability of 1e-9
_MULTIPLE = 16  # of all sizes: the hardware's
_NARROWEST = 2048  # numbers that a product reads and writes at each position, at least


def quantize(x: Tensor, kind: torch.dtype = _FINE) -> tuple[Tensor, Tensor]:
    """A matrix in 8 bits, and what to multiply it by."""
    scale = x.abs().amax().float().clamp(min=1e-12) / torch.finfo(kind).max
    return (x.float() / scale).to(kind), scale


def _cross_entropy_chunk_fp8(
    chunk_loss: Any, logits: Tensor, labels: Tensor, rdrop_alpha: float = 0.0, **settings: Any
) -> tuple[Tensor, Any]:
    """`chunk_loss` with a gradient in 8 bits, its transpose, and what they were multiplied by.

    At an unlikely label the gradient is the smoothing - 1, which the scale turns into a power of 2:
    rounded, it would be wrong by the same 3% in every step.
    """
    scale = _GRAD_SCALE / (1 - settings["smoothing"])
    small = torch.empty_like(logits, dtype=_WIDE)
    if has_kernels(logits) and not rdrop_alpha:
        from limelight.training.loss_kernels import loss_of_rows

        sums, _ = loss_of_rows(logits, labels, **settings, grads=small, scale=scale)
    else:
        sums, grad = chunk_loss(logits, labels, rdrop_alpha=rdrop_alpha, **settings)
        torch.mul(grad.float(), scale, out=small)
    return sums, (small, transpose(small), scale)


@torch.library.custom_op("limelight::transpose", mutates_args=())
def transpose(x: Tensor) -> Tensor:
    """A contiguous matrix of 8 bits, transposed: the hardware reads both factors along sums."""
    if not has_kernels(x):
        return x.t().contiguous()
    from limelight.training.loss_kernels import transposed

    return transposed(x)


@transpose.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.size(1), x.size(0))


class _Fp8Products(Products):
    """`Products` of 8 bits."""

    def __init__(
        self, states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        super().__init__(states, weight, bias, dtype)
        self.small_states, self.states_scale = quantize(states)
        self.small_weight, self.weight_scale = quantize(weight)
        self.turned_weight = transpose(self.small_weight)
        self.one = torch.ones((), device=states.device)

    def logits(self, part: slice) -> Tensor:
        return torch._scaled_mm(
            self.small_states[part],
            self.small_weight.t(),
            self.states_scale,
            self.weight_scale,
            bias=self.shift,
            out_dtype=self.dtype,
            use_fast_accum=True,
        )

    def accumulate(self, grads: list[Any], part: slice, grad: Any) -> None:
        for_states, for_weight, for_bias = grads
        grad, turned, factor = grad
        scale = self.one / factor
        if for_states is not None:
            for_states[part] = torch._scaled_mm(
                grad, self.turned_weight.t(), scale, self.weight_scale, out_dtype=self.dtype
            )
        if for_weight is not None:
            across = transpose(self.small_states[part]).t()
            for_weight += torch._scaled_mm(
                turned, across, scale, self.states_scale, out_dtype=self.dtype
            )
        if for_bias is not None:
            ones = torch.ones(_MULTIPLE, grad.size(0), device=grad.device).to(_FINE)
            total = torch._scaled_mm(ones, turned.t(), self.one, scale, out_dtype=self.dtype)
            for_bias += total[0]


def cross_entropy_fp8(
    plain: Callable[..., LossSums],
    chunk_loss: Any,
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    **settings: Any,
) -> LossSums:
    """`chunked_cross_entropy` with products of 8 bits where there is something to learn."""
    if not torch.is_grad_enabled():
        return plain(states, weight, bias, labels, **settings)
    states, labels = states.flatten(0, -2), labels.flatten()
    more = -len(labels) % _MULTIPLE
    if more:
        states = F.pad(states, (0, 0, 0, more))
        labels = F.pad(labels, (0, more), value=IGNORED)
    settings["chunk_loss"] = partial(_cross_entropy_chunk_fp8, chunk_loss)
    return plain(states, weight, bias, labels, **settings, products=_Fp8Products)


def check_sizes(vocab: int, d_model: int) -> None:
    """Raise UserError where the hardware could not multiply."""
    for name, size in (("vocab", vocab), ("d_model", d_model)):
        if size % _MULTIPLE:
            raise UserError(
                f"precision='fp8' multiplies sizes in steps of {_MULTIPLE}, and {name}={size} is "
                "no multiple: choose another, or --train.precision bfloat16"
            )


class _Fp8Product(torch.autograd.Function):
    """x W^T for rows x, and both of its gradients, of factors in 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        small, scale = quantize(x)
        small_weight, weight_scale = quantize(weight)
        ctx.save_for_backward(small, scale, small_weight, weight_scale)
        return _multiply(small, small_weight, scale, weight_scale, x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, scale, weight, weight_scale = ctx.saved_tensors
        grad, grad_scale = quantize(grads[0], _WIDE)
        dtype, for_x, for_weight = grads[0].dtype, None, None
        if ctx.needs_input_grad[0]:
            for_x = _multiply(grad, transpose(weight), grad_scale, weight_scale, dtype)
        if ctx.needs_input_grad[1]:  # it may be frozen
            for_weight = _multiply(transpose(grad), transpose(x), grad_scale, scale, dtype)
        return for_x, for_weight


def _multiply(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """a b^T in the scales of both."""
    half = torch.bfloat16 if dtype == torch.float32 else dtype  # what the hardware can write
    made = torch._scaled_mm(a, b.t(), a_scale, b_scale, out_dtype=half, use_fast_accum=True)
    return made.to(dtype)


class Fp8Linear(nn.Linear):
    """A linear layer that trains in 8 bits; its weights keep their names.

    What is only measured has all its bits.
    """

    def __init__(self, exact: nn.Linear) -> None:
        super().__init__(exact.in_features, exact.out_features, exact.bias is not None, "meta")
        self.weight, self.bias = exact.weight, exact.bias

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(input)
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        rows = input.flatten(0, -2).to(dtype)
        padded = F.pad(rows, (0, 0, 0, -len(rows) % _MULTIPLE))  # the weight's gradient sums them
        product = _Fp8Product.apply(padded, self.weight.to(dtype))  # type: ignore[no-untyped-call]
        made: Tensor = product[: len(rows)].view(*input.shape[:-1], self.out_features)
        return made if self.bias is None else made + self.bias.to(made.dtype)


def use_fp8_products(model: nn.Module, narrowest: int = _NARROWEST) -> None:
    """Multiply in 8 bits in the layers whose products are wide enough to gain from it."""
    for layer in model.modules():
        for parent in layer.modules() if isinstance(layer, Layer) else ():
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear and _gains(child, narrowest):
                    setattr(parent, name, Fp8Linear(child))


def _gains(layer: nn.Linear, narrowest: int) -> bool:
    sizes = layer.in_features, layer.out_features
    return min(sizes) >= narrowest and not any(size % _MULTIPLE for size in sizes)
