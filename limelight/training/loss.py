"""How wrong is a prediction? Cross-entropy with label smoothing (section 5.4), as a sum.

The logits of all positions are the largest thing in training: positions x vocabulary. They are
never whole in memory here. The classifier and the loss are computed a few thousand positions at a
time, and the gradient along with them, while the logits are at hand.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.model.topk import fast_argmax

IGNORED = -100  # what a position holds that nothing is asked of
_Judge = Callable[..., tuple[Tensor, Tensor | None]]


class LossSums(NamedTuple):
    """What a batch says about a model: sums over what was asked for, and how much that was."""

    loss: Tensor  # with label smoothing: what is made smaller
    nll: Tensor  # without: the negative log-probability of the right answers
    correct: Tensor  # answers that were the model's first choice
    total: Tensor  # how many answers were wanted


def chunked_cross_entropy(
    states: Tensor,  # ... D
    weight: Tensor,  # V D, of the classifier
    bias: Tensor | None,  # V
    answers: Tensor,  # ... in 0 to V - 1, or IGNORED
    smoothing: float = 0.0,
    rdrop_alpha: float = 0.0,
    judge: _Judge | None = None,  # a compiled one, perhaps
) -> LossSums:
    """How well a classifier on these states gives the answers.

    With `rdrop_alpha`, both halves of the batch are the same texts: see `disrdrop_alpha`.
    """
    states, answers = states.flatten(0, -2), answers.flatten()
    if rdrop_alpha:
        states, answers = _interleave_halves(states), _interleave_halves(answers)
    judging = partial(judge or cross_entropy_chunk, smoothing=smoothing, rdrop_alpha=rdrop_alpha)
    learning = torch.is_grad_enabled()  # inside of a Function it never is
    loss, surprise, right = _chunked_loss(states, weight, bias, answers, judging, learning)
    return LossSums(loss, surprise, right, (answers != IGNORED).sum())


def _interleave_halves(both: Tensor) -> Tensor:
    """Two halves, a1 a2 ... b1 b2 ..., as pairs: a1 b1 a2 b2 ..."""
    return torch.stack(both.chunk(2), dim=1).flatten(0, 1)


def cross_entropy_reference(
    states: Tensor, weight: Tensor, bias: Tensor | None, answers: Tensor, smoothing: float = 0.0
) -> LossSums:
    """The same in the open: all logits at once, and torch's own loss."""
    logits, answers = F.linear(states, weight, bias).flatten(0, -2), answers.flatten()
    total = partial(F.cross_entropy, ignore_index=IGNORED, reduction="sum")
    loss = total(logits, answers, label_smoothing=smoothing)
    surprise = total(logits.detach(), answers)
    right = (logits.argmax(dim=-1) == answers).sum()
    return LossSums(loss, surprise, right, (answers != IGNORED).sum())


class ChunkedLoss(torch.autograd.Function):
    """Classifier and loss, some positions at a time; gradients are made on the way forward.

    Of the loss with respect to the logits the gradient is: softmax - what was wanted. It needs the
    logits, so it is computed while they are there; going backward only multiplies.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # N D
        weight: Tensor,
        bias: Tensor | None,
        answers: Tensor,  # N
        judge: _Judge,
        learning: bool,
    ) -> tuple[Tensor, ...]:
        fewer = _autocast_dtype(states)
        matrix, shift = weight.to(fewer), None if bias is None else bias.to(fewer)
        inputs = zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        grads = [
            torch.zeros_like(x) if learning and needed and x is not None else None
            for x, needed in inputs
        ]
        sums = []
        rows = chunk_rows(states.size(0), weight.size(0), states.device)
        rows += rows % 2  # two that are to agree stay together
        for begin in range(0, max(1, states.size(0)), rows):  # nothing at all is one chunk too
            part = slice(begin, begin + rows)
            some = states[part].to(fewer)
            logits = F.linear(some, matrix, shift)
            judged, slope = judge(logits, answers[part], learning=learning)
            sums.append(judged)
            if slope is not None:
                accumulate_grads(grads, part, some, matrix, slope, answers[part] != IGNORED)
        ctx.save_for_backward(*grads)
        totals = torch.stack(sums).sum(dim=0)
        return tuple(total.clone() for total in totals)  # FSDP warns of views

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        made = [None if grad is None else grad * upstream for grad in ctx.saved_tensors]
        return (*made, None, None, None)


def chunk_rows(positions: int, vocab: int, device: torch.device) -> int:
    """Positions at a time: as many as there is room for, in chunks of much the same size.

    Multiples of 128, which the matrix units of a GPU like.
    """
    most = max(1, _max_logits(vocab, device) // vocab)
    most -= most % 128 if most > 128 else 0
    chunks = max(1, -(-positions // most))
    return min(most, -(-positions // (128 * chunks)) * 128) or 1


def _max_logits(vocab: int, device: torch.device) -> int:
    """How many logits may be there at a time.

    One takes up to ten bytes on its way, so on an NVIDIA GPU they take 4% of the memory. On a CPU
    they should stay in its cache; but as each chunk reads the whole classifier, it needs some rows.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 256
    return 2**25 if device.type == "mps" else min(max(512 * vocab, 2**22), 2**24)


def cross_entropy_chunk(
    logits: Tensor, answers: Tensor, smoothing: float, learning: bool, rdrop_alpha: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """Of some positions: loss, surprise and right answers (3), and the slope of the loss (n V).

    The slope of positions that nothing is asked of means nothing.
    """
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    asked, place = answers != IGNORED, answers.clamp(min=0)[:, None]
    p, first = logits.softmax(dim=-1, dtype=kind), fast_argmax(logits)[:, None]
    # log p = logit - total, and the largest p is never so small that its logarithm is inexact
    total = logits.gather(1, first).to(kind) - p.gather(1, first).log()
    right = (first[:, 0] == answers).sum()
    surprise = ((total - logits.gather(1, place))[:, 0] * asked).sum()
    spread = ((total[:, 0] - logits.mean(dim=-1, dtype=kind)) * asked).sum()
    loss = (1 - smoothing) * surprise + smoothing * spread
    apart = _rdrop_kl(logits - total) if rdrop_alpha else None
    if apart is not None:
        loss = loss + rdrop_alpha * (apart[0] * asked[::2]).sum()
    sums = torch.stack([loss, surprise, right.to(kind)])
    if not learning:
        return sums, None
    slope = p
    if apart is not None:
        slope.add_(apart[1], alpha=rdrop_alpha)
    if smoothing:
        slope.sub_(smoothing / logits.size(-1))
    slope.scatter_add_(1, place, torch.full_like(total, smoothing - 1))
    return sums, slope.to(logits.dtype)


def cross_entropy_chunk_functional(
    logits: Tensor, answers: Tensor, smoothing: float, learning: bool, rdrop_alpha: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """The same without a step in place: a compiler makes two passes over the logits of it.

    An answer is the first choice if it is as high as the highest, and none before it is. That is
    seen in the second pass; `argmax` would carry places along through the first, which takes long.
    """
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logits, given = logits.to(kind), logits.dtype
    asked, place = answers != IGNORED, answers.clamp(min=0)[:, None]
    top = logits.amax(dim=-1, keepdim=True)
    total = (logits - top).exp().sum(dim=-1, keepdim=True).log() + top
    here = torch.arange(logits.size(-1), device=logits.device)
    wanted = logits.gather(1, place)
    before = ((logits == top) & (here < place)).any(dim=-1)
    right = ((wanted == top)[:, 0] & ~before & asked).sum()
    surprise = ((total - wanted)[:, 0] * asked).sum()
    spread = ((total[:, 0] - logits.mean(dim=-1)) * asked).sum() if smoothing else surprise
    loss = (1 - smoothing) * surprise + smoothing * spread
    apart = _rdrop_kl(logits - total) if rdrop_alpha else None
    if apart is not None:
        loss = loss + rdrop_alpha * (apart[0] * asked[::2]).sum()
    sums = torch.stack([loss, surprise, right.to(kind)])
    if not learning:
        return sums, None
    hit = (here == place).to(kind)
    slope = (logits - total).exp() - smoothing / logits.size(-1) - (1 - smoothing) * hit
    if apart is not None:
        slope = slope + rdrop_alpha * apart[1]
    return sums, slope.to(given)


def _rdrop_kl(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """R-Drop (Liang et al. 2021): how far two predictions for one place are apart, and its slope.

    Dropout makes them differ, rows 2i and 2i + 1. The measure is the mean of both ways to compare
    them, (KL(p, q) + KL(q, p)) / 2, one for each pair; its slope is for all rows, n V.
    """
    one, other = log_p[0::2], log_p[1::2]
    p, q, apart = one.exp(), other.exp(), one - other
    there, back = (p * apart).sum(dim=-1), -(q * apart).sum(dim=-1)
    for_one = p * (apart - there[:, None]) + p - q
    for_other = q * (-apart - back[:, None]) + q - p
    slope = torch.stack([for_one, for_other], dim=1).flatten(0, 1)
    return (there + back) / 2, slope / 2


def accumulate_grads(
    grads: list[Tensor | None],
    part: slice,
    states: Tensor,
    weight: Tensor,
    grad: Tensor,
    asked: Tensor,
) -> None:
    """What the slope of some positions' loss means for their states, the weights and the bias."""
    for_states, for_weight, for_bias = grads
    asked = asked.to(grad.dtype)
    if for_states is not None:
        for_states[part] = (grad @ weight) * asked[:, None]
    if for_weight is not None and for_weight.dtype == grad.dtype:
        for_weight.addmm_(grad.T, states * asked[:, None])
    elif for_weight is not None:  # autocast: the weights themselves have more bits
        for_weight += grad.T @ (states * asked[:, None])
    if for_bias is not None:
        for_bias += asked @ grad


# Compiled models leave out this part, in which the number of chunks depends on the batch.
_disable: Any = torch.compiler.disable
_chunked_loss: Any = _disable(ChunkedLoss.apply)


def _autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The type that products with such a tensor are computed in: autocast may want fewer bits."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
