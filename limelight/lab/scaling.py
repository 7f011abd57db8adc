"""Why divide by sqrt(d_k)? Large scores push the softmax to where it cannot learn (3.2.1)."""

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from limelight.lab.distance import needles
from limelight.lab.experiment import Measurements, Values
from limelight.lab.networks import config_of, loss_of, make, train
from limelight.lab.report import draw_spread, new_figure
from limelight.model.taps import Recorder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What does dividing the scores by sqrt(d_k) change, before and during training?"
SETTING = (
    "One attention layer of width 256, cut into heads of d_k = 16 to 256 numbers: 16 heads to one. "
    "Queries and keys start as in the paper (Xavier). Measured on random texts of 33 tokens: the "
    "variance of the scores that enter the softmax, and the entropy of the last token's attention "
    "(1: all 33 tokens alike, 0: one alone); then the loss after training to find the letter "
    "among 32 digits. With and without scaling: the same seeds, batches, steps and rate."
)
SECONDS = (14.0, 110.0)
_WIDTH, _DISTANCE, _VOCAB = 256, 32, 17
_APART = 0.05  # nats: less is noise
_WAYS = ("with scaling", "without")


def measurements(quick: bool) -> Measurements:
    """Variance and entropy at the start, and the loss by step, for each d_k, way and seed."""
    sizes, seeds, steps = (
        ((16, 256), (1,), 40) if quick else ((16, 32, 64, 128, 256), (1, 2, 3), 60)
    )
    return {
        f"{way}, seed {seed} at {d_k}": partial(_measure, d_k, way, seed, steps)
        for way in _WAYS
        for d_k in sizes
        for seed in seeds
    }


def _measure(d_k: int, way: str, seed: int, steps: int) -> dict[str, float]:
    model = network(d_k, way == "with scaling", seed)
    found = at_the_start(model, seed)
    train(model, needles(seed, 32, _DISTANCE), steps, 2e-3)
    with torch.no_grad():
        found["loss"] = loss_of(model, next(needles(10_000 + seed, 256, _DISTANCE))).item()
    return found


def network(d_k: int, scaling: bool, seed: int) -> Any:
    """One layer with heads of this size. GPT-2's small queries and keys would hide the effect."""
    config: Any = config_of("transformer", _VOCAB, 1, _WIDTH, _DISTANCE + 1, _WIDTH // d_k)
    model = make(replace(config, scaling=scaling), seed)
    random = torch.Generator().manual_seed(seed)
    attention = model.decoder.layers[0].self_attention
    for matrix in (attention.query.weight, attention.key.weight):
        nn.init.xavier_uniform_(matrix, generator=random)
    return model


@torch.no_grad()
def at_the_start(model: Any, seed: int) -> dict[str, float]:
    """The variance of what enters the softmax, and the entropy of the last token's weights."""
    tokens, _ = next(needles(seed, 64, _DISTANCE))
    with Recorder(model, ["*.self.scaled", "*.self.weights"]) as recorder:
        recorder.model(tokens)
    scores, weights = recorder.values.values()  # B H T S
    last = weights[:, :, -1]
    entropy = -torch.xlogy(last, last).sum(dim=-1).mean().item() / math.log(last.size(-1))
    return {"variance": scores[:, :, -1].var(dim=-1).mean().item(), "entropy": entropy}


def _by_way(values: Values, key: str) -> dict[str, dict[int, list[float]]]:
    """A number of all seeds, by way and d_k."""
    found: dict[str, dict[int, list[float]]] = {way: {} for way in _WAYS}
    for name, own in values.items():
        run, _, d_k = name.rpartition(" at ")
        found[run.split(", ")[0]].setdefault(int(d_k), []).append(own[key])
    return found


_SHOWN = {
    "variance": "variance of the scores, at the start",
    "entropy": "entropy of the attention, at the start",
    "loss": "loss after training (nats)",
}


def table(values: Values) -> list[list[str]]:
    """A row for each number and way, a column for each d_k: the mean over seeds."""
    rows = []
    for key, label in _SHOWN.items():
        for way, own in _by_way(values, key).items():
            means = [f"{sum(found) / len(found):.3f}" for found in own.values()]
            rows.append([f"{label}, {way}", *means])
    return [["d_k", *map(str, _by_way(values, "loss")[_WAYS[0]])], *rows]


def figure(values: Values) -> "Figure":
    """One picture for each number."""
    drawn, axes = new_figure(3)
    for ax, (key, label) in zip(axes, _SHOWN.items(), strict=True):
        ax.set(xscale="log", xlabel="d_k, numbers in a head", ylabel=label)
        for way, own in _by_way(values, key).items():
            draw_spread(ax, own, way)
            ax.set_xticks(list(own), map(str, own))
        ax.set_yscale("log" if key == "variance" else "linear")
        ax.minorticks_off()
    axes[1].set_ylim(0, 1)
    axes[0].legend()
    return drawn


def conclusion(values: Values) -> list[str]:
    """How the start changes with d_k, and whether training feels it."""
    sentences = []
    variance, entropy, loss = (_by_way(values, key) for key in _SHOWN)
    for way in _WAYS:
        low, high = min(variance[way]), max(variance[way])
        start, end = (sum(variance[way][d]) / len(variance[way][d]) for d in (low, high))
        left = sum(entropy[way][high]) / len(entropy[way][high])
        sentences.append(
            f"{way.capitalize()}, the variance goes from {start:.3g} at d_k = {low} to {end:.3g} "
            f"at {high}, where the entropy of attention is {left:.0%} of its maximum."
        )
    divided, plain = loss["with scaling"], loss["without"]
    worse = [d for d in plain if min(plain[d]) > max(divided[d]) + _APART]
    better = [d for d in plain if max(plain[d]) < min(divided[d]) - _APART]
    sentences.append(
        f"After training, the loss without scaling is higher in every seed at d_k = "
        f"{', '.join(map(str, worse)) or 'none'}, and lower in every seed at "
        f"{', '.join(map(str, better)) or 'none'} (by at least {_APART} nats)."
    )
    return sentences
