"""What the paper replaced: a state that reads one token after another, and its attention.

torch computes a whole recurrence in one call, without names for what happens inside. Here it is
computed once more, gate by gate; the checks compare the states with the model's own.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.explain.focus import Focus, numbered, sum_of_products
from limelight.explain.stage import Formula, Heatmap, Stage, TableFigure, factor, number
from limelight.explain.stages.attention import softmax_formula, weight_checks, weight_grid

_Values = dict[str, Tensor]  # by name: of one step, or T H of all steps


# A cell gets W x + b and U h + b, each split into gates, and what it has carried so far.


def _lstm(x: Sequence[Tensor], h: Sequence[Tensor], before: _Values) -> _Values:
    """Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000."""
    keep, forget, new, out = map(torch.add, x, h)
    gates = {"input gate": keep.sigmoid(), "forget gate": forget.sigmoid()}
    gates |= {"output gate": out.sigmoid(), "candidate": new.tanh()}
    cell = gates["forget gate"] * before["cell"] + gates["input gate"] * gates["candidate"]
    return {**gates, "cell": cell, "state": gates["output gate"] * cell.tanh()}


def _gru(x: Sequence[Tensor], h: Sequence[Tensor], before: _Values) -> _Values:
    """Cho et al. 2014."""
    reset, update = (x[0] + h[0]).sigmoid(), (x[1] + h[1]).sigmoid()
    candidate = (x[2] + reset * h[2]).tanh()
    state = (1 - update) * candidate + update * before["state"]
    return {"reset gate": reset, "update gate": update, "candidate": candidate, "state": state}


def _rnn(x: Sequence[Tensor], h: Sequence[Tensor], _: _Values) -> _Values:
    return {"state": (x[0] + h[0]).tanh()}


_CELLS = {"lstm": (_lstm, 4), "gru": (_gru, 3), "rnn": (_rnn, 1)}  # with the number of gates
_EQUATIONS = {  # in letters, and with numbers by their names
    "lstm": (
        "c = forget x c_before + input x candidate, h = output x tanh(c)",
        "c = {forget gate} x {cell before} + {input gate} x {candidate} = {cell}, "
        "h = {output gate} x tanh({cell}) = {state}",
    ),
    "gru": (
        "h = (1 - update) x candidate + update x h_before",
        "h = (1 - {update gate}) x {candidate} + {update gate} x {state before} = {state}",
    ),
    "rnn": ("h = tanh(W x + U h_before + b)", "h = {state}, and h_before = {state before}"),
}
_WHAT = {
    "lstm": "Gates between 0 and 1 decide: the forget gate what stays of the cell's memory, the "
    "input gate what is added, the output gate what others see of it.",
    "gru": "Gates between 0 and 1 decide: the update gate how much of the state stays, the reset "
    "gate how much of it the candidate for the rest may use.",
    "rnn": "It has no gates: everything is mixed at every step, and old words fade.",
}


_ENDS = {"forward": -1, "backward": 0}  # the token that each direction reads last


class _Layer(NamedTuple):
    """One layer: its values T H by direction, with those before the first token, H."""

    runs: dict[str, tuple[_Values, _Values]]

    @property
    def states(self) -> Tensor:
        return torch.cat([values["state"] for values, _ in self.runs.values()], dim=-1)

    def last(self, name: str) -> Tensor:
        return torch.cat([values[name][_ENDS[way]] for way, (values, _) in self.runs.items()])


def _layers_of(focus: Focus, side: str) -> list[_Layer]:
    """The recurrence of one side, layer by layer; a decoder starts from the encoder's end."""
    before = _layers_of(focus, "encoder") if (side, focus.side) == ("decoder", "encoder") else []
    x = focus.tensor(f"{side}.embedding") * focus.trace.config.d_model**0.5
    ways, found = list(_ENDS) if side == "encoder" else ["forward"], list[_Layer]()
    zeros = x.new_zeros(focus.trace.config.d_model // len(ways))
    for layer in range(focus.trace.config.layers):
        begin = {n: before[layer].last(n) if before else zeros for n in _carried(focus)}
        values = [_run(focus, f"{side}.cell", f"l{layer}", way, x, begin) for way in ways]
        found.append(_Layer({way: (each, begin) for way, each in zip(ways, values, strict=True)}))
        x = found[-1].states
    return found


def _carried(focus: Focus) -> tuple[str, ...]:
    return ("state", "cell") if focus.trace.config.cell == "lstm" else ("state",)


def _run(
    focus: Focus, path: str, layer: str, way: str, x: Tensor, carried: Mapping[str, Tensor]
) -> _Values:
    """Read the tokens in one direction; the values of every step, in the order of the text."""
    compute, gates = _CELLS[focus.trace.config.cell]
    suffix, order = (layer, 1) if way == "forward" else (f"{layer}_reverse", -1)
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w, u, w_bias, u_bias = (focus.weight(f"{path}.{part}_{suffix}") for part in parts)
    inputs, steps, now = x @ w.T + w_bias, list[_Values](), dict(carried)
    for t in range(len(x))[::order]:
        recurrent = u @ now["state"] + u_bias
        now = compute(inputs[t].chunk(gates), recurrent.chunk(gates), now)
        steps.append(now)
    steps = steps[::order]
    return {name: torch.stack([step[name] for step in steps]) for name in steps[0]}


def recurrence(focus: Focus, side: str = "") -> Stage:
    """An encoder that reads both ways, or a decoder; if not chosen, the first stack."""
    side = side or focus.side
    cell, all_layers = focus.trace.config.cell, _layers_of(focus, side)
    layer, tap = all_layers[focus.layer], f"{side}.{'output' if side == 'encoder' else 'states'}"
    starts = "It starts from zeros."
    if side == "encoder":
        starts = "One half of the numbers reads forwards, the other backwards, both from zeros."
    elif side != focus.side:
        starts = "It starts from the encoder's last state."
    return Stage(
        title=f"The {side}'s {cell.upper()} reads one token after another",
        what=f"A state of {focus.trace.config.d_model} numbers is carried from token to token: all "
        f"that a layer remembers. {starts} {_WHAT[cell]} No step can begin before the one before "
        "it has ended; the Transformer reads all tokens at once.",
        formulas=_cell_formulas(focus, side, layer),
        figures=[
            _cell_grid(focus, side, layer),
            _token_table(focus, side, layer),
            focus.all_words(side, tap, "state of the last layer after each token"),
        ],
        checks=[focus.check("the states of the last layer", tap, all_layers[-1].states)],
        location=f"{side}, layer {focus.layer + 1}, at {focus.label(side)}",
    )


def _cell_formulas(focus: Focus, side: str, layer: _Layer) -> list[Formula]:
    """The first number of the state at the chosen word, reading forwards."""
    (values, begin), i = layer.runs["forward"], focus.word(side)
    numbers = {name: value[i, 0].item() for name, value in values.items()}
    for name in _carried(focus):
        numbers[f"{name} before"] = (values[name][i - 1] if i else begin[name])[0].item()
    shown = {name: number(value) for name, value in numbers.items()}
    letters, filled = _EQUATIONS[focus.trace.config.cell]
    return [Formula(f"first number: {letters}", filled.format_map(shown), numbers)]


def _cell_grid(focus: Focus, side: str, layer: _Layer) -> Heatmap:
    i, runs = focus.word(side), layer.runs
    arrows = {"forward": "→ ", "backward": "← "} if len(runs) > 1 else {"forward": ""}
    rows: _Values = {}
    for way, (found, _) in runs.items():
        rows |= {f"{arrows[way]}{name}": value[i] for name, value in found.items()}
    values = torch.stack(list(rows.values()))
    title = f"gates and states at {focus.label(side)}"
    return Heatmap(title, ("cell",), values, list(rows), numbered(values.size(1)), at=i)


def _token_table(focus: Focus, side: str, layer: _Layer) -> TableFigure:
    """How open the gates are at every token, and how long the state is."""
    runs = [values for values, _ in layer.runs.values()]
    gates = [name for name in runs[0] if name.endswith("gate")]
    means = {name: torch.cat([v[name] for v in runs], dim=-1).mean(dim=-1) for name in gates}
    columns = [column.tolist() for column in (*means.values(), layer.states.norm(dim=-1))]
    rows = list(zip(focus.words(side).labels, *columns, strict=True))
    title = "mean of each gate, and the norm of the state" if gates else "the norm of the state"
    heads = ["token", *gates, "state"]
    return TableFigure(title, heads, rows, focus=focus.word(side), names=("gates",))


def attention(focus: Focus) -> Stage:
    """Additive attention from the decoder's states to the encoder's (Bahdanau et al. 2015)."""
    block, letters = focus.block("decoder", "cross"), "v . tanh(W query + U key)"
    states, memory = focus.tensor("decoder.states"), focus.tensor("encoder.output")
    queries, keys = (focus.linear(states, "attention.query"), focus.linear(memory, "attention.key"))
    compared = (queries[:, None] + keys).tanh()  # T S D
    scores = focus.linear(compared, "attention.score")[..., 0]
    name = f"score({focus.label('decoder')}, {block.key_tokens.labels[block.key_index]})"
    v = focus.weight("attention.score.weight")[0]
    both = compared[block.query_index, block.key_index]
    mixed = torch.cat([states, block.get("weights") @ memory], dim=-1)
    output = focus.linear(mixed, "attention.output").tanh()
    return Stage(
        title="Attention: the decoder looks back at the encoder's states",
        what="Without attention, one state would have to hold the whole source. With it, each row "
        "of the decoder compares its state with all states of the encoder and reads a weighted "
        "sum of them. A small network gives the score here; the Transformer has q . k.",
        formulas=[sum_of_products(name, letters, v, both, ("v", "t")), softmax_formula(block)],
        figures=[weight_grid(block)],
        checks=[
            block.check(f"scores = {letters}", "masked", scores),
            *weight_checks(block),
            block.check("output = tanh(linear(state, weighted sum))", "output", output),
        ],
    )


def ssru(focus: Focus) -> Stage:
    """The cell (Kim et al. 2019) in the place of a decoder's masked self-attention."""
    layer = focus.layer_on("decoder")
    name, path = f"decoder.{layer}.self", f"decoder.layers.{layer}.self_cell"
    gate, value, state = (focus.tensor(f"{name}.{part}") for part in ("gate", "value", "state"))
    read = focus.tensor(focus.origin(f"{name}.value")[0])
    gates = focus.linear(read, f"{path}.gate").sigmoid()
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
            focus.check("gates, from inputs and weights", gate, gates),
            focus.check("W x", value, focus.linear(read, f"{path}.value")),
            focus.check("each state, from the one before", state, _states(gate, value)),
            focus.check("output = max(0, c)", f"{name}.output", state.clamp(min=0)),
        ],
        notes=[] if focus.target_word else ["The first token has no state before it: it is 0."],
        location=f"decoder, layer {layer + 1}",
    )


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
    letters = "c = f x (c before) + (1 - f) x (W x), with f = sigmoid(W_f x + b)"
    filled = f"{factor(f)} x {factor(before)} + {factor(1 - f)} x {factor(v)} = {number(after)}"
    return Formula(letters, filled, {"gate": f, "before": before, "value": v, "state": after})
