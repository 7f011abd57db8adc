"""What does the next token cost when a text is already long?

Language models of width 256, a Transformer of 4 layers and an LSTM of 4, write one token after n.
Without a cache the Transformer reads all n tokens again for each new one; with it, only the newest.
The median of 15 tokens at each length, one text at a time.
"""

from functools import partial
from statistics import median
from typing import Any

import torch

from limelight.lab.experiment import Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import config_of, make
from limelight.lab.report import by_length, by_seed
from limelight.lab.timing import best_device, milliseconds

SECONDS = (2.0, 8.0)
_VOCAB, _WIDTH, _LAYERS, _REPEATS = 1000, 256, 4, 15
_LENGTHS = (16, 64, 256, 1024)
_WAYS = ("no cache", "KV cache", "lstm")


def measurements(quick: bool) -> Measurements:
    """Milliseconds per token, for each way at each length."""
    lengths = _LENGTHS[:3] if quick else _LENGTHS
    return grid("{} at {}", _milliseconds, _WAYS, lengths)


@torch.no_grad()
def _milliseconds(way: str, length: int) -> float:
    device = best_device()
    kind = "lstm" if way == "lstm" else "transformer"
    longest = length + _REPEATS + 1
    model = make(config_of(kind, _VOCAB, _LAYERS, _WIDTH, longest), 1, device).eval()
    text = torch.zeros(1, length, dtype=torch.long, device=device)
    if way == "no cache":
        return median(milliseconds(lambda: model(text)[:, -1].argmax(dim=-1), _REPEATS, device))
    state: Any = model.start(1, longest)
    model.step(text, state)
    write = partial(model.step, text[:, :1], state)
    return median(milliseconds(lambda: write().argmax(dim=-1), _REPEATS, device))


def findings(values: Values) -> Findings:
    """How each way grows from the shortest to the longest text."""
    ways = by_length(values)
    short, long = min(ways["KV cache"]), max(ways["KV cache"])
    sentences = [
        f"{way}: {own[short]:.2f} ms per token after {short} tokens, {own[long]:.2f} after {long}, "
        f"{own[long] / own[short]:.1f} times as much."
        for way, own in ways.items()
    ]
    gain = ways["no cache"][long] / ways["KV cache"][long]
    if gain > 1:
        sentences.append(f"After {long} tokens the cache makes a token {gain:.1f} times cheaper.")
    else:
        sentences.append(
            f"On this device the cache does not pay within {long} tokens: one text keeps few of "
            "its units busy, and starting the work takes longer than the work."
        )
    curves = by_length(by_seed(values))
    return Findings([Panel("tokens so far", "ms per new token", curves, log="xy")], sentences)
