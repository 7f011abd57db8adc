"""How does the loss fall with compute, and which size learns from examples?

Transformers of 2 layers and four widths read the same batches. Half are texts of a language of 32
tokens: a token follows from the two before it by a fixed table (9 times out of 10), and some
contexts are far more frequent than others, so there is always a rarer rule left to learn. Its
entropy is known exactly. Half are few-shot tasks: one of 4 functions, shown by pairs of x and f(x).
Compute is 6 x parameters x tokens. The law (Kaplan et al., 2020), loss = entropy + a x compute^-b,
is fitted in logarithms to the lowest loss that any size reached with at most that compute, for each
seed; b is given with twice its standard error.
"""

import math
from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch

from limelight.lab.experiment import Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import IGNORED, Batch, accuracy_of, config_of, loss_of, make, train
from limelight.lab.report import by_seed, columns
from limelight.model.count import count_parameters

SECONDS = (35.0, 200.0)
WIDTHS = (16, 32, 64, 128)
_VOCAB, _LENGTH, _ROWS, _EVERY, _RULE, _TASKS = 32, 31, 64, 25, 0.9, 4
_SHOTS = (0, 1, 2, 4, 8, 14)  # examples before the question
_Points = list[tuple[float, float]]  # compute and loss


def measurements(quick: bool) -> Measurements:
    """A training for each size and seed."""
    seeds, steps = ((1,), 200) if quick else ((1, 2, 3), 400)
    return grid("width {}, seed {}", partial(_learn, steps=steps), WIDTHS, seeds)


def entropy() -> float:
    """Of a token, given the two before it: the least loss that is possible, in nats."""
    other = (1 - _RULE) / _VOCAB
    rule = _RULE + other
    return -rule * math.log(rule) - (_VOCAB - 1) * other * math.log(other)


def language(random: torch.Generator, rows: int) -> Batch:
    """Texts in which a token is what the table says, or any."""
    frequency = 1 / torch.arange(1.0, _VOCAB + 1)  # Zipf's law
    rules = torch.multinomial(frequency, _VOCAB**2, True, generator=torch.Generator())
    rules = rules.view(_VOCAB, -1)
    text = torch.randint(_VOCAB, (rows, _LENGTH + 1), generator=random)
    kept = torch.rand(rows, _LENGTH + 1, generator=random) < _RULE
    for t in range(2, _LENGTH + 1):
        text[:, t] = torch.where(kept[:, t], rules[text[:, t - 2], text[:, t - 1]], text[:, t])
    labels = text[:, 1:].clone()
    labels[:, 0] = IGNORED  # no rule: it has one token before it
    return text[:, :-1], labels


def few_shot(random: torch.Generator, rows: int) -> Batch:
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


def both(seed: int, rows: int) -> Iterator[Batch]:
    """Batches of which one half is language and one half few-shot tasks."""
    random = torch.Generator().manual_seed(seed)
    while True:
        halves = language(random, rows // 2), few_shot(random, rows // 2)
        tokens, labels = map(torch.cat, zip(*halves, strict=True))
        yield tokens, labels


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
    found: _Points = []
    for compute, loss in sorted((x, y) for curve in curves for x, y in curve):
        if not found or loss < found[-1][1]:
            found.append((compute, loss))
    return found


def power_law(points: _Points) -> tuple[float, float, float]:
    """a, b and b's standard error of loss - entropy = a x compute^-b; least squares of logs."""
    compute, loss = np.array(points).T
    (slope, offset), ((variance, _), _) = np.polyfit(
        np.log(compute), np.log(loss - entropy()), 1, cov=True
    )
    return math.exp(offset), -float(slope), math.sqrt(variance)


def findings(values: Values) -> Findings:
    """The law with its uncertainty, how far it was measured, and the few-shot accuracy by size."""
    losses: dict[str, dict[float, list[float]]] = {}
    right = {}
    for runs in by_seed(values).values():
        name = f"{runs[0]['parameters']:,} parameters"
        same = zip(*(run["curve"] for run in runs), strict=True)
        losses[name] = {own[0][0]: [loss - entropy() for _, loss in own] for own in same}
        right[name] = columns(run["right"] for run in runs)
    seeds = zip(*by_seed(values).values(), strict=True)
    points = [point for runs in seeds for point in frontier([run["curve"] for run in runs])]
    a, b, error = power_law(points)
    low, high = min(points)[0], max(points)[0]
    losses[f"{a:.2g} x FLOPs^-{b:.2f}"] = {compute: [a * compute**-b] for compute in (low, high)}
    last = ", ".join(f"{name} {fmean(own[_SHOTS[-1]]):.0%}" for name, own in right.items())
    panels = [
        Panel("FLOPs of training", "loss above the entropy (nats)", losses, "xy", ".3f"),
        Panel("examples before the question", "answers right", right, "", ".0%", (0, 1.05)),
    ]
    sentences = [
        f"Fitted from {low:.1e} to {high:.1e} FLOPs: the loss above the entropy ({entropy():.2f} "
        f"nats) is {a:.2g} x FLOPs^-{b:.3f}, the exponent +- {2 * error:.3f}: ten times the "
        f"compute multiplies it by {10**-b:.2f}.",
        f"Right after {_SHOTS[-1]} examples (with the function unknown: 25%): {last}.",
        "A law over so short a range, on a made language, says nothing of larger models.",
    ]
    return Findings(panels, sentences)
