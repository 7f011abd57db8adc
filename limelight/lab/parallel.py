"""Is a whole text read at once? The time of a training step against the length of the texts."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from limelight.lab.experiment import Measurements, Values
from limelight.lab.networks import best_device, config_of, loss_of, make
from limelight.lab.report import by_length, draw_by_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "Does training get slower when the same tokens come as fewer, longer texts?"
SETTING = (
    "One training step (forward and backward) on 8,192 tokens, as 256 texts of 32 up to 2 texts of "
    "4,096. Language models of width 256 with 2 layers: a Transformer and an LSTM. A recurrent "
    "network computes one position after the other; attention computes all at once, but compares "
    "every pair. The best of three steps."
)
SECONDS = (15.0, 60.0)
_VOCAB, _WIDTH, _LAYERS, _TOKENS = 256, 256, 2, 8192
_LENGTHS = (32, 128, 512, 2048, 4096)


def measurements(quick: bool) -> Measurements:
    """Milliseconds per step, for each network at each length."""
    lengths = _LENGTHS[:3] if quick else _LENGTHS
    kinds = ("transformer", "lstm")
    return {f"{kind} at {n}": partial(_milliseconds, kind, n) for kind in kinds for n in lengths}


def _milliseconds(kind: str, length: int) -> float:
    device = best_device()
    model: Any = make(config_of(kind, _VOCAB, _LAYERS, _WIDTH, length), 1, device)
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(_VOCAB, (_TOKENS // length, length), generator=random).to(device)
    best = float("inf")
    for _ in range(4):  # the first prepares memory and kernels
        began = time.perf_counter()
        torch.autograd.backward(loss_of(model, (tokens, tokens)))
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
        model.zero_grad()
    return 1000 * best


def steps_in_sequence(kind: str, length: int) -> int:
    """Computations of which each needs the one before: the depth of a forward pass."""
    return _LAYERS * (length if kind == "lstm" else 1)


def table(values: Values) -> list[list[str]]:
    """A row for each network, with the steps in sequence beside each time."""
    found = by_length(values)
    header = [f"{n} tokens" for n in next(iter(found.values()))]
    rows = [
        [kind, *(f"{ms:.0f} ms ({steps_in_sequence(kind, n):,})" for n, ms in own.items())]
        for kind, own in found.items()
    ]
    return [["time of a step (layers or cells in sequence)", *header], *rows]


def figure(values: Values) -> "Figure":
    """One line for each network."""
    return draw_by_length(values, "tokens in a text", "ms per step of 8,192 tokens")


def conclusion(values: Values) -> list[str]:
    """Whether the effect shows on this device."""
    found = by_length(values)
    short, long = min(found["lstm"]), max(found["lstm"])
    growth = {kind: own[long] / own[short] for kind, own in found.items()}
    faster = found["lstm"][long] / found["transformer"][long]
    depth = [steps_in_sequence(kind, long) for kind in ("lstm", "transformer")]
    sentences = [
        f"From texts of {short} to texts of {long} tokens a step takes {growth['lstm']:.1f} times "
        f"as long in the LSTM and {growth['transformer']:.1f} times in the Transformer.",
        f"At {long} tokens an LSTM has {depth[0]:,} cells in sequence, the Transformer {depth[1]} "
        "layers.",
    ]
    if faster > 1.5 and growth["lstm"] > growth["transformer"]:
        sentences.append(
            f"Here the Transformer's step is {faster:.1f} times faster at that length."
        )
    else:
        sentences.append(
            "On this device the advantage does not show in time: it has few cores to keep busy, "
            "and attention pays for comparing every pair of tokens."
        )
    return sentences
