"""Does training get slower when the same tokens come as fewer, longer texts?

One training step (forward and backward) on 8,192 tokens, as 256 texts of 32 up to 2 texts of 4,096.
Language models of width 256 with 2 layers: a Transformer and an LSTM. A recurrent network computes
one position after the other; attention computes all at once, but compares every pair. The best of
three steps.
"""

from typing import Any

import torch

from limelight.lab.experiment import Findings, Measurements, Panel, Values, grid
from limelight.lab.networks import config_of, loss_of, make
from limelight.lab.report import by_length, by_seed
from limelight.lab.timing import best_device, milliseconds

SECONDS = (15.0, 60.0)
_VOCAB, _WIDTH, _LAYERS, _TOKENS = 256, 256, 2, 8192
_LENGTHS = (32, 128, 512, 2048, 4096)


def measurements(quick: bool) -> Measurements:
    """Milliseconds per step, for each network at each length."""
    lengths = _LENGTHS[:3] if quick else _LENGTHS
    return grid("{} at {}", _milliseconds, ("transformer", "lstm"), lengths)


def _milliseconds(kind: str, length: int) -> float:
    device = best_device()
    model: Any = make(config_of(kind, _VOCAB, _LAYERS, _WIDTH, length), 1, device)
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(_VOCAB, (_TOKENS // length, length), generator=random).to(device)

    def step() -> None:
        torch.autograd.backward(loss_of(model, (tokens, tokens)))
        model.zero_grad()

    return min(milliseconds(step, 4, device))  # the first prepares memory and kernels


def steps_in_sequence(kind: str, length: int) -> int:
    """Computations of which each needs the one before: the depth of a forward pass."""
    return _LAYERS * (length if kind == "lstm" else 1)


def findings(values: Values) -> Findings:
    """Whether the effect shows on this device."""
    found = by_length(values)
    short, long = min(found["lstm"]), max(found["lstm"])
    growth = {kind: own[long] / own[short] for kind, own in found.items()}
    faster = found["lstm"][long] / found["transformer"][long]
    depth = [steps_in_sequence(kind, long) for kind in ("lstm", "transformer")]
    verdict = f"Here the Transformer's step is {faster:.1f} times faster at that length."
    if faster <= 1.5 or growth["lstm"] <= growth["transformer"]:
        verdict = (
            "On this device the advantage does not show in time: it has few cores to keep busy, "
            "and attention pays for comparing every pair of tokens."
        )
    sentences = [
        f"From texts of {short} to texts of {long} tokens a step takes {growth['lstm']:.1f} times "
        f"as long in the LSTM and {growth['transformer']:.1f} times in the Transformer.",
        f"At {long} tokens an LSTM has {depth[0]:,} cells in sequence, the Transformer {depth[1]} "
        "layers.",
        verdict,
    ]
    curves, up = by_length(by_seed(values)), "ms per step of 8,192 tokens"
    return Findings([Panel("tokens in a text", up, curves, "xy", ".0f")], sentences)
