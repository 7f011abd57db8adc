"""Does learning reach back? How much of the gradient arrives at a token n positions earlier."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.lab.experiment import Measurements, Values
from limelight.lab.networks import IGNORED, KINDS, config_of, loss_of, make, train
from limelight.lab.report import new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Does learning reach back to a token that was read long ago?"
SETTING = (
    "Networks of width 64 predict, at the end of a random text, its first token. Measured is the "
    "gradient of that loss at the embedding of the first token, divided by the one at the last: "
    "untrained, and after training on texts of 16 tokens. The mean over three seeds (--quick: one)."
)
SECONDS = (6.0, 11.0)
LENGTHS = (8, 32, 128, 512)
_VOCAB, _WIDTH, _TRAINED = 32, 64, 16
_SEEDS = (1, 2, 3)


def measurements(quick: bool) -> Measurements:
    """For each network and state the ratios at all lengths, one list for each seed."""
    seeds, steps = (_SEEDS[:1], 60) if quick else (_SEEDS, 120)
    return {
        f"{kind} {state}": partial(_ratios, kind, seeds, steps if state == "trained" else 0)
        for kind in KINDS
        for state in ("untrained", "trained")
    }


def _ratios(kind: str, seeds: tuple[int, ...], steps: int) -> list[list[float]]:
    found = []
    for seed in seeds:
        config = config_of(kind, _VOCAB, 1 if kind != "transformer" else 2, _WIDTH, max(LENGTHS))
        model = make(config, seed)
        if steps:
            train(model, first_tokens(seed, 32, _TRAINED), steps, 3e-3)
        found.append([_ratio(model, seed, length) for length in LENGTHS])
    return found


def first_tokens(seed: int, rows: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
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


def gradients(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
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


def _means(values: Values) -> dict[str, list[float]]:
    return {
        name: [sum(ratios) / len(ratios) for ratios in zip(*seeds, strict=True)]
        for name, seeds in values.items()
    }


def table(values: Values) -> list[list[str]]:
    """A row for each network and state, a column for each length."""
    rows = [[name, *(f"{ratio:.1e}" for ratio in own)] for name, own in _means(values).items()]
    return [["gradient at the first token / at the last", *map(str, LENGTHS)], *rows]


def figure(values: Values) -> "Figure":
    """Both states side by side; what has underflowed to 0 is at the bottom edge."""
    drawn, axes = new_figure(2)
    for ax, state in zip(axes, ("untrained", "trained"), strict=True):
        for name, own in _means(values).items():
            kind, which = name.split()
            if which == state:
                ax.plot(LENGTHS, [max(r, 1e-16) for r in own], label=kind, **style_of(kind))
        ax.set(xscale="log", yscale="log", ylim=(1e-16, 10), title=state)
        ax.set(xlabel="distance in tokens", ylabel="gradient, relative to the last token")
        ax.set_xticks(LENGTHS, map(str, LENGTHS))
        ax.minorticks_off()
    axes[0].legend()
    return drawn


def conclusion(values: Values) -> list[str]:
    """How far the gradient reaches, by network."""
    means, sentences = _means(values), []
    for state in ("untrained", "trained"):
        lost = {kind: _reach(means[f"{kind} {state}"]) for kind in KINDS}
        parts = [f"{kind} {reach or 'at none'}" for kind, reach in lost.items()]
        sentences.append(
            f"The longest of these distances, in tokens, at which a millionth arrives, {state}: "
            f"{', '.join(parts)}."
        )
    attention, others = means["transformer untrained"][-1], means["lstm untrained"][-1]
    if attention > others:
        sentences.append(
            f"At {LENGTHS[-1]} tokens the first token receives {attention:.1e} of the last one's "
            f"gradient in an untrained Transformer and {others:.1e} in an LSTM: the path through "
            "attention does not grow with the distance."
        )
    else:
        sentences.append("Here the gradient of the LSTM reached at least as far as attention's.")
    return sentences


def _reach(ratios: list[float]) -> int:
    """The longest distance at which a millionth arrives; 0 if at none."""
    return max((n for n, r in zip(LENGTHS, ratios, strict=True) if r > 1e-6), default=0)
