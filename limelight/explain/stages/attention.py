"""The stops of equation 1: queries, keys and values, then softmax(Q K^T / sqrt(d_k)) V."""

import math

import torch
from torch import Tensor

from limelight.explain.focus import AttentionView, Focus, numbered, sum_of_products
from limelight.explain.stage import Check, Formula, Heatmap, Scale, Stage, number

_LARGE = 9.0  # e to a larger score is no number for people; the largest can be taken off all
_TURNED = " Its place turns q and k: pairs of numbers (1, 2), (3, 4) ... by angles of their own."
_ROLES = {"q": "q, the question", "k": "k, the label", "v": "v, the content"}


def queries(view: Focus) -> Stage:
    """Three linear layers."""
    block = view.block(view.side)
    rotary = view.trace.config.positions == "rotary"
    claim = "{} of all words, from their vectors and the weights"
    return Stage(
        name="queries",
        title="Every word makes a question, a label and a content",
        section="3.2.2",
        what="Three learned linear layers make of each word's vector a query (what am I looking "
        "for?), a key (what do I offer?) and a value (what do I pass on?)."
        + (_TURNED if rotary else ""),
        formulas=[_first_number(view, block)],
        figures=[_roles(view, block)],
        checks=[view.check(claim.format(x), block.get(x), block.recompute(x)) for x in "qkv"],
        notes=[f"x, the vector that enters here, is {view.origin(f'{block.name}.query')[0]}."],
        place=block.place,
    )


def _roles(view: Focus, block: AttentionView) -> Heatmap:
    """The chosen word's query, key and value."""
    values = torch.stack([block.get(step)[block.query_index] for step in _ROLES])
    return Heatmap(
        f"q, k and v of {view.label(block.side)}",
        tuple(f"{block.name}.{step}" for step in _ROLES),
        values,
        list(_ROLES.values()),
        numbered(values.size(1)),
        head=view.head,
        at=block.query_index,
    )


def _first_number(view: Focus, block: AttentionView) -> Formula:
    """The first number of a query, before any turn: x . w + b."""
    x = block.read("query")[block.query_index]
    row = view.head * view.trace.config.d_head
    weights = view.weight(f"{block.path}.query.weight")[row]
    bias = f"{block.path}.query.bias"
    shift = view.weight(bias)[row].item() if view.trace.has_weight(bias) else None
    letters = "x . w" if shift is None else "x . w + b"
    what = f"query({view.label(block.side)}), its first number"
    return sum_of_products(what, letters, x, weights, ("x", "w"), shift)


def scores(view: Focus) -> Stage:
    """Every question against every label."""
    block = view.block(view.side)
    q, k = block.get("q"), block.get("k")
    return Stage(
        name="scores",
        title="Every question meets every label",
        section="3.2.1",
        what="A score says how well the question of one word (row) fits the label of another "
        "(column): the numbers of q and k multiplied in pairs and added up.",
        formulas=[block.dot_product()],
        figures=[_grid(block, "scores", "scores, Q K^T")],
        checks=[view.check("scores = Q K^T, from q and k", block.get("scores"), q @ k.T)],
        place=block.place,
    )


def scaling(view: Focus) -> Stage:
    """Divided by sqrt(d_k)."""
    block, d_k = view.block(view.side), view.trace.config.d_head
    return Stage(
        name="scaling",
        title="The scores are made smaller",
        section="3.2.1",
        what=f"Sums of {d_k} products grow large, and softmax would then give everything to one "
        f"word and learn nothing more. So they are divided by sqrt(d_k) = sqrt({d_k}).",
        formulas=[_scaled_formula(block)],
        figures=[_grid(block, "scaled", "scaled scores")],
        checks=[
            view.check(
                f"scaled = scores / sqrt({d_k})",
                block.get("scaled"),
                block.get("scores") / math.sqrt(d_k),
            )
        ],
        place=block.place,
    )


def _scaled_formula(block: AttentionView) -> Formula:
    """One score, before and after."""
    i, j = block.query_index, block.key_index
    before, after = block.get("scores")[i, j].item(), block.get("scaled")[i, j].item()
    d_k = block.view.trace.config.d_head
    root = math.sqrt(d_k)
    return Formula(
        "scaled = score / sqrt(d_k)",
        f"{number(before)} / sqrt({d_k}) = {number(before)} / {number(root)} = {number(after)}",
        {"score": before, "root": root, "scaled": after},
    )


def mask(view: Focus) -> Stage:
    """What may not be seen."""
    block = view.block(view.side)
    causal = block.side == "decoder"
    what = (
        "A word must not look at words that come after it: in training they stand there, and to "
        "copy them would be cheating. So -inf is added to their scores, after scaling and before "
        "softmax."
        if causal
        else "An encoder may look both ways, and a single text has no padding: here nothing is "
        "hidden, 0 is added to every score. (In a batch, padding gets -inf.)"
    )
    return Stage(
        name="mask",
        title="What must not be seen is hidden" if causal else "Nothing is hidden from an encoder",
        section="3.2.3",
        what=what,
        formulas=_mask_formulas(block),
        figures=[_grid(block, "masked", "masked scores")],
        checks=[_mask_check(view, block)],
        place=block.place,
    )


def _mask_formulas(block: AttentionView) -> list[Formula]:
    """A score that stays, and one that goes."""
    i, j = block.query_index, block.key_index
    before, after = block.get("scaled")[i, j].item(), block.get("masked")[i, j].item()
    words = block.key_tokens.labels
    kept = Formula(
        f"{block.query_tokens.labels[i]} may see {words[j]}: + 0",
        f"{number(before)} + 0 = {number(after)}",
        {"scaled": before, "masked": after},
    )
    later = i + 1
    if block.side != "decoder" or block.use == "cross" or later >= len(words):
        return [kept]
    before = block.get("scaled")[i, later].item()
    gone = Formula(
        f"{words[later]} comes after {block.query_tokens.labels[i]}: + (-inf)",
        f"{number(before)} + (-inf) = {number(block.get('masked')[i, later].item())}",
        {"later": before},
    )
    return [kept, gone]


def _mask_check(view: Focus, block: AttentionView) -> Check:
    """-inf above the diagonal of a decoder's own attention and nowhere else."""
    expected = block.get("scaled").clone()
    if block.side == "decoder" and block.use == "self":
        expected += torch.full_like(expected, -math.inf).triu(diagonal=1)
        claim = "masked = scaled + (0, or -inf above the diagonal)"
    else:
        claim = "masked = scaled + 0: nothing is hidden"
    return view.check(claim, block.get("masked"), expected)


def softmax(view: Focus) -> Stage:
    """Scores become shares."""
    block = view.block(view.side)
    return Stage(
        name="softmax",
        title="Scores become shares that sum to 1",
        section="3.2.1",
        what="Softmax makes each row of scores into weights between 0 and 1 that sum to 1: how "
        "the word divides its attention. What was -inf becomes exactly 0.",
        formulas=[_softmax_formula(block)],
        figures=[_grid(block, "weights", "attention weights", "share", sums=True)],
        checks=_weight_checks(view, block),
        place=block.place,
    )


def _softmax_formula(block: AttentionView) -> Formula:
    """One weight: e to its score, over the sum for the whole row."""
    i, j = block.query_index, block.key_index
    row = block.get("masked")[i]
    letters = "weight = exp(score) / sum of exp(scores) in the row"
    if row.max() > _LARGE:
        row = row - row.max()
        letters = "weight = exp(score - largest) / sum of exp(scores - largest) in the row"
    above, below = row[j].exp().item(), row.exp().sum().item()
    weight = block.get("weights")[i, j].item()
    visible = int((row > -math.inf).sum())
    return Formula(
        letters,
        f"exp({number(row[j].item())}) / (sum of {visible} such) = {number(above)} / "
        f"{number(below)} = {number(weight)}",
        {"score": row[j].item(), "above": above, "below": below, "weight": weight},
    )


def _weight_checks(view: Focus, block: AttentionView) -> list[Check]:
    """Rows that sum to 1, and are the softmax of the scores that were shown."""
    weights = block.get("weights")
    checks = [
        view.check(
            "weights = softmax(masked scores)", weights, block.get("masked").softmax(dim=-1)
        ),
        view.check("every row sums to 1", weights.sum(dim=-1), torch.ones(len(weights)).double()),
    ]
    if block.side == "decoder" and block.use == "self":
        ahead = weights.triu(diagonal=1).max().item()
        checks.append(Check("no weight on anything that comes later", ahead, 0.0))
    return checks


def weighted_sum(view: Focus) -> Stage:
    """What a word takes from the others."""
    block = view.block(view.side)
    return Stage(
        name="sum",
        title="The contents are mixed in these shares",
        section="3.2.1",
        what="Each word collects the contents (values) of all words it looks at, each multiplied "
        "by its share, and adds them up.",
        formulas=[_sum_formula(block)],
        figures=[_shares(block)],
        checks=[
            view.check(
                "mixed = weights x V, for all words",
                block.get("mixed"),
                block.get("weights") @ block.get("v"),
            )
        ],
        place=block.place,
    )


def _sum_formula(block: AttentionView) -> Formula:
    """The first number of the mixture."""
    weights, values = block.get("weights")[block.query_index], block.get("v")[:, 0]
    what = f"what {block.query_tokens.labels[block.query_index]} collects, its first number"
    return sum_of_products(what, "sum of weight x v", weights, values, ("weight", "v"))


def _shares(block: AttentionView) -> Heatmap:
    """Every value times its weight, and their sum."""
    weights, values = block.get("weights")[block.query_index], block.get("v")
    contributions = weights[:, None] * values
    total = block.get("mixed")[block.query_index]
    rows = [
        f"{number(w)} x {label}"
        for w, label in zip(weights.tolist(), block.key_tokens.labels, strict=True)
    ]
    return Heatmap(
        f"what {block.query_tokens.labels[block.query_index]} collects from each word",
        (f"{block.name}.contributions",),
        torch.cat([contributions, total[None]]),
        [*rows, "sum"],
        numbered(total.size(0)),
        ("weight x word", "number"),
        head=block.view.head,
        at=block.query_index,
        focus=(len(rows), None),
    )


def heads(view: Focus) -> Stage:
    """Several at once, side by side, and one more linear layer."""
    block, config = view.block(view.side), view.trace.config
    name, label = block.name, view.label(block.side)
    concat, d_model = view.tensor(f"{name}.concat"), config.d_model
    mixed = view.tensor(f"{name}.mixed").transpose(0, 1).flatten(1)
    again = view.linear(concat, f"{block.path}.output")
    together = {"side by side": f"{name}.concat", "output": f"{name}.output"}
    return Stage(
        name="heads",
        title=f"{config.heads} heads look at once",
        section="3.2.2",
        what=f"All this happens {config.heads} times, each head with weights of its own, so that a "
        "word can look at several things at once. The results are put side by side, and one more "
        "linear layer makes one vector of them.",
        formulas=[
            Formula(
                "output = (head 1, head 2, ...) W_o + b",
                f"{config.heads} x {config.d_head} numbers = {d_model}, and out come {d_model}",
            )
        ],
        figures=[
            _each_head(block),
            view.one_word(f"{label} after all heads", together, block.side),
        ],
        checks=[
            view.check("side by side: the heads' sums, one after the other", concat, mixed),
            view.check("output = the linear layer of that", f"{name}.output", again),
        ],
        place=f"{block.side}, layer {view.layer + 1}",
    )


def _each_head(block: AttentionView) -> Heatmap:
    """Where the chosen word looks, in every head."""
    weights = block.view.tensor(f"{block.name}.weights")[:, block.query_index]
    return Heatmap(
        f"where {block.query_tokens.labels[block.query_index]} looks, head by head",
        (f"{block.name}.weights",),
        weights,
        [f"head {h + 1}" for h in range(len(weights))],
        block.key_tokens.labels,
        ("head", "key"),
        "share",
        at=block.query_index,
        focus=(block.view.head, None),
        sums=True,
    )


def masked_self(view: Focus) -> Stage:
    """The decoder's own attention, with what is to come hidden."""
    block = view.block("decoder")
    scores = block.recompute("q") @ block.recompute("k").T
    mixed = block.get("weights") @ block.recompute("v")
    return Stage(
        name="masked",
        title="The decoder looks back, never ahead",
        section="3.2.3",
        what="The same attention among the words written so far. All rows are computed at once, so "
        "a row could see the words it is to find; the mask hides them (-inf), and softmax gives "
        "them exactly 0.",
        formulas=[*_walk_through(block)[:2], *_mask_formulas(block)[1:], *_walk_through(block)[2:]],
        figures=[
            _grid(block, "masked", "scaled scores with the mask"),
            _grid(block, "weights", "attention weights", "share", sums=True),
        ],
        checks=[
            view.check("scores = Q K^T, from states and weights", block.get("scores"), scores),
            _mask_check(view, block),
            *_weight_checks(view, block),
            view.check("mixed = weights x V", block.get("mixed"), mixed),
        ],
        place=block.place,
    )


def _walk_through(block: AttentionView) -> list[Formula]:
    """All of equation 1 for one pair of words."""
    dot, scaled = block.dot_product(), _scaled_formula(block)
    return [dot, scaled, _softmax_formula(block), _sum_formula(block)]


def cross(view: Focus) -> Stage:
    """The decoder asks, the encoder answers."""
    block = view.block("decoder", "cross")
    rows, columns = block.get("weights").shape
    froms = {"q": "the decoder's states", "k": "the encoder's output", "v": "the encoder's output"}
    mixed = block.get("weights") @ block.recompute("v")
    return Stage(
        name="cross",
        title="The decoder asks, the encoder answers",
        section="3.2.3",
        what="Here the two sides meet: each word being written looks for what it needs in the "
        "source. The query comes from the decoder's word, keys and values from the encoder's "
        "output.",
        formulas=_walk_through(block),
        figures=[
            _grid(block, "scaled", "scaled scores"),
            _grid(block, "weights", "attention weights", "share", sums=True),
        ],
        checks=[
            *(
                view.check(f"{x} from {y}", block.get(x), block.recompute(x))
                for x, y in froms.items()
            ),
            *_weight_checks(view, block),
            view.check("mixed = weights x V", block.get("mixed"), mixed),
        ],
        notes=[
            "Many explainers have this the other way round (queries from the encoder). The shape "
            f"settles it: {rows} rows for the {rows} positions that ask, in the decoder, and "
            f"{columns} columns for the {columns} source tokens that answer."
        ],
        place=block.place,
    )


def _grid(
    block: AttentionView, step: str, title: str, scale: Scale = "signed", sums: bool = False
) -> Heatmap:
    """A step of equation 1 for all words: a row for each that asks, a column for each answer."""
    values: Tensor = block.get(step)
    return Heatmap(
        title,
        (f"{block.name}.{step}",),
        values,
        block.rows,
        block.key_tokens.labels,
        ("asks", "answers"),
        scale,
        head=block.view.head,
        focus=(block.query_index, block.key_index),
        sums=sums,
    )
