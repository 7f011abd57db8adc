"""Layers as a GPU computes them fastest: with the operators of `layer_kernels`.

A model is as it was, with the same weights; its modules are given other ways to compute, which
tests hold equal to the plain ones.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.model.attention import Attention, fused_attention
from limelight.model.layers import Residual

SHORT = 128  # tokens of a text whose scores a kernel keeps in registers
_SHARED_MEMORY = 98_304  # bytes that a program of it takes at most: for heads of 128
_OPERATORS: Any = torch.ops.limelight  # as the compiler knows them


def _products(attention: Attention, x: Tensor, memory: Tensor | None) -> list[Tensor]:
    """Queries, keys and values side by side; or queries, and keys and values of the memory."""
    if memory is None:
        return [_multiply_jointly(x, attention.query, attention.key, attention.value)]
    return [attention.query(x), _multiply_jointly(memory, attention.key, attention.value)]


def _multiply_jointly(x: Tensor, *layers: nn.Linear) -> Tensor:
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, weight, bias)


def _heads_apart(products: list[Tensor], attention: Attention) -> list[Tensor]:
    sizes = [layer.out_features for layer in (attention.query, attention.key, attention.value)]
    parts = [] if len(products) == 1 else [products[0]]
    parts += torch.split(products[-1], sizes[len(parts) :], dim=-1)
    return [attention.split(part) for part in parts]


def use_kernels(model: Any, longest: int, most: int = SHORT) -> None:
    """Triton kernels, while it trains: of post-norm residuals, and of attention up to `most`."""
    from limelight.training import layer_kernels  # noqa: F401 it needs Triton, and makes them

    config = getattr(model, "config", None)
    short = longest <= most and getattr(config, "positions", "rotary") != "rotary"
    for part in model.modules():
        if isinstance(part, Attention) and short and _has_plain_heads(part):
            products: Any = partial(_project_for_kernel, part)
            part.project = products  # type: ignore[method-assign]
            part.attend = partial(_attend_by_kernel, part)
        if isinstance(part, Residual) and _is_the_papers(part):
            part.forward = partial(_add_and_norm, part)  # type: ignore[method-assign]


def longest_for_kernels(device: torch.device) -> int:
    """The most tokens of a text that the attention kernel has room for."""
    shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return SHORT if shared >= _SHARED_MEMORY else 0


def _has_plain_heads(attention: Attention) -> bool:
    """Whether it is as `build` makes it, with nothing between the products and what it returns."""
    layers = (attention.query, attention.key, attention.value)
    own = attention.attend is fused_attention and "project" not in vars(attention)
    own &= all(type(layer) is nn.Linear for layer in layers)
    alike = attention.query.out_features == attention.key.out_features
    plain = attention.query_norm is None and not attention.dropout
    return own and alike and plain and attention.d_head <= 128


def _is_the_papers(residual: Residual) -> bool:
    own = type(residual) is Residual and "forward" not in vars(residual)
    return own and residual.post and residual.residual and type(residual.norm) is nn.LayerNorm


def _project_for_kernel(attention: Attention, x: Tensor, memory: Any) -> tuple[Any, ...]:
    """The products side by side, in place of queries; the kernel splits them into heads."""
    if not attention.training or isinstance(memory, tuple):
        return Attention.project(attention, x, memory)
    return _products(attention, x, memory), None, None


def _attend_by_kernel(
    attention: Attention,
    q: Any,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    scaling: bool = True,
) -> Tensor:
    if isinstance(q, Tensor):
        return fused_attention(q, k, v, mask, causal, dropout, scaling)
    heads = attention.query.out_features // attention.d_head
    if mask is not None and mask.dtype != torch.bool:  # numbers to add to the scores
        q, k, v = _heads_apart(q, attention)
        return fused_attention(q, k, v, mask, causal, dropout, scaling)
    scale = attention.d_head**-0.5 if scaling else 1.0
    return attention.split(_OPERATORS.attend(q, mask, heads, causal, scale))


def _add_and_norm(residual: Residual, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    norm: Any = residual.norm
    if not residual.training or not x.dtype == norm.weight.dtype == norm.bias.dtype:
        return Residual.forward(residual, x, sublayer)
    x, add = x.contiguous(), sublayer(x).to(x.dtype).contiguous()
    seed = torch.randint(2**63 - 1, (1,), device=x.device)
    p: float = residual.dropout.p
    made = _OPERATORS.residual_norm(x, add, norm.weight, norm.bias, seed, norm.eps, p)
    return cast(Tensor, made[0])
