"""Text becomes pieces, pieces become vectors, and vectors get their positions."""

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Check, Formula, Stage, TableFigure, number, vector
from limelight.explain.tokens import labels_of, visible
from limelight.explain.trace import Trace
from limelight.model.positions import rotary_frequencies
from limelight.tasks.fill import BLANK

_NEIGHBOURS = 5
_ON_MAP = 2000  # tokens


def pieces(focus: Focus) -> Stage:
    """The tokenizer (section 5.1)."""
    tokenizer, text = focus.trace.trained.tokenizer, focus.trace.text
    round_trip = tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)
    again = "the text" + (", lowercased, punctuation split" if tokenizer.uncased else "")
    return Stage(
        title="Text becomes pieces, pieces become ids",
        what="The tokenizer splits the text into pieces that it knows and gives each its id. The "
        "model never sees letters, only these ids. (The mark · is a space; é¹/₂ is the first of "
        "two pieces that spell é.)",
        figures=[_piece_table(focus), _merge_table(focus)],
        checks=[Check(f"the pieces, joined, are {again}", 0.0 if round_trip else 1.0, 0.0)],
        notes=[
            f"The vocabulary has {len(tokenizer):,} pieces. Those in ⟨⟩ stand for no text: they "
            "mark where something begins, ends or is missing."
        ],
    )


def _piece_table(focus: Focus) -> TableFigure:
    words, traced_text = focus.words(focus.side), focus.trace.traced_text
    rows: list[list[Cell]] = []
    for i, span in enumerate(words.spans):
        origin = "added" if span is None else f"{span[0] + 1} to {span[1]}"
        if focus.side == "decoder" and i > traced_text.given:
            origin = "given" if traced_text.mode == "given" else "generated"
        rows.append([str(i), words.labels[i], str(words.ids[i]), origin])
    heads = ["position", "piece", "id", "characters"]
    return TableFigure("what the model reads", heads, rows, focus=focus.word(focus.side))


def _merge_table(focus: Focus) -> TableFigure:
    tokenizer, text = focus.trace.trained.tokenizer, focus.trace.text
    parts = text.split(BLANK) if focus.trace.trained.family == "encoder-only" else [text]
    rows: dict[str, tuple[str, ...]] = {}
    for steps in (steps for part in parts for steps in tokenizer.show_work(part)):
        merged = (" ".join(labels_of([*map(tokenizer.spell, pieces)])) for pieces in steps)
        rows[visible(tokenizer.spell("".join(steps[0])))] = tuple(merged)
    title = "how the pieces are found: the pair learned first is merged first"
    heads = ["word", "its bytes, merged step by step"]
    return TableFigure(title, heads, list(rows.items()), names=("merges",))


def embedding(focus: Focus) -> Stage:
    """A row of the embedding table for each piece (section 3.4)."""
    side, words = focus.side, focus.words(focus.side)
    table = embedding_table(focus.trace, side)
    again = table[list(words.ids)].double()
    return Stage(
        title="Each piece is looked up in the embedding table",
        what=f"The embedding table has {table.size(0):,} rows of {table.size(1)} numbers, one row "
        "per piece. Training gave similar rows to pieces that are used alike.",
        formulas=_row_formulas(focus, focus.tensor(f"{side}.embedding")[focus.word(side)]),
        figures=[
            focus.all_words(side, f"{side}.embedding", "embeddings"),
            _neighbour_table(focus, table, words.ids[focus.word(side)]),
        ],
        checks=[focus.check("rows of the table, by id", f"{side}.embedding", again)],
    )


def embedding_table(trace: Trace, side: str) -> Tensor:
    """The weights that a side looks its tokens up in, V D."""
    name = "source" if side == "encoder" else "target"
    path = f"{name}.weight" if trace.recurrent else f"{name}.tokens.weight"
    return trace.parameters[path].detach().cpu()


def _row_formulas(focus: Focus, found: Tensor) -> list[Formula]:
    side, first, scale = focus.side, found[0].item(), _scale_of(focus)
    token = focus.words(side).ids[focus.word(side)]
    row = f"embedding({focus.label(side)}) = row {token} of the table"
    formulas = [Formula(row, f"{vector(found)}, {len(found)} numbers", {"first": first})]
    if scale != 1:
        product = f"{number(first)} x {number(scale)} = {number(first * scale)}"
        filled = f"{number(first)} x sqrt({len(found)}) = {product}"
        numbers = {"scale": scale, "scaled": first * scale}
        formulas.append(Formula("multiplied by sqrt(d_model), as in the paper", filled, numbers))
    return formulas


def nearest_tokens(
    table: Tensor, tokens: Sequence[int], count: int, special: Collection[int] = ()
) -> list[list[tuple[int, float]]]:
    """For each token, the `count` other tokens with the largest cosine, from an embedding table.

    `special` tokens are left out: they have no useful neighbours.
    """
    unit = F.normalize(table, dim=1)
    cosine = unit[list(tokens)] @ unit.T  # T V
    cosine[:, [i for i in special if i < len(table)]] = -math.inf
    cosine[range(len(tokens)), list(tokens)] = -math.inf
    best = cosine.nan_to_num(-1.0).topk(min(count, len(table) - 1)).indices
    pairs = zip(cosine, best.tolist(), strict=True)
    return [[(i, row[i].item()) for i in near] for row, near in pairs]


def token_map(
    table: Tensor, own: Sequence[int]
) -> tuple[list[int], Tensor, Tensor, list[list[int]]]:
    """Tokens on a map: the plane in which their embeddings differ most (PCA).

    The tokens `own` of a text and what is nearest to them come first, then the table from its
    beginning, 2,000 tokens in all. With them their coordinates, the share of the variance on each
    axis, and for each token those nearest to it, by their place on the map.
    """
    asked = list(dict.fromkeys(own))
    near = [i for pairs in nearest_tokens(table, asked, _NEIGHBOURS) for i, _ in pairs]
    tokens = list(dict.fromkeys([*asked, *near, *range(len(table))]))[:_ON_MAP]
    rows = table[tokens].double().nan_to_num()
    centred = rows - rows.mean(dim=0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * axes[:2].sum(dim=1, keepdim=True).sign()  # either direction would do
    shares = sizes.square()[:2] / sizes.square().sum().clamp(min=1e-300)
    found = nearest_tokens(rows, range(len(rows)), min(_NEIGHBOURS, len(rows) - 1))
    return tokens, centred @ axes.T, shares, [[i for i, _ in pairs] for pairs in found]


def _neighbour_table(focus: Focus, table: Tensor, token: int) -> TableFigure:
    (nearest,) = nearest_tokens(table, [token], _NEIGHBOURS)
    pieces = focus.trace.trained.tokenizer.pieces([token, *(other for other, _ in nearest)])
    label, *labels = map(visible, pieces)
    rows = [(a, str(other), cosine) for a, (other, cosine) in zip(labels, nearest, strict=True)]
    title = f"nearest to {label} in the table (cosine 1: same direction)"
    return TableFigure(title, ["piece", "id", "cosine"], rows, names=("neighbours",))


_NOT_ADDED = {  # title and explanation, by the kind of positions
    "rotary": (
        "Positions enter later, as rotations",
        "This model has rotary positions: nothing is added to the embeddings. At the next "
        "stage, each query and key is rotated by an angle that depends on its position.",
    ),
    "none": (
        "Nothing marks the positions",
        "This model has no positions: nothing is added to the embeddings. An encoder then sees "
        "its tokens in no order; a decoder only knows which come before others, from its mask.",
    ),
}


def positions(focus: Focus) -> Stage:
    """Positional encoding (section 3.5), by the kind that the model uses."""
    side, i = focus.side, focus.word(focus.side)
    again, how = recompute_input(focus, side)
    total = focus.all_words(side, f"{side}.input", "input of the first layer")
    check = focus.check(f"input = {how}", f"{side}.input", again)
    if absent := _NOT_ADDED.get(focus.trace.config.positions):
        turned = [_turn_formula(focus, i)] if focus.trace.config.positions == "rotary" else []
        return Stage(
            title=absent[0], what=absent[1], formulas=turned, figures=[total], checks=[check]
        )
    vectors = focus.tensor(f"{side}.positions")
    sinusoidal = focus.trace.config.positions == "sinusoidal"
    made = "made of sinusoids from fast to slow" if sinusoidal else "learned like an embedding"
    labels = [f"position {position}" for position in range(len(vectors))]
    formula = _sinusoid_formula if sinusoidal else _learned_formula
    return Stage(
        title="Each vector gets its position",
        what="Attention by itself ignores the order of the tokens. So every position has its own "
        f"vector, {made}. It is added to the embedding.",
        formulas=[formula(i, vectors), _sum_formula(focus, side, how)],
        figures=[focus.all_words(side, f"{side}.positions", "the positions", labels), total],
        checks=[check, *(_sinusoid_checks(focus, vectors) if sinusoidal else [])],
    )


def _sinusoid_checks(focus: Focus, sinusoids: Tensor) -> list[Check]:
    """The formula of the paper, and that a shift is a linear map (section 3.5)."""
    moved = "two positions further is the same rotation everywhere (section 3.5)"
    return [
        focus.check("sin and cos of these angles", sinusoids, _sinusoids(*sinusoids.shape)),
        focus.check(moved, sinusoids[2:], _rotate(sinusoids[:-2], 2)),
    ]


def _scale_of(focus: Focus) -> float:
    """The paper multiplies embeddings by sqrt(d_model); GPT and BERT do not."""
    config = focus.trace.config
    scaled = focus.trace.recurrent or config.scales_embedding
    return math.sqrt(config.d_model) if scaled else 1.0


def recompute_input(focus: Focus, side: str) -> tuple[Tensor, str]:
    """The input of the first layer, computed from its parts, and the formula in words."""
    scale, config = _scale_of(focus), focus.trace.config
    total = focus.tensor(f"{side}.embedding") * scale
    how = "embedding" if scale == 1 else f"embedding x {number(scale)}"
    if config.positions not in _NOT_ADDED:
        total = total + focus.tensor(f"{side}.positions")
        how += " + position"
    if config.family != "encoder-only":
        return total, how
    total = total + focus.tensor(f"{side}.segments")
    return focus.norm(total, "source.norm"), f"norm({how} + segment)"


def _sum_formula(focus: Focus, side: str, how: str) -> Formula:
    i = focus.word(side)
    parts = {"embedding": focus.tensor(f"{side}.embedding")[i, 0].item() * _scale_of(focus)}
    parts["place"] = focus.tensor(f"{side}.positions")[i, 0].item()
    bert = focus.trace.config.family == "encoder-only"
    if bert:
        parts["segment"] = focus.tensor(f"{side}.segments")[i, 0].item()
    result = focus.tensor(f"{side}.input")[i, 0].item()
    filled = " + ".join(map(number, parts.values()))
    if bert:
        filled = f"norm({filled}), with all {focus.trace.config.d_model} numbers,"
    text = f"the first number of {focus.label(side)}: {how}"
    return Formula(text, f"{filled} = {number(result)}", {**parts, "input": result})


def _sinusoid_formula(position: int, sinusoids: Tensor) -> Formula:
    d_model = sinusoids.size(1)
    pair = min(2, d_model // 2 - 1)  # the third sinusoid: slow enough to see it move
    angle = position * 10000 ** (-2 * pair / d_model)
    sin, cos = sinusoids[position, 2 * pair : 2 * pair + 2].tolist()
    letters = f"PE(pos, 2i) = sin(pos / 10000^(2i/{d_model})), PE(pos, 2i+1) = cos(pos / ...)"
    both = f"sin({number(angle)}) = {number(sin)}, cos({number(angle)}) = {number(cos)}"
    filled = f"for pos = {position} and i = {pair}: {both}"
    return Formula(letters, filled, {"angle": angle, "sin": sin, "cos": cos})


def _turn_formula(focus: Focus, position: int) -> Formula:
    """By which angles a fast, a slower and the slowest pair of numbers is turned."""
    config = focus.trace.config
    speeds = rotary_frequencies(config, torch.device("cpu"), torch.float64).tolist()
    pairs = dict.fromkeys([0, len(speeds) // 5, len(speeds) - 1])
    angles = {f"numbers {2 * i + 1} and {2 * i + 2}": position * speeds[i] for i in pairs}
    told = ", ".join(f"{name} by {number(angle)}" for name, angle in angles.items())
    letters = f"angle(pos, i) = pos x {config.rotary_base:g}^(-2i/{config.d_head})"
    if config.rotary_scaling != "none":
        letters += f", then slowed ({config.rotary_scaling})"
    return Formula(letters, f"for pos = {position}, in radians: {told}", angles)


def _learned_formula(position: int, table: Tensor) -> Formula:
    text = f"position({position}) = row {position} of the position table"
    return Formula(text, vector(table[position]), {"first": table[position, 0].item()})


def _sinusoids(count: int, d_model: int) -> Tensor:
    pair = torch.arange(d_model, dtype=torch.float64) // 2
    angles = torch.arange(count)[:, None] / 10000 ** (2 * pair / d_model)
    return torch.where(torch.arange(d_model) % 2 == 1, angles.cos(), angles.sin())


def _rotate(sinusoids: Tensor, by: int) -> Tensor:
    """Moves every position by the same linear map: a rotation of each pair of numbers."""
    d_model = sinusoids.size(1)
    angle = by * 10000 ** (-2 * torch.arange(d_model // 2, dtype=torch.float64) / d_model)
    sin, cos = sinusoids[:, 0::2], sinusoids[:, 1::2]
    moved = [sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()]
    return torch.stack(moved, dim=-1).flatten(1)
