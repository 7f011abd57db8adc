"""Triton kernels: attention of one token, which would otherwise be many small ones.

One program of a kernel does one head of one row; thousands of them run side by side. They are
compiled by Triton when they are first launched, and cached on disk. The scale is compiled in: as
an ordinary argument it would be rounded to single precision.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Arguments of kernels are grouped: tensors and sizes, then compile-time constants.
# fmt: off
_SHORT = 64  # slots
_MANY_PROGRAMS = 256  # fill a GPU by themselves


@triton.jit
def _rotary(
    x, partner, position, d, d_head: tl.constexpr, log_base: tl.constexpr, precise: tl.constexpr
):
    """Rotary positions: a pair of numbers turned by its angle, as `model.positions` has it."""
    exponent = (d // 2).to(precise) * (-2.0 / d_head)
    angle = position.to(precise) * tl.exp(exponent * log_base)  # base ** exponent
    sine = tl.where(d % 2 == 0, -tl.sin(angle), tl.sin(angle))
    return (x * tl.cos(angle) + partner * sine).to(x.dtype)


@triton.jit
def _online_softmax(
    q, keys, values, at, seen, best, total, mixed, d, inside,
    d_head: tl.constexpr, precise: tl.constexpr,
):
    """Some more keys and values into a softmax that is still running (Milakov, Gimelshein 2018)."""
    wanted = seen[:, None] & inside[None, :]
    offset = at[:, None] * d_head + d[None, :]
    k = tl.load(keys + offset, mask=wanted, other=0.0).to(precise)
    scores = tl.where(seen, tl.sum(k * q[None, :], axis=1), float("-inf"))
    higher = tl.maximum(best, tl.max(scores, axis=0))
    shrink, weights = tl.exp(best - higher), tl.exp(scores - higher)
    v = tl.load(values + offset, mask=wanted, other=0.0).to(precise)
    mixed = mixed * shrink + tl.sum(weights[:, None] * v, axis=0)
    return higher, total * shrink + tl.sum(weights, axis=0), mixed


@triton.jit
def _self_attention(
    heads, keys, values, table, next_slot, out, slots,
    scale: tl.constexpr, h: tl.constexpr, g: tl.constexpr, d_head: tl.constexpr,
    power: tl.constexpr, block: tl.constexpr, log_base: tl.constexpr, precise: tl.constexpr,
):
    """Self-attention of one new token, whose key and value are written to the past first.

    `heads`: B H+2G K; `keys`, `values`: B S G K; `table`: see `PagedSlot`.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = head // (h // g)
    d = tl.arange(0, power)
    inside = d < d_head
    own = heads + row * (h + 2 * g) * d_head
    own_key = own + (h + group) * d_head
    line = table + row * (2 + slots)
    position = tl.minimum(tl.load(line), slots - 1)
    q = tl.load(own + head * d_head + d, mask=inside, other=0.0).to(precise)
    k = tl.load(own_key + d, mask=inside, other=0.0).to(precise)
    v = tl.load(own_key + g * d_head + d, mask=inside, other=0.0)
    if log_base > 0:
        beside = tl.load(own + head * d_head + (d ^ 1), mask=inside, other=0.0).to(precise)
        q = _rotary(q, beside, position, d, d_head, log_base, precise)
        beside = tl.load(own_key + (d ^ 1), mask=inside, other=0.0).to(precise)
        k = _rotary(k, beside, position, d, d_head, log_base, precise)
    slot = tl.load(next_slot)
    if head % (h // g) == 0:
        kept = ((row * slots + slot) * g + group) * d_head + d
        tl.store(keys + kept, k.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + kept, v, mask=inside)
    if head == 0:
        tl.store(line + 2 + position, row * slots + slot)
    q = q * scale
    best, mixed = tl.sum(q * k, axis=0), v.to(precise)
    total = best * 0.0 + 1.0
    for first in range(0, position, block):
        s = first + tl.arange(0, block)
        seen = s < position
        flat = tl.load(line + 2 + s, mask=seen, other=0)
        at = flat * g + group
        best, total, mixed = _online_softmax(
            q, keys, values, at, seen, best, total, mixed, d, inside, d_head, precise
        )
    result = out + (row * h + head) * d_head + d
    tl.store(result, (mixed / total).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _cross_attention(
    queries, keys, values, table, seen_at, out, slots, width,
    scale: tl.constexpr, h: tl.constexpr, g: tl.constexpr, d_head: tl.constexpr,
    power: tl.constexpr, block: tl.constexpr, precise: tl.constexpr,
):
    """Cross-attention of one token to its row's source, where `seen_at` allows it."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = head // (h // g)
    d = tl.arange(0, power)
    inside = d < d_head
    result = (row * h + head) * d_head + d
    q = tl.load(queries + result, mask=inside, other=0.0).to(precise) * scale
    source = tl.load(table + row * (2 + slots) + 1)
    mixed = q * 0.0
    total = tl.sum(mixed, axis=0)
    best = total - 1e30
    for first in range(0, width, block):
        s = first + tl.arange(0, block)
        seen = tl.load(seen_at + source * width + s, mask=s < width, other=0) != 0
        at = (source * g + group) * width + s
        best, total, mixed = _online_softmax(
            q, keys, values, at, seen, best, total, mixed, d, inside, d_head, precise
        )
    tl.store(out + result, (mixed / total).to(out.dtype.element_ty), mask=inside)


def decode_self_attention(
    heads: Tensor, keys: Tensor, values: Tensor, table: Tensor, next_slot: Tensor, log_base: float
) -> Tensor:
    """Self-attention of one new token in every row, B H*K, from its queries, keys and values.

    `log_base` is the logarithm of the base of rotary positions; 0 without any.
    """
    rows, slots, groups, width = keys.shape
    count = heads.size(1) // width - 2 * groups
    out = heads.new_empty(rows, count * width)
    _self_attention[(rows, count)](
        heads, keys, values, table, next_slot, out, slots,
        scale=1 / math.sqrt(width), h=count, g=groups, d_head=width,
        power=triton.next_power_of_2(width), log_base=log_base, precise=precision_of(heads),
        **_launch_config(rows * count, slots),
    )
    return out


def decode_cross_attention(
    queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, seen: Tensor
) -> Tensor:
    """Cross-attention of one token in every row, B H*K; `seen`, B S, hides padding."""
    _, groups, length, width = keys.shape
    count = queries.size(1) // width
    out = torch.empty_like(queries)
    _cross_attention[(len(queries), count)](
        queries, keys, values, table, seen, out, table.size(1) - 2, length,
        scale=1 / math.sqrt(width), h=count, g=groups, d_head=width,
        power=triton.next_power_of_2(width), precise=precision_of(queries),
        **_launch_config(len(queries) * count, length),
    )
    return out


def _launch_config(programs: int, slots: int) -> dict[str, int]:
    """How many cache slots a program reads at once, in how many warps: LAB.md has the times."""
    if slots <= _SHORT:
        return {"block": 16, "num_warps": 1}
    if programs < _MANY_PROGRAMS:  # each has more of the GPU to itself
        return {"block": 256, "num_warps": 8}
    return {"block": 128, "num_warps": 4}


def precision_of(x: Tensor) -> Any:
    """The precision of sums."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32
