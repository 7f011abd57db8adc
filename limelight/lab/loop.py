"""What does a written token cost? With a KV cache, without one, and in a recurrent network."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from limelight.lab.experiment import Measurements, Values
from limelight.lab.networks import best_device, config_of, make
from limelight.lab.report import by_length, draw_by_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What does the next token cost when a text is already long?"
SETTING = (
    "Language models of width 256, a Transformer of 4 layers and an LSTM of 4, write one token "
    "after n. Without a cache the Transformer reads all n tokens again for each new one; with it, "
    "only the newest. The median of 15 tokens at each length, one text at a time."
)
SECONDS = (2.0, 8.0)
_VOCAB, _WIDTH, _LAYERS, _REPEATS = 1000, 256, 4, 15
_LENGTHS = (16, 64, 256, 1024)
_WAYS = ("no cache", "KV cache", "lstm")


def measurements(quick: bool) -> Measurements:
    """Milliseconds per token, for each way at each length."""
    lengths = _LENGTHS[:3] if quick else _LENGTHS
    return {f"{way} at {n}": partial(_milliseconds, way, n) for way in _WAYS for n in lengths}


@torch.no_grad()
def _milliseconds(way: str, length: int) -> float:
    device = best_device()
    kind = "lstm" if way == "lstm" else "transformer"
    longest = length + _REPEATS + 1
    model = make(config_of(kind, _VOCAB, _LAYERS, _WIDTH, longest), 1, device).eval()
    text = torch.zeros(1, length, dtype=torch.long, device=device)
    if way == "no cache":
        return _median(lambda: model(text)[:, -1].argmax(dim=-1), device)
    state: Any = model.start(1, longest)
    model.step(text, state)
    newest = text[:, :1]
    return _median(lambda: model.step(newest, state).argmax(dim=-1), device)


def _median(write: Callable[[], Any], device: str) -> float:
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        write()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def table(values: Values) -> list[list[str]]:
    """A row for each way, a column for each length."""
    ways = by_length(values)
    lengths = [f"{n} tokens" for n in next(iter(ways.values()))]
    rows = [[way, *(f"{ms:.2f}" for ms in own.values())] for way, own in ways.items()]
    return [["milliseconds per token", *lengths], *rows]


def figure(values: Values) -> "Figure":
    """One line for each way."""
    return draw_by_length(values, "tokens so far", "ms per new token")


def conclusion(values: Values) -> list[str]:
    """How each way grows from the shortest to the longest text."""
    sentences = []
    for way, own in by_length(values).items():
        short, long = min(own), max(own)
        growth = own[long] / own[short]
        sentences.append(
            f"{way}: {own[short]:.2f} ms per token after {short} tokens, {own[long]:.2f} after "
            f"{long}, {growth:.1f} times as much."
        )
    ways = by_length(values)
    longest = max(ways["KV cache"])
    gain = ways["no cache"][longest] / ways["KV cache"][longest]
    sentences.append(f"After {longest} tokens the cache makes a token {gain:.1f} times cheaper.")
    return sentences
