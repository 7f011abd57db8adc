"""Triton kernels of a layer: attention in short texts, and what surrounds every sub-layer.

The compiler writes the scores of short texts to memory and reads them again, and copies queries,
keys and values there and back. These kernels keep a head's scores in registers, and read and write
the products of a layer where they lie. Autograd and the compiler know them as operators.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Arguments of kernels are grouped: tensors, then sizes, then compile-time constants.
# fmt: off
_PROGRAMS = 528  # that share the rows of a norm's backward pass


@triton.jit
def _head(x, row, n, count, d, d_head: tl.constexpr):
    """The states n of one head; 0 beyond the count."""
    inside = (n < count)[:, None] & (d < d_head)[None, :]
    return tl.load(x + n[:, None] * row + d[None, :], mask=inside, other=0)


@triton.jit
def _put(x, values, row, n, count, d, d_head: tl.constexpr):
    inside = (n < count)[:, None] & (d < d_head)[None, :]
    tl.store(x + n[:, None] * row + d[None, :], values.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _softmax(
    q, k, mask, m_t, m_s, t, s, size_t, size_s, scale,
    causal: tl.constexpr, masked: tl.constexpr,
):
    """The weights, T S. Rows that do not exist attend to everything, so that none is NaN."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    inside = (t < size_t)[:, None] & (s < size_s)[None, :]
    seen = (s < size_s)[None, :] & (t >= 0)[:, None]
    if causal:
        seen = seen & (s[None, :] <= t[:, None])
    if masked:
        given = tl.load(mask + t[:, None] * m_t + s[None, :] * m_s, mask=inside, other=1)
        seen = seen & (given != 0)
    scores = tl.where(seen, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _attend(
    q, k, v, mask, out, m_b, m_h, m_t, m_s, q_row, k_row, size_t, size_s, scale,
    heads: tl.constexpr, d_head: tl.constexpr, causal: tl.constexpr, masked: tl.constexpr,
    block_t: tl.constexpr, block_s: tl.constexpr, block_d: tl.constexpr,
):
    """Equation 1 for one head of one text."""
    b, h = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    t, s, d = tl.arange(0, block_t), tl.arange(0, block_s), tl.arange(0, block_d)
    at_q, at_k, at = b * size_t * q_row + h * d_head, b * size_s * k_row + h * d_head, h * d_head
    queries = _head(q + at_q, q_row, t, size_t, d, d_head)
    keys = _head(k + at_k, k_row, s, size_s, d, d_head)
    values = _head(v + at_k, k_row, s, size_s, d, d_head)
    seen = mask + b * m_b + h * m_h
    weights = _softmax(queries, keys, seen, m_t, m_s, t, s, size_t, size_s, scale, causal, masked)
    mixed = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    row: tl.constexpr = heads * d_head
    _put(out + b * size_t * row + at, mixed, row, t, size_t, d, d_head)


@triton.jit
def _attend_backward(
    q, k, v, mask, grad, grad_q, grad_k, grad_v,
    m_b, m_h, m_t, m_s, q_row, k_row, size_t, size_s, scale,
    heads: tl.constexpr, d_head: tl.constexpr, causal: tl.constexpr, masked: tl.constexpr,
    block_t: tl.constexpr, block_s: tl.constexpr, block_d: tl.constexpr,
):
    """Its gradients; the weights are computed again."""
    b, h = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    t, s, d = tl.arange(0, block_t), tl.arange(0, block_s), tl.arange(0, block_d)
    at_q, at_k, at = b * size_t * q_row + h * d_head, b * size_s * k_row + h * d_head, h * d_head
    row: tl.constexpr = heads * d_head
    queries = _head(q + at_q, q_row, t, size_t, d, d_head)
    keys = _head(k + at_k, k_row, s, size_s, d, d_head)
    values = _head(v + at_k, k_row, s, size_s, d, d_head)
    wanted = _head(grad + b * size_t * row + at, row, t, size_t, d, d_head)
    seen = mask + b * m_b + h * m_h
    weights = _softmax(queries, keys, seen, m_t, m_s, t, s, size_t, size_s, scale, causal, masked)
    rounded = weights.to(wanted.dtype)
    for_v = tl.dot(tl.trans(rounded), wanted, input_precision="ieee")
    _put(grad_v + at_k, for_v, k_row, s, size_s, d, d_head)
    for_weights = tl.dot(wanted, tl.trans(values), input_precision="ieee")
    mean = tl.sum(weights * for_weights, axis=1)[:, None]
    for_scores = (weights * (for_weights - mean) * scale).to(queries.dtype)
    for_q = tl.dot(for_scores, keys, input_precision="ieee")
    _put(grad_q + at_q, for_q, q_row, t, size_t, d, d_head)
    for_k = tl.dot(tl.trans(for_scores), queries, input_precision="ieee")
    _put(grad_k + at_k, for_k, k_row, s, size_s, d, d_head)


@triton.jit
def _mix(x):
    """A permutation of 32 bits in which every bit changes about half of the others."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(seed, row, d, width, dropped):
    """Which numbers dropout keeps: the same in both directions. `dropped` is of 2^24.

    Random numbers of Philox, as torch has them, take longer to compute than all the rest.
    """
    key = tl.load(seed)
    low = _mix(key.to(tl.uint32))
    high = _mix((key >> 32).to(tl.uint32) + low)
    number = (row[:, None] * width + d[None, :]).to(tl.uint32)
    number = _mix(_mix(number ^ low) + high)
    return (number >> 8).to(tl.int32) >= dropped


@triton.jit
def _residual_norm(
    x, add, weight, bias, seed, total, out, mean_, scale_, rows, eps, dropped, factor,
    width: tl.constexpr, block: tl.constexpr, block_d: tl.constexpr,
):
    """norm(x + dropout(add)), and the sum, which the backward pass needs."""
    row, d = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, block_d)
    inside = (row < rows)[:, None] & (d < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + d[None, :]
    added = tl.load(add + at, mask=inside, other=0).to(mean_.dtype.element_ty)
    added = tl.where(_kept(seed, row, d, width, dropped), added * factor, 0.0)
    value = tl.load(x + at, mask=inside, other=0).to(added.dtype) + added
    tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
    value = value.to(total.dtype.element_ty).to(added.dtype)  # as the backward pass will read it
    mean = tl.sum(value, axis=1) / width
    centred = tl.where(inside, value - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / width + eps)
    tl.store(mean_ + row, mean, mask=row < rows)
    tl.store(scale_ + row, scale, mask=row < rows)
    w = tl.load(weight + d, mask=d < width, other=0).to(added.dtype)
    b = tl.load(bias + d, mask=d < width, other=0).to(added.dtype)
    result = centred * scale[:, None] * w[None, :] + b[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _residual_norm_backward(
    grad, total, weight, seed, mean_, scale_, grad_x, grad_add, sums, rows, dropped, factor,
    width: tl.constexpr, block: tl.constexpr, block_d: tl.constexpr,
):
    """Gradients of both summands, and this program's share of those of the weight and the bias."""
    d, first = tl.arange(0, block_d), tl.program_id(0) * block
    kind: tl.constexpr = mean_.dtype.element_ty
    w = tl.load(weight + d, mask=d < width, other=0).to(kind)
    for_weight, for_bias = tl.zeros([block, block_d], kind), tl.zeros([block, block_d], kind)
    for begin in range(first, rows, tl.num_programs(0) * block):
        row = begin + tl.arange(0, block)
        inside = (row < rows)[:, None] & (d < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + d[None, :]
        wanted = tl.load(grad + at, mask=inside, other=0).to(kind)
        value = tl.load(total + at, mask=inside, other=0).to(kind)
        mean = tl.load(mean_ + row, mask=row < rows, other=0)
        scale = tl.load(scale_ + row, mask=row < rows, other=0)
        normal = tl.where(inside, (value - mean[:, None]) * scale[:, None], 0.0)
        for_weight += wanted * normal
        for_bias += wanted
        weighted = wanted * w[None, :]
        along = tl.sum(weighted * normal, axis=1)[:, None] / width
        level = tl.sum(weighted, axis=1)[:, None] / width
        result = (weighted - level - normal * along) * scale[:, None]
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
        result = tl.where(_kept(seed, row, d, width, dropped), result * factor, 0.0)
        tl.store(grad_add + at, result.to(grad_add.dtype.element_ty), mask=inside)
    own = sums + tl.program_id(0) * 2 * width + d
    tl.store(own, tl.sum(for_weight, axis=0), mask=d < width)
    tl.store(own + width, tl.sum(for_bias, axis=0), mask=d < width)


# fmt: on
@torch.library.custom_op("limelight::attend", mutates_args=())
def attend(
    parts: list[Tensor], mask: Tensor | None, heads: int, causal: bool, scale: float
) -> Tensor:
    """Attention of all heads, B T D; `parts` as in `attend_backward`."""
    q, (k, v) = _queries(parts), _keys_values(parts)
    out = q.new_empty(q.shape)
    _launch(_attend, [q, k, v], mask, [out], heads, causal, scale)
    return out


@torch.library.custom_op("limelight::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor, parts: list[Tensor], mask: Tensor | None, heads: int, causal: bool, scale: float
) -> list[Tensor]:
    """Gradients of queries, keys and values side by side (B T 3D), or of B T D and B S 2D."""
    grads = [torch.empty_like(part) for part in parts]
    read = [_queries(parts), *_keys_values(parts)]
    written = [_queries(grads), *_keys_values(grads)]
    _launch(_attend_backward, read, mask, [grad.contiguous(), *written], heads, causal, scale)
    return grads


@attend.register_fake
def _(parts: list[Tensor], *_: Any) -> Tensor:
    x = parts[0]
    return x.new_empty(*x.shape[:2], x.size(2) // (3 if len(parts) == 1 else 1))


@attend_backward.register_fake
def _(grad: Tensor, parts: list[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in parts]


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    parts, mask, *ctx.settings = inputs
    ctx.save_for_backward(*parts, mask)


def _differentiate_attention(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *parts, mask = ctx.saved_tensors
    return attend_backward(grad, parts, mask, *ctx.settings), None, None, None, None


attend.register_autograd(_differentiate_attention, setup_context=_keep_attention)


def _queries(parts: list[Tensor]) -> Tensor:
    return parts[0].chunk(3, dim=-1)[0] if len(parts) == 1 else parts[0]


def _keys_values(parts: list[Tensor]) -> tuple[Tensor, ...]:
    return parts[0].chunk(3, dim=-1)[1:] if len(parts) == 1 else parts[1].chunk(2, dim=-1)


def _launch(
    kernel: Any,
    read: list[Tensor],
    mask: Tensor | None,
    others: list[Tensor],
    heads: int,
    causal: bool,
    scale: float,
) -> None:
    """A program for each head of each text."""
    q, k = read[:2]
    (rows, size_t, width), size_s = q.shape, k.size(1)
    d_head, seen, steps = width // heads, q, [0] * 4
    if mask is not None:
        seen = mask.expand(rows, heads, size_t, size_s).view(torch.uint8)
        steps = list(seen.stride())
    blocks = [max(16, triton.next_power_of_2(n)) for n in (size_t, size_s, d_head)]
    kernel[(rows * heads,)](
        *read, seen, *others, *steps, q.stride(1), k.stride(1), size_t, size_s, scale,
        heads=heads, d_head=d_head, causal=causal, masked=mask is not None,
        block_t=blocks[0], block_s=blocks[1], block_d=blocks[2],
        num_warps=max(1, min(8, blocks[0] * blocks[1] // 1024)),
    )  # fmt: skip


@torch.library.custom_op("limelight::residual_norm", mutates_args=())
def residual_norm(
    x: Tensor, add: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, p: float
) -> list[Tensor]:
    """norm(x + dropout(add)); the sum, and the mean and the scale of each row."""
    rows, width = x.numel() // x.size(-1), x.size(-1)
    precise = torch.promote_types(x.dtype, torch.float32)
    numbers = [torch.empty(rows, device=x.device, dtype=precise) for _ in range(2)]
    out, total = torch.empty_like(x), torch.empty_like(x)
    block, sizes = _row_block(width)
    _residual_norm[(triton.cdiv(rows, block),)](
        x, add, weight, bias, seed, total, out, *numbers, rows, eps, *_dropout(p),
        width=width, **sizes,
    )  # fmt: skip
    return [out, total, *numbers]


@torch.library.custom_op("limelight::residual_norm_backward", mutates_args=())
def residual_norm_backward(
    grad: Tensor, total: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, scale: Tensor, p: float
) -> list[Tensor]:
    """Gradients of both summands, and those of weight and bias (2 D)."""
    rows, width = total.numel() // total.size(-1), total.size(-1)
    for_x, for_add = torch.empty_like(total), torch.empty_like(total)
    block, sizes = _row_block(width)
    programs = min(_PROGRAMS, triton.cdiv(rows, block))
    sums = torch.empty(programs, 2, width, device=total.device, dtype=mean.dtype)
    _residual_norm_backward[(programs,)](
        grad, total, weight, seed, mean, scale, for_x, for_add, sums, rows, *_dropout(p),
        width=width, **sizes,
    )  # fmt: skip
    return [for_x, for_add, sums.sum(dim=0)]


@residual_norm.register_fake
def _(x: Tensor, *_: Any) -> list[Tensor]:
    precise = torch.promote_types(x.dtype, torch.float32)
    numbers = [x.new_empty(x.numel() // x.size(-1), dtype=precise) for _ in range(2)]
    return [torch.empty_like(x), torch.empty_like(x), *numbers]


@residual_norm_backward.register_fake
def _(grad: Tensor, total: Tensor, *others: Any) -> list[Tensor]:
    sums = total.new_empty(2, total.size(-1), dtype=others[2].dtype)
    return [torch.empty_like(total), torch.empty_like(total), sums]


def _keep_residual(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *_, weight, _, seed, _, ctx.p = inputs
    _, total, mean, scale = output
    ctx.save_for_backward(total, weight, seed, mean, scale)


def _differentiate_residual(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    total, weight, seed, mean, scale = ctx.saved_tensors
    made = residual_norm_backward(grads[0].contiguous(), total, weight, seed, mean, scale, ctx.p)
    for_x, for_add, sums = made
    for_weight, for_bias = sums.to(weight.dtype).unbind()
    return for_x, for_add, for_weight, for_bias, None, None, None


residual_norm.register_autograd(_differentiate_residual, setup_context=_keep_residual)


def _dropout(p: float) -> tuple[int, float]:
    """Of 2^24 numbers, how many are dropped, and the factor of the others."""
    dropped = min(round(p * 2**24), 2**24 - 1)
    return dropped, 2**24 / (2**24 - dropped)


def _row_block(width: int) -> tuple[int, dict[str, int]]:
    """Rows at a time: about 2,048 numbers."""
    block_d = triton.next_power_of_2(width)
    block = max(1, 2048 // block_d)
    return block, {"block": block, "block_d": block_d, "num_warps": 4 if block_d <= 2048 else 8}
