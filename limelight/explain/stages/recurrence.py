"""What the paper replaced: a state that reads one token after another, and its attention.

torch computes a whole recurrence in one call, without names for what happens inside. Here it is
computed once more, gate by gate; the checks compare the states with the model's own.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.explain.focus import Focus, numbered, sum_of_products
from limelight.explain.stage import Cell, Formula, Heatmap, Stage, TableFigure, number

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
_EQUATIONS = {
    "lstm": "c = forget x c_before + input x candidate, h = output x tanh(c)",
    "gru": "h = (1 - update) x candidate + update x h_before",
    "rnn": "h = tanh(W x + U h_before + b)",
}
_WHAT = {
    "lstm": "Gates between 0 and 1 decide: the forget gate what stays of the cell's memory, the "
    "input gate what is added, the output gate what others see of it.",
    "gru": "Gates between 0 and 1 decide: the update gate how much of the state stays, the reset "
    "gate how much of it the candidate for the rest may use.",
    "rnn": "It has no gates: everything is mixed at every step, and old words fade.",
}


class _Layer(NamedTuple):
    """One layer: its values T H by direction, with those before the first token, H."""

    runs: dict[str, tuple[_Values, _Values]]

    @property
    def states(self) -> Tensor:
        return torch.cat([values["state"] for values, _ in self.runs.values()], dim=-1)

    def last(self, name: str) -> Tensor:
        """After the last token that was read: of the backward direction, that is the first."""
        ends = {"forward": -1, "backward": 0}
        return torch.cat([values[name][ends[way]] for way, (values, _) in self.runs.items()])


def _layers_of(focus: Focus, side: str) -> list[_Layer]:
    """The recurrence of one side, layer by layer; a decoder starts from the encoder's end."""
    before = _layers_of(focus, "encoder") if (side, focus.side) == ("decoder", "encoder") else []
    x = focus.tensor(f"{side}.embedding") * focus.trace.config.d_model**0.5
    both, found = side == "encoder", list[_Layer]()
    for layer in range(focus.trace.config.layers):
        runs = {}
        for way in ("forward", "backward") if both else ("forward",):
            size = focus.trace.config.d_model // (2 if both else 1)
            nothing = {name: x.new_zeros(size) for name in ("state", "cell")}
            begin = {n: before[layer].last(n) for n in _carried(focus)} if before else nothing
            runs[way] = _run(focus, f"{side}.cell", f"l{layer}", way, x, begin), begin
        found.append(_Layer(runs))
        x = found[-1].states
    return found


def _carried(focus: Focus) -> tuple[str, ...]:
    return ("state", "cell") if focus.trace.config.cell == "lstm" else ("state",)


def _run(
    focus: Focus, path: str, layer: str, way: str, x: Tensor, carried: Mapping[str, Tensor]
) -> _Values:
    """Read the tokens in one direction; the values of every step, in the order of the text."""
    compute, gates = _CELLS[focus.trace.config.cell]
    suffix = f"{layer}_reverse" if way == "backward" else layer
    weights = [focus.weight(f"{path}.{name}_{suffix}") for name in ("weight_ih", "weight_hh")]
    biases = [focus.weight(f"{path}.{name}_{suffix}") for name in ("bias_ih", "bias_hh")]
    inputs, steps, now = x @ weights[0].T + biases[0], list[_Values](), dict(carried)
    for t in range(len(x)) if way == "forward" else reversed(range(len(x))):
        recurrent = weights[1] @ now["state"] + biases[1]
        now = compute(inputs[t].chunk(gates), recurrent.chunk(gates), now)
        steps.append(now)
    steps = steps if way == "forward" else steps[::-1]
    return {name: torch.stack([step[name] for step in steps]) for name in steps[0]}


def recurrence(focus: Focus) -> Stage:
    """The first stack: an encoder that reads both ways, or the decoder alone."""
    return _recurrence(focus, focus.side)


def decoder_recurrence(focus: Focus) -> Stage:
    """The decoder, which starts where the encoder ended."""
    return _recurrence(focus, "decoder")


def _recurrence(focus: Focus, side: str) -> Stage:
    cell, all_layers = focus.trace.config.cell, _layers_of(focus, side)
    layer, tap = (
        all_layers[focus.layer],
        "encoder.output" if side == "encoder" else "decoder.states",
    )
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
    filled = f"h = {shown['state']}, and h_before = {shown['state before']}"
    if focus.trace.config.cell == "lstm":
        filled = (
            f"c = {shown['forget gate']} x {shown['cell before']} + {shown['input gate']} x "
            f"{shown['candidate']} = {shown['cell']}, h = {shown['output gate']} x "
            f"tanh({shown['cell']}) = {shown['state']}"
        )
    elif focus.trace.config.cell == "gru":
        filled = (
            f"h = (1 - {shown['update gate']}) x {shown['candidate']} + {shown['update gate']} x "
            f"{shown['state before']} = {shown['state']}"
        )
    return [Formula(f"first number: {_EQUATIONS[focus.trace.config.cell]}", filled, numbers)]


def _cell_grid(focus: Focus, side: str, layer: _Layer) -> Heatmap:
    i, runs = focus.word(side), layer.runs
    arrows = {"forward": "→ ", "backward": "← "} if len(runs) > 1 else {"forward": ""}
    rows = {
        f"{arrows[way]}{name}": value[i]
        for way, (values, _) in runs.items()
        for name, value in values.items()
    }
    values = torch.stack(list(rows.values()))
    title = f"gates and states at {focus.label(side)}"
    return Heatmap(title, ("cell",), values, list(rows), numbered(values.size(1)), at=i)


def _token_table(focus: Focus, side: str, layer: _Layer) -> TableFigure:
    """How open the gates are at every token, and how long the state is."""
    runs = [values for values, _ in layer.runs.values()]
    gates = [name for name in runs[0] if name.endswith("gate")]
    means = {name: torch.cat([v[name] for v in runs], dim=-1).mean(dim=-1) for name in gates}
    columns = [*means.values(), layer.states.norm(dim=-1)]
    labels = focus.words(side).labels
    rows: list[list[Cell]] = [
        [labels[t], *(column[t].item() for column in columns)] for t in range(len(labels))
    ]
    title = "mean of each gate, and the norm of the state" if gates else "the norm of the state"
    heads = ["token", *gates, "state"]
    return TableFigure(title, heads, rows, focus=focus.word(side), names=("gates",))


def attention(focus: Focus) -> Stage:
    """Additive attention from the decoder's states to the encoder's (Bahdanau et al. 2015)."""
    states, memory = focus.tensor("decoder.states"), focus.tensor("encoder.output")
    weights, i = focus.tensor("decoder.cross.weights"), focus.target_word
    queries, keys = (focus.linear(states, "attention.query"), focus.linear(memory, "attention.key"))
    compared = (queries[:, None] + keys).tanh()  # T S D
    scores = focus.linear(compared, "attention.score")[..., 0]
    j, block = int(weights[i].argmax()), focus.block("decoder", "cross")
    letters = "v . tanh(W query + U key)"
    name = f"score({focus.label('decoder')}, {block.key_tokens.labels[j]})"
    v, both = focus.weight("attention.score.weight")[0], compared[i, j]
    above, below = scores[i, j].exp().item(), scores[i].exp().sum().item()
    softmax = Formula(
        "weight = exp(score) / sum of exp(scores) in the row",
        f"{number(above)} / {number(below)} = {number(weights[i, j].item())}",
        {"above": above, "below": below, "weight": weights[i, j].item()},
    )
    mixed = torch.cat([states, weights @ memory], dim=-1)
    ones = torch.ones(len(weights)).double()
    return Stage(
        title="Attention: the decoder looks back at the encoder's states",
        what="Without attention, one state would have to hold the whole source. With it, each row "
        "of the decoder compares its state with all states of the encoder and reads a weighted "
        "sum of them. A small network gives the score here; the Transformer has q . k.",
        formulas=[sum_of_products(name, letters, v, both, ("v", "t")), softmax],
        figures=[
            Heatmap(
                "attention weights",
                ("decoder.cross.weights",),
                weights,
                block.rows,
                block.key_tokens.labels,
                ("query", "key"),
                "share",
                focus=(i, j),
                sums=True,
            )
        ],
        checks=[
            focus.check("scores = v . tanh(W query + U key)", "decoder.cross.masked", scores),
            focus.check("weights = softmax(scores)", weights, scores.softmax(dim=-1)),
            focus.check("every row sums to 1", weights.sum(dim=-1), ones),
            focus.check(
                "output = tanh(linear(state, weighted sum))",
                "decoder.cross.output",
                focus.linear(mixed, "attention.output").tanh(),
            ),
        ],
    )
