"""Equation 1: queries, keys and values, then softmax(Q K^T / sqrt(d_k)) V."""

import math
from dataclasses import replace

import torch

from limelight.explain.focus import AttentionView, Focus, numbered, sum_of_products
from limelight.explain.stage import Check, Formula, Heatmap, Stage, number

_LARGE = 9.0  # exp of more is hard to read: subtract the largest score of the row first
_ROTATED = (
    " Rotary positions turn q and k: each pair of numbers (1, 2), (3, 4) ... by its own angle."
)
_NORMALIZED = (
    " Each head's query and key is divided by its root mean square and multiplied by learned gains "
    "(QK-norm)."
)
_CAUSAL = (
    "A token must not attend to later tokens: in training they are there, and it could copy the "
    "answer. So -inf is added to their scores, after scaling and before softmax."
)
_NOT_CAUSAL = (
    "An encoder attends in both directions, and a single text has no padding. So nothing is "
    "masked: 0 is added to every score. (In a batch, padding gets -inf.)"
)
_UNMASKED = (
    "This model was trained without the mask (mask is off): each row saw the token that it had to "
    "predict. While it generates, later tokens do not exist, so they are masked here."
)
_ROLES = {"q": "query (question)", "k": "key (label)", "v": "value (content)"}


def queries(focus: Focus) -> Stage:
    """Three linear layers (section 3.2.2)."""
    block = focus.block(focus.side)
    rotated = _NORMALIZED if focus.trace.config.qk_norm else ""
    rotated += _ROTATED if focus.trace.config.positions == "rotary" else ""
    values = torch.stack([block.get(step)[block.query_index] for step in _ROLES])
    names = tuple(f"{block.name}.{step}" for step in _ROLES)
    labels, at = (list(_ROLES.values()), numbered(values.size(1))), block.query_index
    title = f"q, k and v of {focus.label(block.side)}"
    roles = Heatmap(title, names, values, *labels, head=focus.head, at=at)
    claim = "{} of all tokens, from their vectors and the weights"
    return Stage(
        title="Query (question), key (label) and value (content) of each token",
        what="Three learned linear layers turn each token's vector into a query (what am I looking "
        f"for?), a key (what do I offer?) and a value (what do I pass on?).{rotated}",
        formulas=[_first_number(focus, block)],
        figures=[roles],
        checks=[block.check(claim.format(x), x, block.recompute(x)) for x in "qkv"],
        notes=[f"The input x is {focus.origin(f'{block.name}.query')[0]}."],
        location=block.location,
    )


def _first_number(focus: Focus, block: AttentionView) -> Formula:
    """The first number of a query, before any norm and rotation: x . w + b."""
    x = block.read("query")[block.query_index]
    row = focus.head * focus.trace.config.d_head
    weights = focus.weight(f"{block.path}.query.weight")[row]
    bias = focus.bias(f"{block.path}.query")
    shift = None if bias is None else bias[row].item()
    letters = "x . w" if shift is None else "x . w + b"
    what = f"query({focus.label(block.side)}), its first number"
    return sum_of_products(what, letters, x, weights, ("x", "w"), shift)


def scores(focus: Focus) -> Stage:
    """The dot product of every query with every key."""
    block = focus.block(focus.side)
    q, k = block.get("q"), block.get("k")
    return Stage(
        title="Every query is compared with every key",
        what="A score says how well the query of one token (row) matches the key of another "
        "(column). It is their dot product: multiply the numbers of q and k in pairs, then add.",
        formulas=[block.dot_product()],
        figures=[_grid(block, "scores", "scores, Q K^T")],
        checks=[block.check("scores = Q K^T, from q and k", "scores", q @ k.T)],
        location=block.location,
    )


def scaling(focus: Focus) -> Stage:
    """Division by sqrt(d_k), and the reason for it."""
    block, d_k = focus.block(focus.side), focus.trace.config.d_head
    title = "The scores are divided by sqrt(d_k)"
    rest = f"So the scores are divided by sqrt({d_k})."
    claim, again = f"scaled = scores / sqrt({d_k})", block.get("scores") / math.sqrt(d_k)
    if not focus.trace.config.scaling:
        title, rest = "The scores are not scaled", "This model does not scale them: scaling is off."
        claim, again = "scaled = scores: scaling is off", block.get("scores")
    return Stage(
        title=title,
        what=f"A sum of {d_k} products can be large. Softmax would then give all weight to one "
        f"token, and its gradient would vanish. {rest}",
        formulas=[_scaled_formula(block)],
        figures=[_grid(block, "scaled", "scaled scores")],
        checks=[block.check(claim, "scaled", again)],
        location=block.location,
    )


def _scaled_formula(block: AttentionView) -> Formula:
    i, j = block.query_index, block.key_index
    before, after = block.get("scores")[i, j].item(), block.get("scaled")[i, j].item()
    d_k, numbers = block.focus.trace.config.d_head, {"score": before, "scaled": after}
    if not block.focus.trace.config.scaling:
        filled = f"{number(before)} = {number(after)}"
        return Formula("scaled = score: scaling is off", filled, numbers)
    root = math.sqrt(d_k)
    filled = f"{number(before)} / sqrt({d_k}) = {number(before)} / {number(root)} = {number(after)}"
    return Formula("scaled = score / sqrt(d_k)", filled, numbers | {"root": root})


def mask(focus: Focus) -> Stage:
    """The causal mask; an encoder has none."""
    block = focus.block(focus.side)
    causal = block.side == "decoder"
    return Stage(
        title="Later tokens are masked" if causal else "An encoder masks nothing",
        what=_CAUSAL if causal else _NOT_CAUSAL,
        formulas=_mask_formulas(block),
        figures=[_grid(block, "masked", "masked scores")],
        checks=[_mask_check(block)],
        notes=[] if focus.trace.config.mask or not causal else [_UNMASKED],
        location=block.location,
    )


def _mask_formulas(block: AttentionView) -> list[Formula]:
    i, j = block.query_index, block.key_index
    before, after = block.get("scaled")[i, j].item(), block.get("masked")[i, j].item()
    words = block.key_tokens.labels
    numbers, filled = {"scaled": before, "masked": after}, f"{number(before)} + 0 = {number(after)}"
    kept = Formula(f"{block.query_tokens.labels[i]} may attend to {words[j]}: + 0", filled, numbers)
    if block.side != "decoder" or block.use == "cross" or i + 1 >= len(words):
        return [kept]
    later = block.get("scaled")[i, i + 1].item()
    filled = f"{number(later)} + (-inf) = {number(block.get('masked')[i, i + 1].item())}"
    letters = f"{words[i + 1]} comes after {block.query_tokens.labels[i]}: + (-inf)"
    return [kept, Formula(letters, filled, {"later": later})]


def _mask_check(block: AttentionView) -> Check:
    """-inf above the diagonal of the decoder's self-attention, and nowhere else."""
    expected, claim = block.get("scaled").clone(), "masked = scaled + 0: nothing is masked"
    if block.side == "decoder" and block.use == "self":
        expected += torch.full_like(expected, -math.inf).triu(diagonal=1)
        claim = "masked = scaled + (0, or -inf above the diagonal)"
    return block.check(claim, "masked", expected)


def softmax(focus: Focus) -> Stage:
    """Scores become weights."""
    block = focus.block(focus.side)
    return Stage(
        title="Softmax turns scores into weights that sum to 1",
        what="Softmax turns each row of scores into weights between 0 and 1 that sum to 1: how "
        "much attention a token pays to each token, itself included. A score of -inf becomes "
        "exactly 0.",
        formulas=[softmax_formula(block)],
        figures=[weight_grid(block)],
        checks=weight_checks(block),
        location=block.location,
    )


def softmax_formula(block: AttentionView) -> Formula:
    """For the chosen word and its strongest key."""
    i, j = block.query_index, block.key_index
    row = block.get("masked")[i]
    letters = "weight = exp(score) / sum of exp(scores) in the row"
    if row.max() > _LARGE:
        row = row - row.max()
        letters = "weight = exp(score - largest) / sum of exp(scores - largest) in the row"
    above, below = row[j].exp().item(), row.exp().sum().item()
    weight = block.get("weights")[i, j].item()
    shares = f"exp({number(row[j].item())}) / (sum of {int((row > -math.inf).sum())} such)"
    filled = f"{shares} = {number(above)} / {number(below)} = {number(weight)}"
    numbers = {"score": row[j].item(), "above": above, "below": below, "weight": weight}
    return Formula(letters, filled, numbers)


def weight_checks(block: AttentionView) -> list[Check]:
    """Softmax again; rows that sum to 1, and nothing ahead of a decoder's token."""
    weights = block.get("weights")
    again, ones = block.get("masked").softmax(dim=-1), torch.ones(len(weights)).double()
    checks = [
        block.check("weights = softmax(masked scores)", "weights", again),
        block.focus.check("every row sums to 1", weights.sum(dim=-1), ones),
    ]
    if block.side == "decoder" and block.use == "self":
        ahead = weights.triu(diagonal=1).max().item()
        checks.append(Check("no weight on later tokens", ahead, 0.0))
    return checks


def weighted_sum(focus: Focus) -> Stage:
    """The values, weighted and summed."""
    block = focus.block(focus.side)
    again = block.get("weights") @ block.get("v")
    return Stage(
        title="Each output is a weighted sum of the values",
        what="The values (contents) of all tokens are multiplied by the attention weights and "
        "added up.",
        formulas=[_sum_formula(block)],
        figures=[_contributions(block)],
        checks=[block.check("mixed = weights x V, for all tokens", "mixed", again)],
        location=block.location,
    )


def _sum_formula(block: AttentionView) -> Formula:
    weights, values = block.get("weights")[block.query_index], block.get("v")[:, 0]
    what = f"output({block.query_tokens.labels[block.query_index]}), its first number"
    return sum_of_products(what, "sum of weight x v", weights, values, ("weight", "v"))


def _contributions(block: AttentionView) -> Heatmap:
    weights, total = (block.get(step)[block.query_index] for step in ("weights", "mixed"))
    contributions = weights[:, None] * block.get("v")
    labelled = zip(weights.tolist(), block.key_tokens.labels, strict=True)
    rows = [f"{number(w)} x {label}" for w, label in labelled]
    title = f"weight x value of each token, for {block.query_tokens.labels[block.query_index]}"
    names, values = (f"{block.name}.contributions",), torch.cat([contributions, total[None]])
    labels, axes = ([*rows, "sum"], numbered(len(total))), ("weight x token", "number")
    head, at, focus = block.head, block.query_index, (len(rows), None)
    return Heatmap(title, names, values, *labels, axes, head=head, at=at, focus=focus)


def heads(focus: Focus) -> Stage:
    """Several attentions in parallel, concatenated (section 3.2.2)."""
    block, config = focus.block(focus.side), focus.trace.config
    name, label = block.name, focus.label(block.side)
    concat = focus.tensor(f"{name}.concat")
    sizes = f"{config.heads} x {config.d_head} = {concat.size(1)} numbers in, {config.d_model} out"
    mixed = focus.tensor(f"{name}.mixed").transpose(0, 1).flatten(1)
    again = focus.linear(concat, f"{block.path}.output")
    rows = {"concatenated": f"{name}.concat", "output": f"{name}.output"}
    together = [focus.all_words(block.side, value, what) for what, value in rows.items()]
    if concat.shape == again.shape:  # heads may have another size than d_model / heads
        together = [focus.one_word(f"{label}, all heads", rows, block.side)]
    weights = focus.tensor(f"{name}.weights")[:, block.query_index]
    title, names = f"attention weights of {label}, head by head", (f"{name}.weights",)
    labels = [f"head {h + 1}" for h in range(len(weights))], block.key_tokens.labels
    at, chosen = block.query_index, (focus.head, None)
    each_head = Heatmap(
        title, names, weights, *labels, ("head", "key"), "share", at=at, focus=chosen, sums=True
    )
    return Stage(
        title=f"{config.heads} heads attend in parallel",
        what=f"All this happens in {config.heads} heads, each with its own weight matrices, so a "
        "token can attend to several things at once. The results are concatenated, and one more "
        "linear layer combines them.",
        formulas=[Formula("output = (head 1, head 2, ...) W_o + b", sizes)],
        figures=[each_head, *together],
        checks=[
            focus.check("the outputs of the heads, concatenated", concat, mixed),
            focus.check("output = the linear layer of these", f"{name}.output", again),
        ],
        location=f"{block.side}, layer {focus.layer_on(block.side) + 1}",
    )


def masked_self(focus: Focus) -> Stage:
    """The decoder's self-attention, with later tokens masked."""
    block = focus.block("decoder")
    scores = block.recompute("q") @ block.recompute("k").T
    mixed = block.get("weights") @ block.recompute("v")
    return Stage(
        title="The decoder attends to earlier tokens only",
        what="The same attention among the target tokens. All rows are computed at once, so a row "
        "could see the tokens that it has to predict. The mask sets their scores to -inf, and "
        "softmax gives them exactly 0.",
        formulas=_walk_through(block),
        figures=[_grid(block, "masked", "scaled scores with the mask"), weight_grid(block)],
        checks=[
            block.check("scores = Q K^T, from states and weights", "scores", scores),
            _mask_check(block),
            *weight_checks(block),
            block.check("mixed = weights x V", "mixed", mixed),
        ],
        notes=[] if focus.trace.config.mask else [_UNMASKED],
        location=block.location,
    )


def _walk_through(block: AttentionView) -> list[Formula]:
    before = [block.dot_product(), _scaled_formula(block), *_mask_formulas(block)[1:]]
    return [*before, softmax_formula(block), _sum_formula(block)]


def cross(focus: Focus) -> Stage:
    """Attention from the decoder to the encoder's output (section 3.2.3)."""
    block = focus.block("decoder", "cross")
    rows, columns = block.get("weights").shape
    froms = {"q": "the decoder's states", "k": "the encoder's output", "v": "the encoder's output"}
    mixed = block.get("weights") @ block.recompute("v")
    return Stage(
        title="Cross-attention: the decoder queries the encoder",
        what="Here the two stacks meet: each target token looks for what it needs in the source. "
        "The queries come from the decoder, the keys and values from the encoder's output.",
        formulas=_walk_through(block),
        figures=[_grid(block, "scaled", "scaled scores"), weight_grid(block)],
        checks=[
            *(block.check(f"{x} from {y}", x, block.recompute(x)) for x, y in froms.items()),
            *weight_checks(block),
            block.check("mixed = weights x V", "mixed", mixed),
        ],
        notes=[
            "Many explainers have this the other way round (queries from the encoder). The checks "
            f"on q, k and v settle it. The weights have a row for each of the {rows} queries of "
            f"the decoder, and a column for each of the {columns} source tokens, the keys."
        ],
        location=block.location,
    )


def _grid(block: AttentionView, step: str, title: str) -> Heatmap:
    labels, focus = (block.rows, block.key_tokens.labels), (block.query_index, block.key_index)
    names, axes = (f"{block.name}.{step}",), ("query", "key")
    return Heatmap(title, names, block.get(step), *labels, axes, head=block.head, focus=focus)


def weight_grid(block: AttentionView) -> Heatmap:
    """All weights of a head."""
    return replace(_grid(block, "weights", "attention weights"), scale="share", sums=True)
