"""The stops of equation 1: queries, keys and values, then softmax(Q K^T / sqrt(d_k)) V."""

import math

import torch
from torch import Tensor

from limelight.explain.focus import Block, View, numbered, sum_of_products
from limelight.explain.stage import Check, Formula, Grid, Scale, Stop, number

LARGE = 9.0  # e to a larger score is no number for people; the largest can be taken off all
TURNED = " Its place turns q and k: pairs of numbers (1, 2), (3, 4) ... by angles of their own."
ROLES = {"q": "q, the question", "k": "k, the label", "v": "v, the content"}


def queries(view: View) -> Stop:
    """Three linear layers."""
    block = view.block(view.side)
    rotary = view.trace.config.positions == "rotary"
    claim = "{} of all words, from their vectors and the weights"
    return Stop(
        name="queries",
        title="Every word makes a question, a label and a content",
        section="3.2.2",
        what="Three learned linear layers make of each word's vector a query (what am I looking "
        "for?), a key (what do I offer?) and a value (what do I pass on?)."
        + (TURNED if rotary else ""),
        formulas=[first_number(view, block)],
        exhibits=[roles(view, block)],
        checks=[view.check(claim.format(x), block.get(x), block.again(x)) for x in "qkv"],
        notes=[f"x, the vector that enters here, is {view.origin(f'{block.name}.query')[0]}."],
        place=block.place,
    )


def roles(view: View, block: Block) -> Grid:
    """The chosen word's query, key and value."""
    values = torch.stack([block.get(step)[block.asker] for step in ROLES])
    return Grid(
        f"q, k and v of {view.label(block.side)}",
        tuple(f"{block.name}.{step}" for step in ROLES),
        values,
        list(ROLES.values()),
        numbered(values.size(1)),
        head=view.head,
        at=block.asker,
    )


def first_number(view: View, block: Block) -> Formula:
    """The first number of a query, before any turn: x . w + b."""
    x = block.read("query")[block.asker]
    row = view.head * view.trace.config.d_head
    weights = view.weight(f"{block.path}.query.weight")[row]
    bias = f"{block.path}.query.bias"
    shift = view.weight(bias)[row].item() if view.trace.has_weight(bias) else None
    letters = "x . w" if shift is None else "x . w + b"
    what = f"query({view.label(block.side)}), its first number"
    return sum_of_products(what, letters, x, weights, ("x", "w"), shift)


def scores(view: View) -> Stop:
    """Every question against every label."""
    block = view.block(view.side)
    q, k = block.get("q"), block.get("k")
    return Stop(
        name="scores",
        title="Every question meets every label",
        section="3.2.1",
        what="A score says how well the question of one word (row) fits the label of another "
        "(column): the numbers of q and k multiplied in pairs and added up.",
        formulas=[block.dot_product()],
        exhibits=[grid(block, "scores", "scores, Q K^T")],
        checks=[view.check("scores = Q K^T, from q and k", block.get("scores"), q @ k.T)],
        place=block.place,
    )


def scaling(view: View) -> Stop:
    """Divided by sqrt(d_k)."""
    block, d_k = view.block(view.side), view.trace.config.d_head
    return Stop(
        name="scaling",
        title="The scores are made smaller",
        section="3.2.1",
        what=f"Sums of {d_k} products grow large, and softmax would then give everything to one "
        f"word and learn nothing more. So they are divided by sqrt(d_k) = sqrt({d_k}).",
        formulas=[scaled_formula(block)],
        exhibits=[grid(block, "scaled", "scaled scores")],
        checks=[
            view.check(
                f"scaled = scores / sqrt({d_k})",
                block.get("scaled"),
                block.get("scores") / math.sqrt(d_k),
            )
        ],
        place=block.place,
    )


def scaled_formula(block: Block) -> Formula:
    """One score, before and after."""
    i, j = block.asker, block.answerer
    before, after = block.get("scores")[i, j].item(), block.get("scaled")[i, j].item()
    d_k = block.view.trace.config.d_head
    root = math.sqrt(d_k)
    return Formula(
        "scaled = score / sqrt(d_k)",
        f"{number(before)} / sqrt({d_k}) = {number(before)} / {number(root)} = {number(after)}",
        {"score": before, "root": root, "scaled": after},
    )


def mask(view: View) -> Stop:
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
    return Stop(
        name="mask",
        title="What must not be seen is hidden" if causal else "Nothing is hidden from an encoder",
        section="3.2.3",
        what=what,
        formulas=mask_formulas(block),
        exhibits=[grid(block, "masked", "masked scores")],
        checks=[mask_check(view, block)],
        place=block.place,
    )


def mask_formulas(block: Block) -> list[Formula]:
    """A score that stays, and one that goes."""
    i, j = block.asker, block.answerer
    before, after = block.get("scaled")[i, j].item(), block.get("masked")[i, j].item()
    words = block.answering.labels
    kept = Formula(
        f"{block.asking.labels[i]} may see {words[j]}: + 0",
        f"{number(before)} + 0 = {number(after)}",
        {"scaled": before, "masked": after},
    )
    later = i + 1
    if block.side != "decoder" or block.use == "cross" or later >= len(words):
        return [kept]
    before = block.get("scaled")[i, later].item()
    gone = Formula(
        f"{words[later]} comes after {block.asking.labels[i]}: + (-inf)",
        f"{number(before)} + (-inf) = {number(block.get('masked')[i, later].item())}",
        {"later": before},
    )
    return [kept, gone]


def mask_check(view: View, block: Block) -> Check:
    """-inf above the diagonal of a decoder's own attention and nowhere else."""
    expected = block.get("scaled").clone()
    if block.side == "decoder" and block.use == "self":
        expected += torch.full_like(expected, -math.inf).triu(diagonal=1)
        claim = "masked = scaled + (0, or -inf above the diagonal)"
    else:
        claim = "masked = scaled + 0: nothing is hidden"
    return view.check(claim, block.get("masked"), expected)


def softmax(view: View) -> Stop:
    """Scores become shares."""
    block = view.block(view.side)
    return Stop(
        name="softmax",
        title="Scores become shares that sum to 1",
        section="3.2.1",
        what="Softmax makes each row of scores into weights between 0 and 1 that sum to 1: how "
        "the word divides its attention. What was -inf becomes exactly 0.",
        formulas=[softmax_formula(block)],
        exhibits=[grid(block, "weights", "attention weights", "share", sums=True)],
        checks=weight_checks(view, block),
        place=block.place,
    )


def softmax_formula(block: Block) -> Formula:
    """One weight: e to its score, over the sum for the whole row."""
    i, j = block.asker, block.answerer
    row = block.get("masked")[i]
    letters = "weight = exp(score) / sum of exp(scores) in the row"
    if row.max() > LARGE:
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


def weight_checks(view: View, block: Block) -> list[Check]:
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


def weighted_sum(view: View) -> Stop:
    """What a word takes from the others."""
    block = view.block(view.side)
    return Stop(
        name="sum",
        title="The contents are mixed in these shares",
        section="3.2.1",
        what="Each word collects the contents (values) of all words it looks at, each multiplied "
        "by its share, and adds them up.",
        formulas=[sum_formula(block)],
        exhibits=[shares(block)],
        checks=[
            view.check(
                "mixed = weights x V, for all words",
                block.get("mixed"),
                block.get("weights") @ block.get("v"),
            )
        ],
        place=block.place,
    )


def sum_formula(block: Block) -> Formula:
    """The first number of the mixture."""
    weights, values = block.get("weights")[block.asker], block.get("v")[:, 0]
    what = f"what {block.asking.labels[block.asker]} collects, its first number"
    return sum_of_products(what, "sum of weight x v", weights, values, ("weight", "v"))


def shares(block: Block) -> Grid:
    """Every value times its weight, and their sum."""
    weights, values = block.get("weights")[block.asker], block.get("v")
    contributions = weights[:, None] * values
    total = block.get("mixed")[block.asker]
    rows = [
        f"{number(w)} x {label}"
        for w, label in zip(weights.tolist(), block.answering.labels, strict=True)
    ]
    return Grid(
        f"what {block.asking.labels[block.asker]} collects from each word",
        (f"{block.name}.contributions",),
        torch.cat([contributions, total[None]]),
        [*rows, "sum"],
        numbered(total.size(0)),
        ("weight x word", "number"),
        head=block.view.head,
        at=block.asker,
        focus=(len(rows), None),
    )


def heads(view: View) -> Stop:
    """Several at once, side by side, and one more linear layer."""
    block, config = view.block(view.side), view.trace.config
    name, label = block.name, view.label(block.side)
    concat, d_model = view.tensor(f"{name}.concat"), config.d_model
    mixed = view.tensor(f"{name}.mixed").transpose(0, 1).flatten(1)
    again = view.linear(concat, f"{block.path}.output")
    together = {"side by side": f"{name}.concat", "output": f"{name}.output"}
    return Stop(
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
        exhibits=[
            each_head(block),
            view.one_word(f"{label} after all heads", together, block.side),
        ],
        checks=[
            view.check("side by side: the heads' sums, one after the other", concat, mixed),
            view.check("output = the linear layer of that", f"{name}.output", again),
        ],
        place=f"{block.side}, layer {view.layer + 1}",
    )


def each_head(block: Block) -> Grid:
    """Where the chosen word looks, in every head."""
    weights = block.view.tensor(f"{block.name}.weights")[:, block.asker]
    return Grid(
        f"where {block.asking.labels[block.asker]} looks, head by head",
        (f"{block.name}.weights",),
        weights,
        [f"head {h + 1}" for h in range(len(weights))],
        block.answering.labels,
        ("head", "key"),
        "share",
        at=block.asker,
        focus=(block.view.head, None),
        sums=True,
    )


def masked_self(view: View) -> Stop:
    """The decoder's own attention, with what is to come hidden."""
    block = view.block("decoder")
    scores = block.again("q") @ block.again("k").T
    mixed = block.get("weights") @ block.again("v")
    return Stop(
        name="masked",
        title="The decoder looks back, never ahead",
        section="3.2.3",
        what="The same attention among the words written so far. All rows are computed at once, so "
        "a row could see the words it is to find; the mask hides them (-inf), and softmax gives "
        "them exactly 0.",
        formulas=[*walk_through(block)[:2], *mask_formulas(block)[1:], *walk_through(block)[2:]],
        exhibits=[
            grid(block, "masked", "scaled scores with the mask"),
            grid(block, "weights", "attention weights", "share", sums=True),
        ],
        checks=[
            view.check("scores = Q K^T, from states and weights", block.get("scores"), scores),
            mask_check(view, block),
            *weight_checks(view, block),
            view.check("mixed = weights x V", block.get("mixed"), mixed),
        ],
        place=block.place,
    )


def walk_through(block: Block) -> list[Formula]:
    """All of equation 1 for one pair of words."""
    dot, scaled = block.dot_product(), scaled_formula(block)
    return [dot, scaled, softmax_formula(block), sum_formula(block)]


def cross(view: View) -> Stop:
    """The decoder asks, the encoder answers."""
    block = view.block("decoder", "cross")
    rows, columns = block.get("weights").shape
    froms = {"q": "the decoder's states", "k": "the encoder's output", "v": "the encoder's output"}
    mixed = block.get("weights") @ block.again("v")
    return Stop(
        name="cross",
        title="The decoder asks, the encoder answers",
        section="3.2.3",
        what="Here the two sides meet: each word being written looks for what it needs in the "
        "source. The query comes from the decoder's word, keys and values from the encoder's "
        "output.",
        formulas=walk_through(block),
        exhibits=[
            grid(block, "scaled", "scaled scores"),
            grid(block, "weights", "attention weights", "share", sums=True),
        ],
        checks=[
            *(view.check(f"{x} from {y}", block.get(x), block.again(x)) for x, y in froms.items()),
            *weight_checks(view, block),
            view.check("mixed = weights x V", block.get("mixed"), mixed),
        ],
        notes=[
            "Many explainers have this the other way round (queries from the encoder). The shape "
            f"settles it: {rows} rows for the {rows} positions that ask, in the decoder, and "
            f"{columns} columns for the {columns} source tokens that answer."
        ],
        place=block.place,
    )


def grid(block: Block, step: str, title: str, scale: Scale = "signed", sums: bool = False) -> Grid:
    """A step of equation 1 for all words: a row for each that asks, a column for each answer."""
    values: Tensor = block.get(step)
    return Grid(
        title,
        (f"{block.name}.{step}",),
        values,
        block.rows,
        block.answering.labels,
        ("asks", "answers"),
        scale,
        head=block.view.head,
        focus=(block.asker, block.answerer),
        sums=sums,
    )
