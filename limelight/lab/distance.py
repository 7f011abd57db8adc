"""Who remembers what was read long ago, and many things at once?

Needle: one letter, then d - 1 random digits, then a mark at which the letter is asked for. Recall
(multi-query associative recall of Zoology, arXiv 2312.04927): pairs of a key and a value, then all
keys in another order, each of which asks for its value.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from limelight.lab.experiment import Measurements, Values
from limelight.lab.networks import IGNORED, KINDS, accuracy_of, make, matched, train
from limelight.lab.report import draw_spread, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Who finds one token far back, and who recalls many pairs?"
SETTING = (
    "Needle: one of 8 letters, then random digits; it is asked for d tokens later. Recall: pairs "
    "out of 16 keys and 16 values, then each key asks for its value. One recurrent layer, with and "
    "without attention over its own past states, against a Transformer of two layers with one head "
    "(one layer cannot recall: arXiv 2508.19029). Parameters match within 5%; all read the same "
    "batches with each learning rate. A run ends early when the mean loss of 10 steps is below "
    "0.05; after a size with less than half of the answers right, larger ones count as guessing."
)
SECONDS = (70.0, 1500.0)
CONTESTANTS = (*KINDS[:3], "lstm with attention", "transformer")
_LETTERS = _DIGITS = 8
_KEYS = 16
_SOLVED = 0.9


def needles(seed: int, rows: int, distance: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts of a letter, digits and a mark; the label at the mark is the letter."""
    random = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(_DIGITS, (rows, distance + 1), generator=random) + _LETTERS
        tokens[:, 0] = torch.randint(_LETTERS, (rows,), generator=random)
        tokens[:, -1] = _LETTERS + _DIGITS
        labels = torch.full_like(tokens, IGNORED)
        labels[:, -1] = tokens[:, 0]
        yield tokens, labels


def recalls(seed: int, rows: int, pairs: int) -> Iterator[tuple[Tensor, Tensor]]:
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
    batches: Callable[[int, int, int], Iterator[tuple[Tensor, Tensor]]]
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
        for kind in CONTESTANTS:
            for rate in rates:
                for seed in range(1, seeds + 1):
                    name = f"{task}: {kind}, rate {rate:g}, seed {seed}"
                    found[name] = partial(_accuracies, task, kind, rate, seed, sizes, steps)
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


_Runs = dict[float, list[dict[int, float]]]  # by rate: for each seed the accuracy by size


def _by_contestant(values: Values, task: str) -> dict[str, _Runs]:
    found: dict[str, _Runs] = {}
    for name, own in values.items():
        which, _, rest = name.partition(": ")
        kind, rate, _ = rest.split(", ")
        if which == task:
            runs = found.setdefault(kind, {}).setdefault(float(rate.removeprefix("rate ")), [])
            runs.append({int(size): accuracy for size, accuracy in own.items()})
    return found


def _overall(runs: list[dict[int, float]]) -> list[float]:
    """For each seed the mean over all sizes."""
    return [sum(run.values()) / len(run) for run in runs]


def _best_rate(runs: _Runs) -> float:
    return max(runs, key=lambda rate: sum(_overall(runs[rate])))


def table(values: Values) -> list[list[str]]:
    """A row for each task and contestant: the worst seed of its best rate at each size."""
    rows = []
    for task in _TASKS:
        for kind, runs in _by_contestant(values, task).items():
            best = _best_rate(runs)
            reached = [f"{size}: {_worst(runs[best], size):.0%}" for size in runs[best][0]]
            works = [f"{rate:g}" for rate in runs if max(_overall(runs[rate])) >= _SOLVED]
            rows.append([task, kind, "  ".join(reached), f"{best:g}", " ".join(works) or "none"])
    header = ["task", "network", "right by size, worst seed", "best rate", "rates that work"]
    return [header, *rows]


def _worst(runs: list[dict[int, float]], size: int) -> float:
    return min(run[size] for run in runs)


def figure(values: Values) -> "Figure":
    """Above: accuracy by size at the best rate. Below: by rate, the mean over sizes."""
    drawn, axes = new_figure(2, rows=2)
    for i, task in enumerate(_TASKS):
        above, below = axes[i], axes[2 + i]
        for ax in (above, below):
            ax.axhline(_TASKS[task].chance, color="0.5", linestyle=":", linewidth=1)
            ax.set(xscale="log", ylim=(0, 1.05))
        for j, (kind, runs) in enumerate(_by_contestant(values, task).items()):
            best, aside = runs[_best_rate(runs)], 1.04**j  # where lines would cover each other
            draw_spread(above, {n * aside: [run[n] for run in best] for n in best[0]}, kind)
            draw_spread(below, {rate * aside: _overall(own) for rate, own in runs.items()}, kind)
            above.set_xticks(list(best[0]), map(str, best[0]))
            below.set_xticks(list(runs), [f"{rate:g}" for rate in runs])
        above.set(title=task, xlabel=_TASKS[task].size, ylabel="answers right, best rate")
        below.set(xlabel="learning rate", ylabel="answers right, mean over sizes")
        for ax, ticks in ((above, list(best[0])), (below, list(runs))):
            ax.set_xlim(min(ticks) / 1.5, max(ticks) * 1.8)
            ax.minorticks_off()
    axes[0].legend(fontsize=8)
    return drawn


def conclusion(values: Values) -> list[str]:
    """How far each contestant comes, and how wide its window of rates is."""
    sentences = []
    for task, (*_, size) in _TASKS.items():
        parts, windows = [], []
        for kind, runs in _by_contestant(values, task).items():
            best = runs[_best_rate(runs)]
            reach = max((n for n in best[0] if _worst(best, n) >= _SOLVED), default=0)
            parts.append(f"{kind} {reach or 'none'}")
            works = sum(max(_overall(own)) >= _SOLVED for own in runs.values())
            windows.append(f"{kind} {works} of {len(runs)}")
        sentences.append(f"Largest {size} that every seed solves at the best rate (90% right): ")
        sentences[-1] += ", ".join(parts) + "."
        sentences.append(
            f"{task.capitalize()}: rates with 90% right over all sizes: {', '.join(windows)}."
        )
    return sentences
