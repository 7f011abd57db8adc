"""The loss of a traced text, its gradient, and one step along it; the model stays as it is.

The forward pass gets other weights in place of the model's own, so there is nothing to undo.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from limelight.explain.trace import Trace, evaluating
from limelight.model.taps import Recorder

_Weights = dict[str, Tensor]


@dataclass(frozen=True)
class GradientStep:
    """One step of gradient descent on a single text."""

    rows: list[int]  # those that count in the loss, n
    labels: list[int]
    weights: _Weights  # before the step
    gradients: _Weights
    logits_gradient: Tensor  # n V
    token_gradients: dict[str, Tensor]  # of the embedding of each token, T D; by side
    logits: Tensor  # n V: before the step
    logits_after: Tensor
    loss: float  # as training computes it
    loss_after: float

    @property
    def squared_norm(self) -> float:
        """Of all gradients together: per unit of the rate, the loss falls by this at first."""
        return sum(self.squares.values())

    @cached_property
    def squares(self) -> dict[str, float]:
        """The squared norm of each gradient; a model of 135 million weights is read only once."""
        return {name: norm_of(gradient) ** 2 for name, gradient in self.gradients.items()}


def norm_of(values: Tensor) -> float:
    """The Euclidean norm, summed in double precision without a copy of the values."""
    return torch.linalg.vector_norm(values, dtype=torch.float64).item()


def labels_of(trace: Trace) -> tuple[list[int], list[int]]:
    """The rows of the logits that count in the loss, and the true token or class of each."""
    given = list(trace.traced_text.labels)
    if trace.trained.classes:
        return [0], given or [int(trace.logits.argmax())]
    if trace.trained.family == "encoder-only":
        rows = [step.row for step in trace.steps]
        hidden = trace.trained.tokenizer.mask in trace.source.ids
        best = [step.chosen.token for step in trace.steps]
        return rows, given or (best if hidden else [trace.source.ids[row] for row in rows])
    # A language model learns from all of a text; an answer's loss does not count its question.
    first = 0 if trace.trained.kind == "texts" else trace.traced_text.given
    return list(range(first, len(trace.answers))), list(trace.answers.ids[first:])


def gradient_step(trace: Trace, rate: float) -> GradientStep:
    """The gradient of the text's loss, and the text once more after `w - rate x gradient`."""
    rows, labels = labels_of(trace)
    with torch.inference_mode(False), torch.enable_grad(), evaluating(trace.model):
        own = trace.model.named_parameters()
        weights = {name: weight.detach().requires_grad_() for name, weight in own}
        logits, embedded = _forward(trace, weights, rows)
        loss = _loss(logits, labels, trace.smoothing)
        wanted = [logits, *embedded.values(), *weights.values()]
        found = torch.autograd.grad(loss, wanted, materialize_grads=True)
        for_logits, for_tokens = found[0], found[1 : len(embedded) + 1]
        gradients = dict(zip(weights, found[len(embedded) + 1 :], strict=True))
        with torch.no_grad():
            moved = {n: w.add(gradients[n], alpha=-rate) for n, w in weights.items()}
            after, _ = _forward(trace, moved, rows)
            loss_after = _loss(after, labels, trace.smoothing)
    before = {name: weight.detach() for name, weight in weights.items()}
    at_tokens = {side: g[0] for side, g in zip(embedded, for_tokens, strict=True)}
    both, losses = (logits.detach(), after), (loss.item(), loss_after.item())
    return GradientStep(rows, labels, before, gradients, for_logits, at_tokens, *both, *losses)


def _loss(logits: Tensor, labels: list[int], smoothing: float) -> Tensor:
    wanted = torch.tensor(labels, device=logits.device)
    return F.cross_entropy(logits, wanted, label_smoothing=smoothing)


def _forward(trace: Trace, weights: _Weights, rows: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits that count, n V, and the embeddings of the tokens, by side: B T D."""
    with Recorder(trace.model, "*.embedding", edits=trace.edits) as recorder:
        logits: Tensor = functional_call(trace.model, weights, tuple(trace.inputs))
    embedded = {name.partition(".")[0]: value for name, value in recorder.values.items()}
    return logits if trace.trained.classes else logits[0, rows], embedded
