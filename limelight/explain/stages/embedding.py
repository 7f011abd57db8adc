"""The first three stops: words become pieces, pieces become vectors, vectors know their places."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.data.tokenizer import readable
from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Check, Formula, Stage, TableFigure, number, vector
from limelight.explain.tokens import pieces_of, visible
from limelight.tasks.fill import BLANK

_NEIGHBOURS = 5


def pieces(view: Focus) -> Stage:
    """The tokenizer."""
    tokenizer, text = view.trace.trained.tokenizer, view.trace.text
    stays = tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)
    again = "the text again" + (", in small letters and marks apart" if tokenizer.uncased else "")
    return Stage(
        name="pieces",
        title="Words become pieces, pieces become numbers",
        section="5.1",
        what="The tokenizer cuts the text into pieces that it knows and gives each its number. The "
        "model never sees letters, only these numbers. (The mark · is a space.)",
        figures=[_piece_list(view), _merges(view)],
        checks=[Check(f"the pieces, put together, are {again}", 0.0 if stays else 1.0, 0.0)],
        notes=[
            f"The vocabulary has {len(tokenizer):,} pieces. Those in ⟨⟩ stand for no text: they "
            "say where something begins, ends or is missing."
        ],
    )


def _piece_list(view: Focus) -> TableFigure:
    """Every piece with its number, and where it comes from."""
    words, passage = view.words(view.side), view.trace.passage
    rows: list[list[Cell]] = []
    for i, span in enumerate(words.spans):
        where = "added" if span is None else f"{span[0] + 1} to {span[1]}"
        if view.side == "decoder" and i > passage.given:
            where = "given" if passage.mode == "given" else "written"
        rows.append([str(i), words.labels[i], str(words.ids[i]), where])
    heads = ["position", "piece", "id", "characters"]
    return TableFigure("what the model reads", heads, rows, focus=view.word(view.side))


def _merges(view: Focus) -> TableFigure:
    """How the tokenizer came to its pieces: for every different word, what was joined when."""
    tokenizer, text = view.trace.trained.tokenizer, view.trace.text
    parts = text.split(BLANK) if view.trace.trained.family == "encoder-only" else [text]
    work = {
        visible(readable("".join(steps[0]))): steps
        for part in parts
        for steps in tokenizer.show_work(part)
    }
    rows: list[list[Cell]] = [
        [word, tuple(" ".join(visible(readable(piece)) for piece in pieces) for pieces in steps)]
        for word, steps in work.items()
    ]
    title = "how it came to them: the pair that was learned first is joined first"
    return TableFigure(title, ["word", "its bytes, joined step by step"], rows, names=("merges",))


def embedding(view: Focus) -> Stage:
    """A row of the table for each piece."""
    side, words = view.side, view.words(view.side)
    table = view.weight(f"{'source' if side == 'encoder' else 'target'}.tokens.weight")
    rows = table[list(words.ids)]
    return Stage(
        name="embedding",
        title="Each piece is looked up in a learned table",
        section="3.4",
        what=f"A table of {table.size(0):,} rows has {table.size(1)} numbers for every piece; "
        "training moved them until pieces that are used alike have rows that are alike.",
        formulas=_looked_up(view, view.tensor(f"{side}.embedding")[view.word(side)]),
        figures=[
            view.all_words(side, f"{side}.embedding", "the rows of the table for this text"),
            _neighbours(view, table, words.ids[view.word(side)]),
        ],
        checks=[view.check("these are the table's rows", f"{side}.embedding", rows)],
    )


def _looked_up(view: Focus, found: Tensor) -> list[Formula]:
    """The chosen word's row, and what the paper multiplies it by."""
    i, first, scale = view.word(view.side), found[0].item(), _scale_of(view)
    row = f"embedding({view.label(view.side)}) = row {view.words(view.side).ids[i]} of the table"
    formulas = [Formula(row, f"{vector(found)}, {len(found)} numbers", {"first": first})]
    if scale != 1:
        formulas.append(
            Formula(
                "made larger by sqrt(d_model), as in the paper",
                f"{number(first)} x sqrt({len(found)}) = {number(first)} x {number(scale)} = "
                f"{number(first * scale)}",
                {"scale": scale, "scaled": first * scale},
            )
        )
    return formulas


def _neighbours(view: Focus, table: Tensor, token: int) -> TableFigure:
    """The pieces whose rows point the same way."""
    alike = F.cosine_similarity(table, table[token][None], dim=-1)
    alike[token] = -math.inf
    best = alike.nan_to_num(-1.0).topk(min(_NEIGHBOURS, len(alike))).indices.tolist()
    tokenizer = view.trace.trained.tokenizer
    rows: list[list[Cell]] = [
        [visible(piece), str(other), alike[other].item()]
        for other, piece in zip(best, pieces_of(tokenizer, best), strict=True)
    ]
    label = visible(pieces_of(tokenizer, [token])[0])
    title = f"nearest to {label} in the table (cosine: 1 is the same direction)"
    return TableFigure(title, ["piece", "id", "cosine"], rows, names=("neighbours",))


def positions(view: Focus) -> Stage:
    """Where a piece stands."""
    kind = view.trace.config.positions
    return _turned(view) if kind == "rotary" else _added(view, kind)


def _added(view: Focus, kind: str) -> Stage:
    """Sinusoidal and learned positions: a vector for every place, added to the piece's."""
    side, i = view.side, view.word(view.side)
    waves = view.tensor(f"{side}.positions")
    again, how = input_again(view, side)
    sinusoidal = kind == "sinusoidal"
    made = "made of waves from fast to slow, " if sinusoidal else "learned like a word's, "
    places = [f"place {place}" for place in range(len(waves))]
    return Stage(
        name="positions",
        title="Each vector learns where it stands",
        section="3.5",
        what="Attention sees a heap of words, in no order. So every place has a vector of its own, "
        f"{made}that is added to the word's.",
        formulas=[(_wave if sinusoidal else _learned)(i, waves), _adding(view, side, i, how)],
        figures=[
            view.all_words(side, f"{side}.positions", "the places", places),
            view.all_words(side, f"{side}.input", "what enters the first layer"),
        ],
        checks=[
            view.check(f"input = {how}", f"{side}.input", again),
            *(_wave_checks(view, waves) if sinusoidal else []),
        ],
    )


def _wave_checks(view: Focus, waves: Tensor) -> list[Check]:
    """The paper's formula, and why it was chosen (section 3.5)."""
    count, d_model = waves.shape
    return [
        view.check(
            "the waves are sin and cos of these angles", waves, _sinusoids_again(count, d_model)
        ),
        view.check(
            "two places on is the same turn from everywhere (why they are waves)",
            waves[2:],
            _turn(waves[:-2], 2),
        ),
    ]


def _turned(view: Focus) -> Stage:
    """Rotary positions: nothing is added here."""
    side = view.side
    again, how = input_again(view, side)
    return Stage(
        name="positions",
        title="Each vector will be turned by its place",
        section="3.5",
        what="This model has rotary positions: nothing is added to the words. Where a word stands "
        "comes in at the next stop, where its query and key are turned by an angle for its place.",
        figures=[view.all_words(side, f"{side}.input", "what enters the first layer")],
        checks=[view.check(f"input = {how}", f"{side}.input", again)],
    )


def _scale_of(view: Focus) -> float:
    """What an embedding is multiplied by: sqrt(d_model) in the paper, nothing in GPT and BERT."""
    config = view.trace.config
    return math.sqrt(config.d_model) if config.family == "encoder-decoder" else 1.0


def input_again(view: Focus, side: str) -> tuple[Tensor, str]:
    """What enters the first layer, computed from its parts, and how that is said."""
    scale, config = _scale_of(view), view.trace.config
    total = view.tensor(f"{side}.embedding") * scale
    said = "embedding" if scale == 1 else f"embedding x {number(scale)}"
    if config.positions != "rotary":
        total = total + view.tensor(f"{side}.positions")
        said += " + place"
    if config.family != "encoder-only":
        return total, said
    total = total + view.tensor(f"{side}.segments")
    return view.norm(total, "source.norm"), f"norm({said} + segment)"


def _adding(view: Focus, side: str, i: int, how: str) -> Formula:
    """The sum for the first number of the chosen word."""
    parts = {"embedding": view.tensor(f"{side}.embedding")[i, 0].item() * _scale_of(view)}
    parts["place"] = view.tensor(f"{side}.positions")[i, 0].item()
    if view.trace.config.family == "encoder-only":
        parts["segment"] = view.tensor(f"{side}.segments")[i, 0].item()
    result = view.tensor(f"{side}.input")[i, 0].item()
    filled = " + ".join(number(x) for x in parts.values())
    if view.trace.config.family == "encoder-only":
        filled = f"norm({filled}), with all {view.trace.config.d_model} numbers,"
    text = f"the first number of {view.label(side, i)}: {how}"
    return Formula(text, f"{filled} = {number(result)}", {**parts, "input": result})


def _wave(place: int, waves: Tensor) -> Formula:
    """Two numbers of a sinusoidal position, sine and cosine of one angle."""
    d_model = waves.size(1)
    pair = min(2, d_model // 2 - 1)  # the third wave, where it is slow enough to tell
    angle = place * 10000 ** (-2 * pair / d_model)
    return Formula(
        f"PE(place, 2i) = sin(place / 10000^(2i/{d_model})), PE(place, 2i+1) = cos(the same)",
        f"for place {place} and i = {pair}: sin({number(angle)}) = "
        f"{number(waves[place, 2 * pair].item())}, cos({number(angle)}) = "
        f"{number(waves[place, 2 * pair + 1].item())}",
        {
            "angle": angle,
            "sin": waves[place, 2 * pair].item(),
            "cos": waves[place, 2 * pair + 1].item(),
        },
    )


def _learned(place: int, table: Tensor) -> Formula:
    """A learned position is a row of a table, as a piece is."""
    text = f"position({place}) = row {place} of the table of places"
    return Formula(text, vector(table[place]), {"first": table[place, 0].item()})


def _sinusoids_again(count: int, d_model: int) -> Tensor:
    """The paper's formula, number by number."""
    angles = [
        [place / 10000 ** (2 * (j // 2) / d_model) for j in range(d_model)]
        for place in range(count)
    ]
    rows = [[math.cos(a) if j % 2 else math.sin(a) for j, a in enumerate(row)] for row in angles]
    return torch.tensor(rows, dtype=torch.float64)


def _turn(waves: Tensor, by: int) -> Tensor:
    """Places moved on by a linear map that is the same for all: a turn of every pair."""
    d_model = waves.size(1)
    angle = by * 10000 ** (-2 * torch.arange(d_model // 2, dtype=torch.float64) / d_model)
    sin, cos = waves[:, 0::2], waves[:, 1::2]
    moved = [sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()]
    return torch.stack(moved, dim=-1).flatten(1)
