"""Does learning reach back to a token that was read long ago?

Networks of width 64 predict, at the end of a random text, its first token. Measured is the gradient
of that loss at the embedding of the first token, divided by the one at the last: untrained, and
after training on texts of 16 tokens. Three seeds (--quick: one).
"""

import math
from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from limelight.lab.experiment import Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import IGNORED, KINDS, Batch, config_of, loss_of, make, train

SECONDS = (6.0, 11.0)
LENGTHS = (8, 32, 128, 512)
_VOCAB, _WIDTH, _TRAINED = 32, 64, 16
_SEEDS = (1, 2, 3)
_STATES = ("untrained", "trained")


def measurements(quick: bool) -> Measurements:
    """For each network and state the ratios at all lengths, one list for each seed."""
    seeds, steps = (_SEEDS[:1], 60) if quick else (_SEEDS, 120)
    return grid("{} {}", partial(_ratios, seeds=seeds, steps=steps), KINDS, _STATES)


def _ratios(kind: str, state: str, seeds: tuple[int, ...], steps: int) -> list[list[float]]:
    found = []
    for seed in seeds:
        config = config_of(kind, _VOCAB, 1 if kind != "transformer" else 2, _WIDTH, max(LENGTHS))
        model = make(config, seed)
        if state == "trained":
            train(model, first_tokens(seed, 32, _TRAINED), steps, 3e-3)
        found.append([_ratio(model, seed, length) for length in LENGTHS])
    return found


def first_tokens(seed: int, rows: int, length: int) -> Iterator[Batch]:
    """Random texts; the label at the end of each is its first token."""
    random = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(_VOCAB, (rows, length), generator=random)
        labels = torch.full_like(tokens, IGNORED)
        labels[:, -1] = tokens[:, 0]
        yield tokens, labels


def _ratio(model: Any, seed: int, length: int) -> float:
    first, last = gradients(model, next(first_tokens(seed, 16, length)))[[0, -1]].tolist()
    return float(first / last) if last else math.nan


def gradients(model: Any, batch: Batch) -> Tensor:
    """The size of the loss's gradient at the embedding of each position, T: the mean over texts."""
    kept: list[Tensor] = []
    table = getattr(model.target, "tokens", model.target)
    handle = table.register_forward_hook(lambda *call: kept.append(call[-1]))
    try:
        loss = loss_of(model, batch)
    finally:
        handle.remove()
    (gradient,) = torch.autograd.grad(loss, kept[0])
    return gradient.double().norm(dim=-1).mean(dim=0)


def findings(values: Values) -> Findings:
    """How far the gradient reaches, by network."""
    panels, sentences, at_last = [], [], {}
    for state in _STATES:
        runs = {kind: zip(*values[f"{kind} {state}"], strict=True) for kind in KINDS}
        curves = {kind: dict(zip(LENGTHS, own, strict=True)) for kind, own in runs.items()}
        up = f"gradient, relative to the last token, {state}"
        panels.append(Panel("distance in tokens", up, curves, "xy", ".1e", limits=(1e-16, 100)))
        reached = []
        for kind, curve in curves.items():
            arrives = [length for length, ratios in curve.items() if fmean(ratios) > 1e-6]
            reached.append(f"{kind} {max(arrives, default='at none')}")
            at_last[kind, state] = fmean(curve[LENGTHS[-1]])
        sentences.append(
            "The longest of these distances, in tokens, at which a millionth arrives, "
            f"{state}: {', '.join(reached)}."
        )
    attention, lstm = at_last["transformer", "untrained"], at_last["lstm", "untrained"]
    if attention > lstm:
        sentences.append(
            f"At {LENGTHS[-1]} tokens the first token receives {attention:.1e} of the last one's "
            f"gradient in an untrained Transformer and {lstm:.1e} in an LSTM: the path through "
            "attention does not grow with the distance."
        )
    else:
        sentences.append("Here the gradient of the LSTM reached at least as far as attention's.")
    return Findings(panels, sentences)
