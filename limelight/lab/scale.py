"""Does the loss fall as a power of compute (Kaplan et al., 2020)? And who learns from examples?

The language: a token follows from the two before it by a fixed table (9 times out of 10). Some
contexts are far more frequent than others, so there is always a rarer rule left to learn. In the
few-shot texts one of 4 fixed functions is shown by pairs of x and f(x).
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.lab.experiment import Measurements, Values
from limelight.lab.networks import IGNORED, accuracy_of, config_of, loss_of, make, train
from limelight.lab.report import draw_spread, new_figure, style_of
from limelight.model.count import count_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "How does the loss fall with compute, and which size learns from examples?"
SETTING = (
    "Transformers of 2 layers and four widths read the same batches: half are texts of a language "
    "of 32 tokens whose entropy is known exactly, half are few-shot tasks (one of 4 functions, "
    "shown by pairs). Compute is 6 x parameters x tokens. The law, loss = entropy + a x compute^-b,"
    " is fitted in logarithms to the lowest loss that any size reached with at most that compute, "
    "for each seed; b is given with twice its standard error."
)
SECONDS = (35.0, 200.0)
WIDTHS = (16, 32, 64, 128)
_VOCAB, _LENGTH, _ROWS, _EVERY, _RULE, _TASKS = 32, 31, 64, 25, 0.9, 4
_SHOTS = (0, 1, 2, 4, 8, 14)  # examples before the question
_Points = list[tuple[float, float]]  # compute and loss


def measurements(quick: bool) -> Measurements:
    """A training for each size and seed."""
    seeds, steps = ((1,), 200) if quick else ((1, 2, 3), 400)
    return {
        f"width {width}, seed {seed}": partial(_learn, width, seed, steps)
        for width in WIDTHS
        for seed in seeds
    }


def entropy() -> float:
    """Of a token, given the two before it: the least loss that is possible, in nats."""
    other = (1 - _RULE) / _VOCAB
    rule = _RULE + other
    return -rule * math.log(rule) - (_VOCAB - 1) * other * math.log(other)


def language(random: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
    """Texts in which a token is what the table says, or any."""
    frequency = 1 / torch.arange(1.0, _VOCAB + 1)  # Zipf's law
    rules = torch.multinomial(frequency, _VOCAB**2, True, generator=torch.Generator()).view(
        _VOCAB, -1
    )
    text = torch.randint(_VOCAB, (rows, _LENGTH + 1), generator=random)
    kept = torch.rand(rows, _LENGTH + 1, generator=random) < _RULE
    for t in range(2, _LENGTH + 1):
        text[:, t] = torch.where(kept[:, t], rules[text[:, t - 2], text[:, t - 1]], text[:, t])
    labels = text[:, 1:].clone()
    labels[:, 0] = IGNORED  # no rule: it has one token before it
    return text[:, :-1], labels


def few_shot(random: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
    """A mark, then pairs of x and f(x) for one of the functions; the labels are the f(x)."""
    fixed = torch.Generator()
    size = _VOCAB // _TASKS
    tables = torch.arange(_VOCAB).view(_TASKS, size)  # answers of their own for each task
    tables = torch.stack([own[torch.randperm(size, generator=fixed)] for own in tables])
    x = torch.randint(size, (rows, _LENGTH // 2), generator=random)
    task = torch.randint(_TASKS, (rows, 1), generator=random)
    pairs = torch.stack([x, tables[task, x]], dim=2).flatten(1)
    tokens = torch.cat([torch.full((rows, 1), _VOCAB), pairs], dim=1)
    labels = torch.full_like(tokens, IGNORED)
    labels[:, 1:-1:2] = tokens[:, 2::2]
    return tokens, labels


def both(seed: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of which one half is language and one half few-shot tasks."""
    random = torch.Generator().manual_seed(seed)
    while True:
        halves = language(random, rows // 2), few_shot(random, rows // 2)
        yield torch.cat([halves[0][0], halves[1][0]]), torch.cat([halves[0][1], halves[1][1]])


def _learn(width: int, seed: int, steps: int) -> dict[str, Any]:
    model = make(config_of("transformer", _VOCAB + 1, 2, width, _LENGTH), seed)
    parameters = sum(count_parameters(model).values())
    random = torch.Generator().manual_seed(10_000 + seed)
    text, (tokens, labels) = language(random, 256), few_shot(random, 512)
    curve: _Points = []

    def watch(step: int, _: float) -> None:
        if step % _EVERY == 0:
            with torch.no_grad():
                compute = 6.0 * parameters * step * _ROWS * _LENGTH
                curve.append((compute, loss_of(model, text).item()))

    train(model, both(seed, _ROWS), steps, 2e-3, watch)
    right = {}
    for shots in _SHOTS:
        asked = torch.full_like(labels, IGNORED)
        asked[:, 1 + 2 * shots] = labels[:, 1 + 2 * shots]
        right[str(shots)] = accuracy_of(model, (tokens, asked))
    return {"parameters": parameters, "curve": curve, "right": right}


def frontier(curves: list[_Points]) -> _Points:
    """Of all points, those that no point with less compute or as much undercuts."""
    best, found = math.inf, []
    for compute, loss in sorted(tuple(point) for curve in curves for point in curve):
        if loss < best:
            best = loss
            found.append((compute, loss))
    return found


def power_law(points: _Points) -> tuple[float, float, float]:
    """a, b and b's standard error of loss - entropy = a x compute^-b; least squares of logs."""
    x = torch.tensor([math.log(compute) for compute, _ in points], dtype=torch.float64)
    y = torch.tensor([math.log(loss - entropy()) for _, loss in points], dtype=torch.float64)
    centred = x - x.mean()
    slope = (centred @ y / (centred @ centred)).item()
    offset = (y.mean() - slope * x.mean()).item()
    rest = y - offset - slope * x
    error = math.sqrt((rest @ rest / (len(points) - 2) / (centred @ centred)).item())
    return math.exp(offset), -slope, error


def _fit(values: Values) -> tuple[_Points, float, float, float]:
    """The frontiers of all seeds, and their law."""
    points: _Points = []
    for seed in sorted({name.split(", ")[1] for name in values}):
        points += frontier([run["curve"] for name, run in values.items() if name.endswith(seed)])
    return points, *power_law(points)


def _runs(values: Values, width: int) -> list[dict[str, Any]]:
    return [run for name, run in values.items() if name.startswith(f"width {width},")]


def _few_shot(values: Values, width: int) -> dict[int, list[float]]:
    return {n: [run["right"][str(n)] for run in _runs(values, width)] for n in _SHOTS}


def table(values: Values) -> list[list[str]]:
    """A row for each size: the mean over seeds."""
    rows = []
    for width in WIDTHS:
        runs = _runs(values, width)
        final = sum(run["curve"][-1][1] for run in runs) / len(runs)
        right = [sum(own) / len(own) for own in _few_shot(values, width).values()]
        compute = f"{runs[0]['curve'][-1][0]:.1e}"
        rows.append(
            [f"{runs[0]['parameters']:,}", compute, f"{final:.3f}", *map("{:.0%}".format, right)]
        )
    return [["parameters", "FLOPs", "loss", *(f"{n} examples" for n in _SHOTS)], *rows]


def figure(values: Values) -> "Figure":
    """The excess of the loss by compute with the law, and accuracy by examples."""
    drawn, (left, right) = new_figure(2)
    for width in WIDTHS:
        for i, run in enumerate(_runs(values, width)):
            compute, loss = zip(*run["curve"], strict=True)
            label = None if i else f"{run['parameters']:,} parameters"
            style = style_of(f"width {width}")
            left.plot(compute, [one - entropy() for one in loss], label=label, alpha=0.7, **style)
        draw_spread(right, _few_shot(values, width), f"width {width}")
    points, a, b, _ = _fit(values)
    ends = [min(points)[0], max(points)[0]]
    left.plot(ends, [a * c**-b for c in ends], "k--", label=f"{a:.2g} x FLOPs^-{b:.2f}")
    left.set(xscale="log", yscale="log", xlabel="FLOPs of training")
    left.set_ylabel("loss above the entropy (nats)")
    right.set(xlabel="examples before the question", ylabel="answers right", ylim=(0, 1.05))
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    return drawn


def conclusion(values: Values) -> list[str]:
    """The law with its uncertainty, how far it was measured, and the few-shot accuracy by size."""
    points, a, b, error = _fit(values)
    low, high = min(points)[0], max(points)[0]
    last = {
        w: sum(own[-1]) / len(own[-1])
        for w in WIDTHS
        for own in [list(_few_shot(values, w).values())]
    }
    parts = [f"width {width} {share:.0%}" for width, share in last.items()]
    return [
        f"Fitted from {low:.1e} to {high:.1e} FLOPs: the loss above the entropy ({entropy():.2f} "
        f"nats) is {a:.2g} x FLOPs^-{b:.3f}, the exponent +- {2 * error:.3f}: ten times the "
        f"compute multiplies it by {10**-b:.2f}.",
        f"Right after {_SHOTS[-1]} examples (with the function unknown: 25%): {', '.join(parts)}.",
        "A law over so short a range, on a made language, says nothing of larger models.",
    ]
