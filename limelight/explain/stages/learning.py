"""How the model learns from one text: its loss, the gradient, and one step of gradient descent."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.explain.focus import Focus
from limelight.explain.gradient import GradientStep, gradient_step, labels_of
from limelight.explain.stage import Cell, Check, Formula, Stage, TableFigure, number
from limelight.explain.stages.extras import loss_formulas, teacher_forcing
from limelight.explain.tokens import pieces_of, visible
from limelight.explain.trace import Trace

_OWN_OUTPUT = (
    "The target here is what the model itself would write, so the loss is low. Give the right "
    "answer with --target to see what there is to learn."
)
_NOT_MASKED = "Nothing is masked here, so every position sees its own answer: write ___ for a word."
_SGD = (
    "This is plain gradient descent with the highest learning rate of the run's schedule, so that "
    "the step is the gradient itself. Training uses Adam, which divides every gradient by its "
    "usual size, and the mean over thousands of texts. Dropout is off here."
)


def loss(focus: Focus) -> Stage:
    """The loss of this text, position by position (sections 5 and 5.4)."""
    trace, (rows, labels) = focus.trace, labels_of(focus.trace)
    logits = _logits(trace, rows)
    forced = teacher_forcing(logits, labels, trace.smoothing)
    smoothed = (1 - trace.smoothing) * forced.losses - trace.smoothing * forced.mean_logprobs
    heads = ["row", "reads", "target", "p(target)", "-log p"]
    cells = zip(_labelled(trace, rows, labels), forced.losses.tolist(), strict=True)
    table: list[list[Cell]] = [[*labelled, math.exp(-x), x] for labelled, x in cells]
    if trace.smoothing:
        heads.append("with smoothing")
        for row, value in zip(table, smoothed.tolist(), strict=True):
            row.append(value)
    title = "the loss of every position"
    wanted, share = torch.tensor(labels), trace.smoothing
    again = F.cross_entropy(logits, wanted, label_smoothing=share)
    return Stage(
        title="The loss: how surprised is the model by the right answer?",
        what=f"{_what_is_read(trace)} The loss of a position is -log p of its true token: 0 if the "
        "model was sure of it, large if it thought it unlikely. Their mean is what training makes "
        "smaller.",
        formulas=loss_formulas(forced, trace.smoothing),
        figures=[TableFigure(title, heads, table, share=3, names=("loss",))],
        checks=[focus.check("the mean is torch's cross-entropy", smoothed.mean(), again)],
        notes=_target_notes(trace),
    )


def learning(focus: Focus) -> Stage:
    """The gradient of that loss, and one step along it."""
    trace, rate = focus.trace, focus.trace.trained.learning_rate
    rows, labels = labels_of(trace)
    step = gradient_step(trace, rate)
    return Stage(
        title="Learning: every weight moves a little against its gradient",
        what="The gradient says how much the loss changes if a weight changes. Back-propagation "
        "finds it for all weights in one pass backwards. One step along it makes the right answer "
        "more likely. At a token, it says how much a change of its embedding would matter. The "
        "model itself stays as it was.",
        formulas=_step_formulas(step, rate),
        figures=[
            _before_and_after(trace, step, rows, labels),
            *(_token_table(focus, step, side) for side in step.token_gradients),
            _matrix_table(step, rate),
        ],
        checks=_gradient_checks(focus, step, rows, labels),
        notes=[*_target_notes(trace), _SGD],
    )


def _logits(trace: Trace, rows: Sequence[int]) -> Tensor:
    """n V: those that count in the loss."""
    return (trace.logits[None] if trace.trained.classes else trace.logits[list(rows)]).double()


def _labelled(trace: Trace, rows: Sequence[int], labels: Sequence[int]) -> list[list[Cell]]:
    """For each of these rows its number, the token it reads, and the true token."""
    if trace.trained.classes:
        return [["0", trace.source.labels[0], visible(trace.trained.classes[labels[0]])]]
    read = (trace.target or trace.source).labels
    pieces = pieces_of(trace.trained.tokenizer, labels)
    return [
        [str(row), read[row], trace.label(row, piece)]
        for row, piece in zip(rows, pieces, strict=True)
    ]


def _what_is_read(trace: Trace) -> str:
    if trace.trained.classes:
        return "Training knows the class of the text."
    if trace.trained.family == "encoder-only":
        return "Training hides some tokens and knows what they are; only these count."
    return "In training the decoder reads the true tokens (teacher forcing)."


def _target_notes(trace: Trace) -> list[str]:
    encoder = trace.trained.family == "encoder-only"
    if (
        encoder
        and not trace.trained.classes
        and trace.trained.tokenizer.mask not in trace.source.ids
    ):
        return [_NOT_MASKED]
    given = trace.traced_text.labels if encoder else trace.traced_text.mode == "given"
    return [] if given else [_OWN_OUTPUT]


def _step_formulas(step: GradientStep, rate: float) -> list[Formula]:
    sizes = {name: gradient.abs().max().item() for name, gradient in step.gradients.items()}
    name = max(sizes, key=lambda name: sizes[name])
    at = int(step.gradients[name].abs().argmax())
    weight, slope = (x[name].flatten()[at].item() for x in (step.weights, step.gradients))
    count = sum(weight.numel() for weight in step.weights.values())
    squared, new = step.squared_norm, weight - rate * slope
    return [
        Formula(
            "new weight = weight - rate x gradient; here where the gradient is largest",
            f"{name}[{at}]: {number(weight)} - {rate:.3g} x {number(slope)} = {number(new)}",
            {"weight": weight, "rate": rate, "gradient": slope, "new": new},
        ),
        Formula(
            "norm of the gradient = sqrt(sum of the squares of all)",
            f"sqrt({number(squared)}) = {number(math.sqrt(squared))}, over {count:,} weights",
            {"squared": squared, "norm": math.sqrt(squared), "count": count},
        ),
        Formula(
            "new loss = about loss - rate x norm^2, if the step is small",
            f"{number(step.loss)} - {rate:.3g} x {number(squared)} = "
            f"{number(step.loss - rate * squared)}, and in fact {number(step.loss_after)}",
            {"loss": step.loss, "expected": step.loss - rate * squared, "after": step.loss_after},
        ),
    ]


def _before_and_after(
    trace: Trace, step: GradientStep, rows: Sequence[int], labels: Sequence[int]
) -> TableFigure:
    wanted = torch.tensor(labels)[:, None]
    both = [logits.cpu().double().softmax(dim=-1) for logits in (step.logits, step.logits_after)]
    before, after = (p.gather(1, wanted)[:, 0].tolist() for p in both)
    cells = zip(_labelled(trace, rows, labels), before, after, strict=True)
    table: list[list[Cell]] = [[*labelled, p, q - p, q] for labelled, p, q in cells]
    heads = ["row", "reads", "target", "p before", "change", "p after"]
    title = "probability of the true tokens, before and after one step"
    return TableFigure(title, heads, table, share=5, names=("step",))


def _token_table(focus: Focus, step: GradientStep, side: str) -> TableFigure:
    sizes = step.token_gradients[side].double().norm(dim=-1)
    shares = (sizes / sizes.sum().clamp(min=1e-300)).tolist()
    labels = focus.words(side).labels
    rows: list[list[Cell]] = [
        [str(i), labels[i], size, shares[i]] for i, size in enumerate(sizes.tolist())
    ]
    title = f"gradient at each token that the {side} reads"
    heads = ["position", "token", "norm", "share"]
    return TableFigure(title, heads, rows, share=3, names=(f"{side} tokens",))


def _matrix_table(step: GradientStep, rate: float) -> TableFigure:
    """A row for every matrix, and one for all biases and norms; the largest first."""
    rows, total, others = list[list[Cell]](), step.squared_norm or 1.0, 0.0
    for name, gradient in step.gradients.items():
        squared = gradient.double().square().sum().item()
        if gradient.dim() < 2:
            others += squared
            continue
        size, weight = math.sqrt(squared), step.weights[name].double().norm().item()
        shape = "\u00a0x\u00a0".join(map(str, gradient.shape))
        moved = 100 * rate * size / (weight or 1.0)
        rows.append([size, moved, squared / total, shape, name])
    rows.append([math.sqrt(others), "", others / total, "", "all biases and norms"])
    rows.sort(key=lambda row: -float(str(row[0])))
    title = "gradient at each weight matrix, the largest first (shares of norm^2)"
    heads = ["norm", "moved by %", "share", "shape", "weights"]
    return TableFigure(title, heads, rows, share=2, names=("gradients",))


def _gradient_checks(
    focus: Focus, step: GradientStep, rows: Sequence[int], labels: Sequence[int]
) -> list[Check]:
    """With the label (smoothed) as a distribution, the gradient at the logits is (p - label)/n."""
    logits, smoothing = _logits(focus.trace, rows), focus.trace.smoothing
    label = F.one_hot(torch.tensor(labels), logits.size(1)).double() * (1 - smoothing)
    label += smoothing / logits.size(1)
    again = (logits.softmax(dim=-1) - label) / len(labels)
    found, same = step.logits_gradient.cpu().double(), step.logits.cpu().double()
    return [
        focus.check("the gradient at the logits is (p - label) / positions", found, again),
        focus.check("the logits are those of the walk", same, logits),
    ]
