"""Triton kernels for all that is done with a row but attention.

A sum and its norm, the most likely tokens, and for very few rows a linear layer. The epsilon of a
norm is compiled in: as an ordinary argument it would be rounded to single precision.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from limelight.decode.accel.cuda.attention_kernels import precision_of

# Arguments of kernels are grouped: tensors and sizes, then compile-time constants.
# fmt: off
_PART = 4096  # tokens of the vocabulary that one program ranks


@triton.jit
def _add_and_norm(
    x, more, weight, bias, total, out, width,
    eps: tl.constexpr, adds: tl.constexpr, centred: tl.constexpr, power: tl.constexpr,
    precise: tl.constexpr,
):
    """One row: x + more, and its norm."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, power)
    inside = d < width
    summed = tl.load(x + row * width + d, mask=inside, other=0.0).to(precise)
    if adds:
        summed += tl.load(more + row * width + d, mask=inside, other=0.0).to(precise)
        tl.store(total + row * width + d, summed.to(total.dtype.element_ty), mask=inside)
    if centred:
        summed = tl.where(inside, summed - tl.sum(summed, axis=0) / width, 0.0)
    variance = tl.sum(summed * summed, axis=0) / width
    normed = summed / tl.sqrt(variance + eps)
    normed = normed * tl.load(weight + d, mask=inside, other=0.0).to(precise)
    if centred:
        normed += tl.load(bias + d, mask=inside, other=0.0).to(precise)
    tl.store(out + row * width + d, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _activated(x, value, activation: tl.constexpr):
    """An activation, or x as the gate of a value."""
    if activation == "relu":
        x = tl.maximum(x, 0.0)
    if activation == "gelu-tanh":
        cubed = x + 0.044715 * x * x * x
        x = x / (1 + tl.exp(-1.5957691216057308 * cubed))  # -2 sqrt(2 / pi)
    if activation == "swiglu":
        x = value * x / (1 + tl.exp(-x))
    return x


@triton.jit
def _product(
    x, weight, bias, gain, shift, more, normed, out, width, length,
    eps: tl.constexpr, norms: tl.constexpr, centred: tl.constexpr, biased: tl.constexpr,
    adds: tl.constexpr, activation: tl.constexpr, full: tl.constexpr, part: tl.constexpr,
    block: tl.constexpr, precise: tl.constexpr,
):
    """Some outputs of a linear layer of one row: its norm before, a function or a sum behind.

    For swiglu the layer has twice as many outputs: the gates of all, then what they are applied to.
    """
    gated: tl.constexpr = activation == "swiglu"
    row, o = tl.program_id(1).to(tl.int64), tl.program_id(0) * block + tl.arange(0, block)
    i, own = tl.arange(0, part), x + row * width
    wanted = (o < length)[:, None]
    at = weight + o.to(tl.int64)[:, None] * width + i[None, :]
    w = tl.load(at, mask=wanted & (i < width)[None, :], other=0.0)  # on its way from here on
    behind = at + tl.cast(length, tl.int64) * width
    if gated:
        u = tl.load(behind, mask=wanted & (i < width)[None, :], other=0.0)
    if norms:
        d = tl.arange(0, full)
        y = tl.load(own + d, mask=d < width, other=0.0).to(precise)
        mean = tl.sum(y, axis=0) / width if centred else 0.0
        y = tl.where(d < width, y - mean, 0.0)
        scale = 1 / tl.sqrt(tl.sum(y * y, axis=0) / width + eps)
    total = tl.zeros([block], precise)
    value = tl.zeros([block], precise)
    for first in range(0, width, part):
        inside = first + i < width
        h = tl.load(own + first + i, mask=inside, other=0.0).to(precise)
        if norms:
            h = (h - mean) * scale * tl.load(gain + first + i, mask=inside, other=0.0).to(precise)
            if centred:
                h += tl.load(shift + first + i, mask=inside, other=0.0).to(precise)
            h = h.to(out.dtype.element_ty)
            if tl.program_id(0) == 0:
                tl.store(normed + row * width + first + i, h, mask=inside)
            h = h.to(precise)
        total += tl.sum(w.to(precise) * h[None, :], axis=1)
        later = (first + part + i < width)[None, :]
        w = tl.load(at + first + part, mask=wanted & later, other=0.0)
        if gated:
            value += tl.sum(u.to(precise) * h[None, :], axis=1)
            u = tl.load(behind + first + part, mask=wanted & later, other=0.0)
    if biased:
        total += tl.load(bias + o, mask=o < length, other=0.0).to(precise)
        if gated:
            value += tl.load(bias + length + o, mask=o < length, other=0.0).to(precise)
    total = _activated(total, value, activation)
    if adds:
        total += tl.load(more + row * length + o, mask=o < length, other=0.0).to(precise)
    tl.store(out + row * length + o, total.to(out.dtype.element_ty), mask=o < length)


@triton.jit
def _rank_part(
    logits, stride, values, tokens, tops, sums, vocab,
    few: tl.constexpr, part: tl.constexpr, precise: tl.constexpr,
):
    """The highest of a part of a row's scores, and what the others come to beside them."""
    row, which, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = tl.arange(0, part)
    inside = which * part + i < vocab
    x = tl.load(logits + row * stride + which * part + i, mask=inside, other=float("-inf"))
    x = x.to(precise)
    top = tl.maximum(tl.max(x, axis=0), -1e30)
    tl.store(tops + row * parts + which, top)
    tl.store(sums + row * parts + which, tl.sum(tl.exp(x - top), axis=0))
    for rank in tl.static_range(few):
        highest, index = tl.max(x, axis=0, return_indices=True)
        tl.store(values + (row * parts + which) * few + rank, highest)
        tl.store(tokens + (row * parts + which) * few + rank, which * part + index)
        x = tl.where(i == index, float("-inf"), x)


@triton.jit
def _rank_all(
    values, tokens, tops, sums, logprobs, chosen, parts,
    few: tl.constexpr, power: tl.constexpr, parts_power: tl.constexpr,
):
    """The highest of all parts of a row, as log-probabilities."""
    row = tl.program_id(0).to(tl.int64)
    i, part = tl.arange(0, power), tl.arange(0, parts_power)
    x = tl.load(values + row * parts * few + i, mask=i < parts * few, other=float("-inf"))
    token = tl.load(tokens + row * parts * few + i, mask=i < parts * few, other=0)
    highest = tl.load(tops + row * parts + part, mask=part < parts, other=-1e30)
    beside = tl.load(sums + row * parts + part, mask=part < parts, other=0.0)
    top = tl.max(highest, axis=0)
    total = top + tl.log(tl.sum(beside * tl.exp(highest - top), axis=0))
    for rank in tl.static_range(few):
        value, index = tl.max(x, axis=0, return_indices=True)
        tl.store(logprobs + row * few + rank, value - total)
        tl.store(chosen + row * few + rank, tl.sum(tl.where(i == index, token, 0), axis=0))
        x = tl.where(i == index, float("-inf"), x)


def add_and_norm(x: Tensor, more: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """x + more, and its norm, B D each."""
    rows, width = x.shape
    out = torch.empty_like(x)
    total = x if more is None else torch.empty_like(x)
    centred = isinstance(norm, nn.LayerNorm)
    bias = norm.bias if centred else norm.weight
    _add_and_norm[(rows,)](
        x, x if more is None else more, norm.weight, bias, total, out, width,
        eps=norm.eps, adds=more is not None, centred=centred, power=triton.next_power_of_2(width),
        precise=precision_of(x),
    )
    return total, out


def small_batch_linear(
    x: Tensor, layer: Any, norm: Any = None, more: Tensor | None = None, activation: str = ""
) -> tuple[Tensor, Tensor]:
    """A linear layer of very few rows: of the norm of x, with an activation or a sum behind.

    Returns the norm too, which whoever adds it later need not compute again.
    """
    (rows, width), length = x.shape, len(layer.weight) // (2 if activation == "swiglu" else 1)
    out, normed = x.new_empty(rows, length), x if norm is None else torch.empty_like(x)
    gain, bias = layer.weight if norm is None else norm.weight, layer.bias
    centred = isinstance(norm, nn.LayerNorm)
    _product[(triton.cdiv(length, 4), rows)](
        x, layer.weight, layer.weight if bias is None else bias, gain,
        norm.bias if centred else gain, x if more is None else more, normed, out, width, length,
        eps=norm.eps if norm is not None else 0.0, norms=norm is not None, centred=centred,
        biased=bias is not None, adds=more is not None, activation=activation,
        full=triton.next_power_of_2(width), part=min(triton.next_power_of_2(width), 1024), block=4,
        precise=precision_of(x),
    )
    return out, normed


def topk_logprobs(logits: Tensor, few: int) -> tuple[Tensor, Tensor]:
    """The few most likely tokens of each row, the most likely first: log-probabilities and tokens.

    Among equals the first one comes first.
    """
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, _PART)
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    values = logits.new_empty(rows, parts, few, dtype=kind)
    tokens = logits.new_empty(rows, parts, few, dtype=torch.long)
    tops, sums = logits.new_empty(2, rows, parts, dtype=kind)
    _rank_part[(rows, parts)](
        logits, logits.stride(0), values, tokens, tops, sums, vocab,
        few=few, part=_PART, precise=precision_of(logits),
    )
    logprobs = logits.new_empty(rows, few, dtype=kind)
    chosen = logits.new_empty(rows, few, dtype=torch.long)
    _rank_all[(rows,)](
        values, tokens, tops, sums, logprobs, chosen, parts,
        few=few, power=triton.next_power_of_2(max(16, parts * few)),
        parts_power=triton.next_power_of_2(parts),
    )
    return logprobs, chosen
