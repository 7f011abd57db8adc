"""The recurrent cell that can take the place of the decoder's masked self-attention."""

import torch
from torch import Tensor

from limelight.explain.focus import Focus
from limelight.explain.stage import Formula, Stage, factor, number


def cell(focus: Focus) -> Stage:
    """The SSRU (Kim et al. 2019): one state carries everything that was read before."""
    name = f"decoder.{focus.layer}.self"
    path = f"decoder.layers.{focus.layer}.self_cell"
    gate, value, state = (focus.tensor(f"{name}.{part}") for part in ("gate", "value", "state"))
    read = focus.tensor(focus.origin(f"{name}.value")[0])
    parts = {"gate f": "gate", "W x": "value", "state c": "state", "output": "output"}
    steps = {label: f"{name}.{part}" for label, part in parts.items()}
    return Stage(
        title="A recurrent cell carries the earlier tokens along",
        what="This decoder has a recurrent cell (SSRU) in the place of masked self-attention. It "
        "reads the target tokens one after the other and keeps one state. A gate between 0 and 1 "
        "decides, number by number, how much of the state stays and how much is new.",
        formulas=[_state_formula(focus, gate[:, 0], value[:, 0], state[:, 0])],
        figures=[
            focus.one_word(f"{focus.label('decoder')}, step by step", steps, "decoder"),
            focus.all_words("decoder", f"{name}.gate", "gates (1: keep, 0: replace)"),
            focus.all_words("decoder", f"{name}.state", "states"),
        ],
        checks=[
            focus.check("gates, from inputs and weights", gate, _gates(focus, read, path)),
            focus.check("W x", value, focus.linear(read, f"{path}.value")),
            focus.check("each state, from the one before", state, _states(gate, value)),
            focus.check("output = max(0, c)", f"{name}.output", state.clamp(min=0)),
        ],
        notes=["The first token has no state before it: it is 0."]
        if focus.target_word == 0
        else [],
        location=f"decoder, layer {focus.layer + 1}",
    )


def _gates(focus: Focus, read: Tensor, path: str) -> Tensor:
    return 1 / (1 + (-focus.linear(read, f"{path}.gate")).exp())


def _states(gate: Tensor, value: Tensor) -> Tensor:
    states = [torch.zeros_like(value[0])]
    for f, v in zip(gate, value, strict=True):
        states.append(f * states[-1] + (1 - f) * v)
    return torch.stack(states[1:])


def _state_formula(focus: Focus, gate: Tensor, value: Tensor, state: Tensor) -> Formula:
    """For the first number of the chosen token's state."""
    i = focus.target_word
    before, after = state[i - 1].item() if i else 0.0, state[i].item()
    f, v = gate[i].item(), value[i].item()
    return Formula(
        "c = f x (c before) + (1 - f) x (W x), with f = sigmoid(W_f x + b)",
        f"{factor(f)} x {factor(before)} + {factor(1 - f)} x {factor(v)} = {number(after)}",
        {"gate": f, "before": before, "value": v, "state": after},
    )
