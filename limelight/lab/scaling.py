"""What does dividing the scores by sqrt(d_k) change, before and during training?

One attention layer of width 256, cut into heads of d_k = 16 to 256 numbers: 16 heads to one.
Queries and keys start as in the paper (Xavier). Measured on random texts of 33 tokens: the variance
of the scores that enter the softmax, and the entropy of the last token's attention (1: all 33
tokens alike, 0: one alone); then the loss after training to find the letter among 32 digits. With
and without scaling: the same seeds, batches, steps and rate.
"""

import math
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

from limelight.lab.distance import needles
from limelight.lab.experiment import Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import config_of, loss_of, make, train
from limelight.lab.report import by_length, by_seed
from limelight.model.taps import Recorder

SECONDS = (14.0, 110.0)
_WIDTH, _DISTANCE, _VOCAB = 256, 32, 17
_APART = 0.05  # nats: less is noise
_WAYS = ("with scaling", "without")


def measurements(quick: bool) -> Measurements:
    """Variance and entropy at the start, and the loss by step, for each d_k, way and seed."""
    sizes, seeds, steps = [16, 256], [1], 40
    if not quick:
        sizes, seeds, steps = [16, 32, 64, 128, 256], [1, 2, 3], 60
    return grid("{0}, seed {2} at {1}", partial(_measure, steps=steps), _WAYS, sizes, seeds)


def _measure(way: str, d_k: int, seed: int, steps: int) -> dict[str, float]:
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


_SHOWN = {
    "variance": "variance of the scores, at the start",
    "entropy": "entropy of the attention, at the start",
    "loss": "loss after training (nats)",
}


def findings(values: Values) -> Findings:
    """How the start changes with d_k, and whether training feels it."""
    found = {
        key: by_length(by_seed({name: own[key] for name, own in values.items()})) for key in _SHOWN
    }
    logs, limits = {"variance": "xy"}, {"entropy": (0.0, 1.0)}
    panels = [
        Panel("d_k", _SHOWN[key], own, logs.get(key, "x"), ".3f", limits.get(key))
        for key, own in found.items()
    ]
    sentences = []
    for way, own in found["variance"].items():
        low, high = min(own), max(own)
        sentences.append(
            f"{way.capitalize()}, the variance goes from {fmean(own[low]):.3g} at d_k = {low} to "
            f"{fmean(own[high]):.3g} at {high}, where the entropy of attention is "
            f"{fmean(found['entropy'][way][high]):.0%} of its maximum."
        )
    divided, plain = (found["loss"][way] for way in _WAYS)
    worse = [str(d) for d in plain if min(plain[d]) > max(divided[d]) + _APART]
    better = [str(d) for d in plain if max(plain[d]) < min(divided[d]) - _APART]
    sentences.append(
        "After training, the loss without scaling is higher in every seed at d_k = "
        f"{', '.join(worse) or 'none'}, and lower in every seed at {', '.join(better) or 'none'} "
        f"(by at least {_APART} nats)."
    )
    return Findings(panels, sentences)
