"""Does a model that was trained on 64 tokens read 1,024, and at what price?

In these texts of 16 different tokens, each is the one 4 positions earlier (9 times out of 10) or a
random one; the best possible loss is 0.57 nats, guessing is 2.77. Transformers of 2 layers and
width 64 learn on texts of 64 tokens, with four kinds of positions, on the same batches; with
sinusoids, embeddings are scaled as in the paper. Measured is the loss of the last 32 tokens of
longer texts. Beside it: the time to read a text, and the memory of its KV cache and of its
attention weights, if they are kept.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from limelight.errors import UserError
from limelight.lab.experiment import Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import Batch, config_of, make, train
from limelight.lab.report import by_seed, columns
from limelight.lab.timing import milliseconds

SECONDS = (20.0, 150.0)
KINDS = ("sinusoidal", "rotary", "none", "learned")
_VOCAB, _WIDTH, _TRAINED, _LAG, _KEPT = 16, 64, 64, 4, 0.9
_FLOOR = 0.57  # the entropy of a token, in nats
_LENGTHS = (64, 128, 256, 512, 1024)


def measurements(quick: bool) -> Measurements:
    """The loss by length, for each kind of positions and seed; then the price by length."""
    seeds, steps = ((1,), 150) if quick else ((1, 2, 3), 400)
    found = grid("{}, seed {}", partial(_losses, steps=steps), KINDS, seeds)
    return {**found, "price": _prices}


def echoes(seed: int, rows: int, length: int) -> Iterator[Batch]:
    """Texts that repeat what stood a few tokens before, with mistakes that are repeated too."""
    random = torch.Generator().manual_seed(seed)
    while True:
        text = torch.randint(_VOCAB, (rows, length + 1), generator=random)
        kept = torch.rand(rows, length + 1, generator=random) < _KEPT
        for t in range(_LAG, length + 1):
            text[:, t] = torch.where(kept[:, t], text[:, t - _LAG], text[:, t])
        yield text[:, :-1], text[:, 1:]


def network(kind: str, seed: int) -> Any:
    """A Transformer with these positions, whose longest text is that of training."""
    config: Any = config_of("transformer", _VOCAB, 2, _WIDTH, _TRAINED)
    model = make(replace(config, positions=kind), seed)
    if kind == "sinusoidal":  # GPT-2's small embeddings would drown in them: start as the paper
        random = torch.Generator().manual_seed(seed)
        nn.init.normal_(model.target.tokens.weight, std=_WIDTH**-0.5, generator=random)
        model.target.scale = _WIDTH**0.5
    return model


def _losses(kind: str, seed: int, steps: int) -> dict[str, float | str]:
    model = network(kind, seed)
    train(model, echoes(seed, 32, _TRAINED), steps, 2e-3)
    return {str(length): loss_at_the_end(model, seed, length) for length in _LENGTHS}


@torch.no_grad()
def loss_at_the_end(model: Any, seed: int, length: int) -> float | str:
    """The loss of the last 32 tokens of a text, or why it cannot be read."""
    tokens, labels = next(echoes(10_000 + seed, 16, length))
    try:
        logits = model(tokens)[:, -32:]
    except UserError as error:
        return str(error)
    return F.cross_entropy(logits.flatten(0, 1), labels[:, -32:].flatten()).item()


@torch.no_grad()
def _prices() -> dict[str, dict[str, float]]:
    """For one text of each length: milliseconds, and MB of the cache and of all weights."""
    model = network("rotary", 1).eval()
    prices = {}
    for length in _LENGTHS:
        tokens, _ = next(echoes(1, 1, length))
        layers, heads = model.config.layers, model.config.heads
        prices[str(length)] = {
            "ms to read": min(milliseconds(partial(model, tokens), 5, "cpu")),
            "MB of KV cache": 4e-6 * 2 * layers * length * _WIDTH,
            "MB of weights": 4e-6 * layers * heads * length**2,
        }
    return prices


def findings(values: Values) -> Findings:
    """What became of each kind at the longest text, and the price of that length."""
    runs, longest = by_seed(values), _LENGTHS[-1]
    losses = {kind: columns(own) for kind, own in runs.items() if kind != "price"}
    short, long = (values["price"][str(n)] for n in (_TRAINED, longest))
    prices = {key: {n: [values["price"][str(n)][key]] for n in _LENGTHS} for key in short}
    up, floor = "loss of the last 32 tokens (nats)", {"best possible": _FLOOR}
    panels = [
        Panel("tokens in a text", up, losses, "x", levels=floor),
        Panel("tokens in a text", "ms or MB, as named", prices, "xy"),
    ]
    sentences = []
    for kind, own in losses.items():
        at = f"{kind}: the loss is {fmean(own[_TRAINED]):.2f} at {_TRAINED} tokens"
        reason = values[f"{kind}, seed 1"][str(longest)]
        after = f'. Longer texts are refused: "{reason}".'
        if longest in own:
            after = f" and {fmean(own[longest]):.2f} at {longest:,}."
        sentences.append(at + after)
    growth = ", ".join(f"{key} {long[key] / short[key]:.0f} times" for key in short)
    sentences.append(f"The price of a text {longest // _TRAINED} times as long: {growth} as much.")
    return Findings(panels, sentences)
