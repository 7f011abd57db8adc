"""How wrong is a prediction? Cross-entropy with label smoothing (section 5.4), as a sum.

The logits of all positions are the largest thing in training: positions x vocabulary. They are
never whole in memory here. The classifier and the loss are computed a few thousand positions at a
time, and the gradient along with them, while the logits are at hand.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

ROOM = {"cuda": 2**27, "mps": 2**25, "cpu": 2**24}  # logits at a time, as memory goes
IGNORED = -100  # what a position holds that nothing is asked of


class Score(NamedTuple):
    """What a batch says about a model: sums over what was asked for, and how much that was."""

    loss: Tensor  # with label smoothing: what is made smaller
    surprise: Tensor  # without: the negative log-probability of the right answers
    right: Tensor  # answers that were the model's first choice
    asked: Tensor  # how many answers were wanted


def score_tokens(
    states: Tensor,  # ... D
    weight: Tensor,  # V D, of the classifier
    bias: Tensor | None,  # V
    answers: Tensor,  # ... in 0 to V - 1, or IGNORED
    smoothing: float = 0.0,
) -> Score:
    """How well a classifier on these states gives the answers."""
    states, answers = states.flatten(0, -2), answers.flatten()
    learning = torch.is_grad_enabled()  # inside of a Function it never is
    loss, surprise, right = chunked_loss(states, weight, bias, answers, smoothing, learning)
    return Score(loss, surprise, right, (answers != IGNORED).sum())


def score_plainly(
    states: Tensor, weight: Tensor, bias: Tensor | None, answers: Tensor, smoothing: float = 0.0
) -> Score:
    """The same in the open: all logits at once, and torch's own loss."""
    logits, answers = F.linear(states, weight, bias).flatten(0, -2), answers.flatten()
    loss = F.cross_entropy(
        logits, answers, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    with torch.no_grad():
        surprise = F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")
        right = (logits.argmax(dim=-1) == answers).sum()
    return Score(loss, surprise, right, (answers != IGNORED).sum())


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
        smoothing: float,
        learning: bool,
    ) -> tuple[Tensor, ...]:
        fewer = computed_in(states)
        matrix, shift = weight.to(fewer), None if bias is None else bias.to(fewer)
        grads = [
            torch.zeros_like(x) if learning and needed and x is not None else None
            for x, needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        sums = []
        rows = max(1, ROOM[states.device.type] // weight.size(0))
        for begin in range(0, max(1, states.size(0)), rows):  # nothing at all is one chunk too
            part = slice(begin, begin + rows)
            some = states[part].to(fewer)
            logits = F.linear(some, matrix, shift)
            sums.append(score_logits(logits, answers[part], smoothing))
            if any(grad is not None for grad in grads):
                add_gradients(grads, part, some, matrix, slope(logits, answers[part], smoothing))
        ctx.save_for_backward(*grads)
        return torch.stack(sums).sum(dim=0).unbind()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        made = [None if grad is None else grad * upstream for grad in ctx.saved_tensors]
        return (*made, None, None, None)


def score_logits(logits: Tensor, answers: Tensor, smoothing: float) -> Tensor:
    """Loss, surprise and number of right answers of some positions, 3."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    asked = answers != IGNORED
    wanted = logits.gather(1, answers.clamp(min=0)[:, None])[:, 0]
    total = logits.logsumexp(dim=-1)
    right = logits.argmax(dim=-1) == answers  # of equal logits only one is the first choice
    surprise = ((total - wanted) * asked).sum()
    spread = ((total - logits.mean(dim=-1)) * asked).sum() if smoothing else surprise
    loss = (1 - smoothing) * surprise + smoothing * spread
    return torch.stack([loss, surprise, right.sum().to(loss.dtype)])


def slope(logits: Tensor, answers: Tensor, smoothing: float) -> Tensor:
    """The gradient of the loss of some positions with respect to their logits: n V."""
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    made = logits.softmax(dim=-1, dtype=kind)
    if smoothing:
        made.sub_(smoothing / logits.size(-1))
    rows = torch.arange(len(answers), device=answers.device)
    made[rows, answers.clamp(min=0)] -= 1 - smoothing
    return made.mul_((answers != IGNORED)[:, None]).to(logits.dtype)


chunked_loss: Any = ChunkedLoss.apply


def computed_in(tensor: Tensor) -> torch.dtype:
    """The type that products with such a tensor are computed in: autocast may want fewer bits."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


def add_gradients(
    grads: list[Tensor | None], part: slice, states: Tensor, weight: Tensor, slope: Tensor
) -> None:
    """What the slope of some positions' loss means for their states, the weights and the bias."""
    for_states, for_weight, for_bias = grads
    if for_states is not None:
        for_states[part] = slope @ weight
    if for_weight is not None:
        for_weight += slope.T @ states
    if for_bias is not None:
        for_bias += slope.sum(dim=0)
