"""Who finds one token far back, and who recalls many pairs?

Needle: one of 8 letters, then random digits and a mark, at which the letter is asked for, d tokens
later. Recall (multi-query associative recall of Zoology, arXiv 2312.04927): pairs out of 16 keys
and 16 values, then all keys in another order, each of which asks for its value. One recurrent
layer, with and without attention over its own past states, against a Transformer of two layers
with one head (one layer cannot recall: arXiv 2508.19029). Parameters match within 5%; all read the
same batches with each learning rate. A run ends early when the mean loss of 10 steps is below 0.05;
after a size with less than half of the answers right, larger ones count as guessing.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch

from limelight.lab.experiment import Curve, Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import IGNORED, KINDS, Batch, accuracy_of, make, matched, train
from limelight.lab.report import by_seed, columns

SECONDS = (70.0, 1500.0)
CONTESTANTS = (*KINDS[:3], "lstm with attention", "transformer")
_LETTERS = _DIGITS = 8
_KEYS = 16
_SOLVED = 0.9


def needles(seed: int, rows: int, distance: int) -> Iterator[Batch]:
    """Texts of a letter, digits and a mark; the label at the mark is the letter."""
    random = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(_DIGITS, (rows, distance + 1), generator=random) + _LETTERS
        tokens[:, 0] = torch.randint(_LETTERS, (rows,), generator=random)
        tokens[:, -1] = _LETTERS + _DIGITS
        labels = torch.full_like(tokens, IGNORED)
        labels[:, -1] = tokens[:, 0]
        yield tokens, labels


def recalls(seed: int, rows: int, pairs: int) -> Iterator[Batch]:
    """Texts of pairs and then keys; the label at each of these keys is its value."""
    random = torch.Generator().manual_seed(seed)
    while True:
        keys = torch.rand(rows, _KEYS, generator=random).argsort(dim=1)[:, :pairs]
        found = torch.randint(_KEYS, 2 * _KEYS, (rows, pairs), generator=random)
        read = torch.stack([keys, found], dim=2).flatten(1)  # B 2N
        order = torch.rand(rows, pairs, generator=random).argsort(dim=1)
        tokens = torch.cat([read, keys.gather(1, order)], dim=1)
        yield tokens, torch.cat([torch.full_like(read, IGNORED), found.gather(1, order)], dim=1)


class _Task(NamedTuple):
    batches: Callable[[int, int, int], Iterator[Batch]]
    vocab: int
    chance: float
    width: int  # of the Transformer; the others follow
    size: str  # what the sizes count


_TASKS = {
    "needle": _Task(needles, _LETTERS + _DIGITS + 1, 1 / _LETTERS, 32, "distance in tokens"),
    "recall": _Task(recalls, 2 * _KEYS, 1 / _KEYS, 64, "number of pairs"),
}
# Sizes, rates, seeds and steps: quick and full.
_PLANS = {
    "needle": (((8, 128), (2e-3, 8e-3), 1, 250), ((8, 32, 128, 512), (5e-4, 2e-3, 8e-3), 3, 400)),
    "recall": (((8,), (5e-4,), 1, 500), ((4, 8, 16), (5e-4, 2e-3, 8e-3), 3, 700)),
}


def measurements(quick: bool) -> Measurements:
    """The accuracy by size, for each task, contestant, rate and seed."""
    found: Measurements = {}
    for task, plans in _PLANS.items():
        sizes, rates, seeds, steps = plans[0 if quick else 1]
        measure = partial(_accuracies, task, sizes=sizes, steps=steps)
        name = task + ": {}, rate {:g}, seed {}"
        found |= grid(name, measure, CONTESTANTS, rates, range(1, seeds + 1))
    return found


def _accuracies(
    task: str, kind: str, rate: float, seed: int, sizes: tuple[int, ...], steps: int
) -> dict[str, float]:
    batches, vocab, chance, width, _ = _TASKS[task]
    found = dict.fromkeys(map(str, sizes), chance)
    for size in sizes:
        rows = 64 if task == "recall" else max(16, 2048 // size)
        model = make(matched(kind, vocab, width, 3 * size + 1), seed)
        losses: list[float] = []

        def solved(_: int, loss: float, losses: list[float] = losses) -> bool:
            losses.append(loss)
            return len(losses) >= 10 and sum(losses[-10:]) < 10 * 0.05

        train(model, batches(seed, rows, size), steps, rate, solved)
        found[str(size)] = accuracy_of(model, next(batches(10_000 + seed, 256, size)))
        if found[str(size)] < 0.5:
            break
    return found


def _by_contestant(values: Values, task: str) -> dict[str, dict[float, Curve]]:
    """By contestant and rate the accuracies of all seeds by size."""
    found: dict[str, dict[float, Curve]] = {}
    for name, runs in by_seed(values).items():
        which, kind, rate = re.split(": |, rate ", name)
        if which == task:
            found.setdefault(kind, {})[float(rate)] = columns(runs)
    return found


def findings(values: Values) -> Findings:
    """How far each contestant comes at its best rate, and how wide its window of rates is."""
    by_size, by_rate, sentences = [], [], []
    for task, about in _TASKS.items():
        best, means = dict[str, Curve](), dict[str, Curve]()
        for kind, rates in _by_contestant(values, task).items():
            seeds = {rate: zip(*curve.values(), strict=True) for rate, curve in rates.items()}
            overall = {rate: [fmean(own) for own in each] for rate, each in seeds.items()}
            best[kind] = rates[max(rates, key=lambda rate: sum(overall[rate]))]
            means[kind] = overall
        draw = partial(
            Panel, log="x", form=".0%", limits=(0, 1.05), levels={"guessing": about.chance}
        )
        by_size.append(draw(about.size, f"{task}: answers right, best rate", best))
        by_rate.append(draw("learning rate", f"{task}: answers right, mean over sizes", means))
        reached, windows = [], []
        for kind, curve in best.items():
            solved = [size for size, own in curve.items() if min(own) >= _SOLVED]
            reached.append(f"{kind} {max(solved, default='none')}")
            works = sum(max(own) >= _SOLVED for own in means[kind].values())
            windows.append(f"{kind} {works} of {len(means[kind])}")
        sentences += [
            f"Largest {about.size} that every seed solves at the best rate (90% right): "
            f"{', '.join(reached)}.",
            f"{task.capitalize()}: rates with 90% right over all sizes: {', '.join(windows)}.",
        ]
    return Findings(by_size + by_rate, sentences)
