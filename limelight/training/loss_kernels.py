"""Triton kernels of the loss: a row of logits becomes its loss and, in place, its gradient.

They do what `cross_entropy_chunk` does, in two passes over each row: one for the sum, one for the
gradient. The compiler makes such passes too, but updates a maximum for every number of a row, where
one for a few thousand is enough.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Arguments of kernels are grouped: tensors and sizes, then compile-time constants.
# fmt: off
_PART = 4096  # tokens of the vocabulary at a time
_TILE = 128


@triton.jit
def _loss_of_row(
    logits, labels, grads, sums, vocab: tl.constexpr,
    smoothing: tl.constexpr, scale: tl.constexpr, with_grad: tl.constexpr, part: tl.constexpr,
):
    """Loss, nll and whether the label was the most likely token; the gradient times `scale`."""
    row = tl.program_id(0).to(tl.int64)
    own, d = logits + row * vocab, tl.arange(0, part)
    label = tl.load(labels + row)
    counts = label >= 0
    top = -float("inf")
    total, every = tl.zeros([part], tl.float32), tl.zeros([part], tl.float32)
    for first in range(0, vocab, part):
        inside = first + d < vocab
        x = tl.load(own + first + d, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
        if smoothing > 0:
            every += tl.where(inside, x, 0.0)
    log_total = tl.log(tl.sum(total, axis=0)) + top
    nll = log_total - tl.load(own + tl.maximum(label, 0)).to(tl.float32)
    loss = (1 - smoothing) * nll
    if smoothing > 0:
        loss += smoothing * (log_total - tl.sum(every, axis=0) / vocab)
    best = tl.zeros([part], tl.int32) + vocab  # the first of the most likely tokens
    for first in range(0, vocab, part):
        token = first + d
        x = tl.load(own + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
        best = tl.where(x == top, tl.minimum(best, token), best)
        if with_grad:
            grad = tl.exp(x - log_total) - smoothing / vocab
            grad = tl.where(token == label, grad - (1 - smoothing), grad) * scale
            grad = tl.where(counts, grad, 0.0)
            tl.store(grads + row * vocab + token, grad.to(grads.dtype.element_ty), token < vocab)
    correct = (tl.min(best, axis=0) == label).to(tl.float32)
    tl.store(sums + row * 3, tl.where(counts, loss, 0.0))
    tl.store(sums + row * 3 + 1, tl.where(counts, nll, 0.0))
    tl.store(sums + row * 3 + 2, correct)


@triton.jit
def _turn(x, out, rows, columns, tile: tl.constexpr):
    """A tile of a matrix, transposed."""
    r = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    c = tl.program_id(1).to(tl.int64) * tile + tl.arange(0, tile)
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    values = tl.load(x + r[:, None] * columns + c[None, :], mask=inside, other=0)
    inside = (c < columns)[:, None] & (r < rows)[None, :]
    tl.store(out + c[:, None] * rows + r[None, :], tl.trans(values), mask=inside)


# fmt: on
def loss_of_rows(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    with_grad: bool,
    grads: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """`cross_entropy_chunk`; without `grads` the gradient replaces the logits.

    It is 0 where a label is ignored.
    """
    rows, vocab = logits.shape
    sums = torch.empty(rows, 3, device=logits.device, dtype=torch.float32)
    grads = logits if grads is None else grads
    if rows:
        launch: Any = _loss_of_row[(rows,)]
        how = {"smoothing": smoothing, "scale": scale, "with_grad": with_grad, "part": _PART}
        launch(logits, labels, grads, sums, vocab=vocab, **how, num_warps=8)
    return sums.sum(dim=0), grads if with_grad else None


def transposed(x: Tensor) -> Tensor:
    """A contiguous matrix of 8 bits, transposed."""
    rows, columns = x.shape
    out = torch.empty(columns, rows, device=x.device, dtype=x.dtype)
    launch: Any = _turn[(triton.cdiv(rows, _TILE), triton.cdiv(columns, _TILE))]
    launch(x.view(torch.uint8), out.view(torch.uint8), rows, columns, tile=_TILE, num_warps=8)
    return out
