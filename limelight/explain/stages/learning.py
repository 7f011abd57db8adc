"""How the model learns from one text: teacher forcing, loss, gradient, and one step along it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.explain.focus import Focus
from limelight.explain.gradient import GradientStep, gradient_step, labels_of, norm_of
from limelight.explain.stage import (
    Cell,
    Check,
    Formula,
    Stage,
    TableFigure,
    factor,
    number,
    significant,
)
from limelight.explain.tokens import visible
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


class _TeacherForcing(NamedTuple):
    """The loss of every position, given the true tokens before it; all T, in nats."""

    losses: Tensor  # negative log-likelihood of the true token
    best: Tensor  # the most likely token (argmax)
    best_logprobs: Tensor
    uniform: Tensor  # the mean loss over all tokens of the vocabulary
    smoothed: Tensor  # the loss with label smoothing


def teacher_forcing(logits: Tensor, targets: Sequence[int], smoothing: float) -> _TeacherForcing:
    """Score the true tokens `targets` by the rows of `logits` (T V) that predict them.

    With label smoothing, a small weight is spread over all tokens alike (section 5.4).
    """
    logprobs = logits.double().log_softmax(dim=-1).cpu()
    losses = -logprobs.gather(1, torch.tensor(list(targets))[:, None])[:, 0]
    best, uniform = logprobs.max(dim=-1), -logprobs.mean(dim=-1)
    smoothed = (1 - smoothing) * losses + smoothing * uniform
    return _TeacherForcing(losses, best.indices, best.values, uniform, smoothed)


def teacher(focus: Focus) -> Stage:
    """Training predicts all positions at once, each from the true tokens before it."""
    trace, given = focus.trace, focus.trace.traced_text.given
    rows, labels = range(given, len(trace.answers)), trace.answers.ids[given:]
    logits = _logits(trace, rows)
    forced = teacher_forcing(logits, labels, trace.smoothing)
    heads = ["row", "input", "target", "p(target)", "-log p"]
    table = _loss_rows(trace, rows, labels, forced.losses)
    title = "input shifted right, target, loss"
    again = F.cross_entropy(logits, torch.tensor(labels))
    return Stage(
        title="Teacher forcing: all positions at once, given the true tokens",
        what="In training the decoder reads the true text, shifted right by one, whatever it would "
        "have predicted (teacher forcing). One parallel pass predicts the next token at every "
        "position. The loss is the mean negative log-likelihood of the true tokens.",
        formulas=_loss_formulas(forced, trace.smoothing),
        figures=[TableFigure(title, heads, table, share=3, names=("teacher",))],
        checks=[focus.check("the mean is torch's cross-entropy", forced.losses.mean(), again)],
        notes=["The mean is over the real tokens of all texts in a batch; padding does not count."],
    )


def _loss_formulas(forced: _TeacherForcing, smoothing: float) -> list[Formula]:
    """The mean loss, and with label smoothing what training minimizes."""
    total, count = forced.losses.sum().item(), len(forced.losses)
    means = (forced.losses.mean(), forced.uniform.mean(), forced.smoothed.mean())
    mean, uniform, smoothed = (x.item() for x in means)
    numbers = {"sum": total, "count": count, "mean": mean}
    filled = f"{significant(total)} / {count} = {significant(mean)}"
    plain = Formula("loss = mean of -log p(target)", filled, numbers)
    if not smoothing:
        return [plain]
    both = Formula(
        f"with label smoothing e = {smoothing:g}, as in this model's training: (1 - e) x loss + e "
        "x the mean over all tokens",
        f"{number(1 - smoothing)} x {number(mean)} + {number(smoothing)} x {number(uniform)} = "
        f"{number(smoothed)}",
        {"share": smoothing, "plain": mean, "spread": uniform, "smoothed": smoothed},
    )
    return [plain, both]


def loss(focus: Focus) -> Stage:
    """The loss of this text, position by position (sections 5 and 5.4)."""
    trace, (rows, labels) = focus.trace, labels_of(focus.trace)
    logits = _logits(trace, rows)
    forced = teacher_forcing(logits, labels, trace.smoothing)
    heads, columns = ["row", "reads", "target", "p(target)", "-log p"], [forced.losses]
    if trace.smoothing:
        heads, columns = [*heads, "with smoothing"], [*columns, forced.smoothed]
    table, title = _loss_rows(trace, rows, labels, *columns), "the loss of every position"
    title = "the loss of the text" if trace.trained.classes else title
    again = F.cross_entropy(logits, torch.tensor(labels), label_smoothing=trace.smoothing)
    return Stage(
        title="The loss: how surprised is the model by the right answer?",
        what=f"{_what_is_read(trace)} 0 if the model was sure of it, large if it thought it "
        "unlikely. Training lowers the mean.",
        formulas=_loss_formulas(forced, trace.smoothing),
        figures=[TableFigure(title, heads, table, share=3, names=("loss",))],
        checks=[focus.check("the mean is torch's cross-entropy", forced.smoothed.mean(), again)],
        notes=_target_notes(trace),
    )


def learning(focus: Focus) -> Stage:
    """The gradient of that loss, and one step along it."""
    trace, rate = focus.trace, focus.trace.trained.learning_rate
    step = gradient_step(trace, rate)
    return Stage(
        title="Learning: every weight moves a little against its gradient",
        what="The gradient says how much the loss changes if a weight changes. Back-propagation "
        "finds it for all weights in one pass backwards. A small step against it lowers the loss. "
        "At a token, it says how much a change of its embedding would matter. The model itself "
        "stays as it was.",
        formulas=_step_formulas(step, rate),
        figures=[
            _before_and_after(trace, step),
            *(_token_table(focus, step, side) for side in step.token_gradients),
            _matrix_table(step, rate),
        ],
        checks=_gradient_checks(focus, step),
        notes=[*_target_notes(trace), *_smoothing_notes(trace), _SGD],
    )


def _logits(trace: Trace, rows: Sequence[int]) -> Tensor:
    """n V: those that count in the loss."""
    return (trace.logits[None] if trace.trained.classes else trace.logits[list(rows)]).double()


def _labelled(trace: Trace, rows: Sequence[int], labels: Sequence[int]) -> list[list[Cell]]:
    """For each of these rows its number, the token it reads, and the true token."""
    if trace.trained.classes:
        return [["0", trace.source.labels[0], visible(trace.trained.classes[labels[0]])]]
    read = (trace.target or trace.source).labels
    pairs = zip(rows, trace.trained.tokenizer.pieces(labels), strict=True)
    return [[str(row), read[row], trace.label(row, piece)] for row, piece in pairs]


def _loss_rows(
    trace: Trace, rows: Sequence[int], labels: Sequence[int], *losses: Tensor
) -> list[list[Cell]]:
    """Rows with the probability of the true token, and these losses; the first is -log of it."""
    values = zip(*(loss.tolist() for loss in losses), strict=True)
    both = zip(_labelled(trace, rows, labels), values, strict=True)
    return [[*labelled, math.exp(-found[0]), *found] for labelled, found in both]


def _what_is_read(trace: Trace) -> str:
    if trace.trained.classes:
        return "Training knows the class of the text. The loss is -log p of this class:"
    if trace.trained.family == "encoder-only":
        read = "Training hides some tokens and knows what they are; only these count."
    else:
        read = "In training the decoder reads the true tokens (teacher forcing)."
    return f"{read} The loss of a position is -log p of its true token:"


def _target_notes(trace: Trace) -> list[str]:
    trained, encoder = trace.trained, trace.trained.family == "encoder-only"
    if encoder and not trained.classes and trained.tokenizer.mask not in trace.source.ids:
        return [_NOT_MASKED]
    given = trace.traced_text.labels if encoder else trace.traced_text.mode == "given"
    return [] if given else [_OWN_OUTPUT]


def _smoothing_notes(trace: Trace) -> list[str]:
    """Why a step on this text can make its tokens less likely."""
    wanted = f"With label smoothing the target is {number(1 - trace.smoothing)}, not 1: "
    return [f"{wanted}a probability above it tends to fall."] if trace.smoothing else []


def _step_formulas(step: GradientStep, rate: float) -> list[Formula]:
    sizes = {name: gradient.abs().max().item() for name, gradient in step.gradients.items()}
    name = max(sizes, key=lambda name: sizes[name])
    at = int(step.gradients[name].abs().argmax())
    weight, slope = (x[name].flatten()[at].item() for x in (step.weights, step.gradients))
    count = sum(weight.numel() for weight in step.weights.values())
    squared, new = step.squared_norm, weight - rate * slope
    numbers = {"squared": squared, "norm": math.sqrt(squared), "count": count}
    root = significant(math.sqrt(squared))
    norm = f"sqrt({significant(squared)}) = {root}, over {count:,} weights"
    digits, fine = _digits(rate * slope), _digits(rate * squared)
    expected = step.loss - rate * squared
    return [
        Formula(
            "new weight = weight - rate x gradient; here where the gradient is largest",
            f"{name}[{at}]: {number(weight, digits)} - {rate:.3g} x {factor(slope, significant)} = "
            f"{number(new, digits)}",
            {"weight": weight, "rate": rate, "gradient": slope, "new": new},
        ),
        Formula("norm of the gradient = sqrt(sum of the squares of all)", norm, numbers),
        Formula(
            "new loss = about loss - rate x norm^2, if the step is small",
            f"{number(step.loss, fine)} - {rate:.3g} x {significant(squared)} = "
            f"{number(expected, fine)}, and in fact {number(step.loss_after, fine)}",
            {"loss": step.loss, "expected": expected, "after": step.loss_after},
        ),
    ]


def _digits(change: float) -> int:
    """Digits after the point that show a small change with two of its own, 3 to 9."""
    if not change or not math.isfinite(change):
        return 3
    return min(9, max(3, 1 - math.floor(math.log10(abs(change)))))


def _before_and_after(trace: Trace, step: GradientStep) -> TableFigure:
    at = range(len(step.labels)), step.labels
    both = [logits.cpu().double().softmax(dim=-1) for logits in (step.logits, step.logits_after)]
    before, after = (p[at].tolist() for p in both)
    cells = zip(_labelled(trace, step.rows, step.labels), before, after, strict=True)
    table: list[list[Cell]] = [[*labelled, p, q - p, q] for labelled, p, q in cells]
    heads = ["row", "reads", "target", "p before", "change", "p after"]
    title = "probability of the true tokens, before and after one step"
    return TableFigure(title, heads, table, share=5, names=("step",))


def _token_table(focus: Focus, step: GradientStep, side: str) -> TableFigure:
    sizes = step.token_gradients[side].double().norm(dim=-1)
    pairs = torch.stack([sizes, sizes / sizes.sum().clamp(min=1e-300)], dim=1).tolist()
    labelled = enumerate(zip(focus.words(side).labels, pairs, strict=True))
    rows: list[list[Cell]] = [[str(i), label, *pair] for i, (label, pair) in labelled]
    title = f"gradient at each token that the {side} reads"
    heads = ["position", "token", "norm", "share"]
    return TableFigure(title, heads, rows, share=3, names=(f"{side} tokens",))


def _matrix_table(step: GradientStep, rate: float) -> TableFigure:
    """A row for every matrix, and one for all biases and norms; the largest first."""
    rows, total, others = list[list[Cell]](), step.squared_norm or 1.0, 0.0
    for name, gradient in step.gradients.items():
        squared = step.squares[name]
        if gradient.dim() < 2:
            others += squared
            continue
        size, weight = math.sqrt(squared), norm_of(step.weights[name])
        shape = "\u00a0x\u00a0".join(map(str, gradient.shape))
        moved = 100 * rate * size / (weight or 1.0)
        rows.append([size, moved, squared / total, shape, name])
    rows.append([math.sqrt(others), "", others / total, "", "all biases and norms"])
    rows.sort(key=lambda row: -float(str(row[0])))
    title = "gradient at each weight matrix, the largest first (shares of norm^2)"
    heads = ["norm", "moved by %", "share", "shape", "weights"]
    return TableFigure(title, heads, rows, share=2, names=("gradients",))


def _gradient_checks(focus: Focus, step: GradientStep) -> list[Check]:
    """With the label (smoothed) as a distribution, the gradient at the logits is (p - label)/n."""
    logits, smoothing = _logits(focus.trace, step.rows), focus.trace.smoothing
    label = F.one_hot(torch.tensor(step.labels), logits.size(1)).double() * (1 - smoothing)
    label += smoothing / logits.size(1)
    again = (logits.softmax(dim=-1) - label) / len(label)
    found, same = step.logits_gradient.cpu().double(), step.logits.cpu().double()
    return [
        focus.check("the gradient at the logits is (p - label) / positions", found, again),
        focus.check("the logits are those of the walk", same, logits),
    ]
