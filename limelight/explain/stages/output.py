"""How a decoder starts, how the next token is chosen, and when the loop ends."""

import math

import torch

from limelight.explain.focus import Focus, numbered
from limelight.explain.stage import Cell, Check, Formula, Heatmap, Stage, TableFigure, number
from limelight.explain.stages.embedding import recompute_input
from limelight.explain.stages.layers import LENS_NOTE, classify, lens
from limelight.explain.tokens import visible
from limelight.explain.trace import DecodingStep, Trace
from limelight.tasks.embed import embed

_ENDINGS = {
    "greedy": "every step chose the most likely token (argmax)",
    "beam": "beam search kept several hypotheses and chose the best in the end",
    "drawn": "every token was sampled from the probabilities",
    "given": "the target was given, so nothing was chosen",
}
_ONE_PASS = (
    "These rows come from one pass over the finished text: with the mask, row t of it is step t of "
    "the generation. Training needs only this one pass for all positions; generation is a loop."
)
_ONE_PASS_RECURRENT = (
    "These rows come from one pass over the finished text. A recurrent model computes its states "
    "one after the other in training too; a Transformer computes all rows of the pass at once."
)
_FIRST = {"decoder": "A linear layer", "encoder": "One more small layer, then a linear layer,"}


def start(focus: Focus) -> Stage:
    """The input of the decoder, shifted right (section 3.1)."""
    trace = focus.trace
    again, how = recompute_input(focus, "decoder")
    follows = zip(trace.target.labels, [*trace.answers.labels, "?"], strict=False)
    rows: list[list[Cell]] = [[str(n), *pair] for n, pair in enumerate(follows)]
    title, heads = "what each row reads and predicts", ["row", "reads", "predicts"]
    return Stage(
        title="The decoder starts from a start token",
        what="The decoder generates the output. It reads the tokens generated so far, shifted "
        "right by one: at first only a start token. Each row reads one token and predicts the "
        "next.",
        formulas=[Formula(f"input = {how}", "as at the first stages, for the target")],
        figures=[
            TableFigure(title, heads, rows, focus=focus.target_word),
            focus.all_words("decoder", "decoder.input", "input of the decoder"),
        ],
        checks=[focus.check(f"input = {how}", "decoder.input", again)],
    )


def classifier(focus: Focus) -> Stage:
    """A logit for every piece of the vocabulary, and the probabilities (section 3.4)."""
    if focus.trace.trained.classes:
        return _text_classifier(focus)
    if focus.trace.is_headless:
        return _pooling(focus)
    trace, side = focus.trace, focus.last_side
    row = focus.word(side)
    again = classify(focus, focus.tensor(focus.origin("logits")[0]))
    logits = trace.logits.double()
    probabilities = logits[row].softmax(dim=-1)
    two_sided = len(trace.source) > 0 and len(trace.target) > 0 and not trace.recurrent
    label = focus.label(side)
    return Stage(
        title="Every piece of the vocabulary gets a probability",
        what=f"{_FIRST[side]} turns this vector into a logit for each of the "
        f"{logits.size(1):,} pieces. Softmax turns the logits into probabilities.",
        formulas=_probability(focus, row),
        figures=[_best_words(focus, row), *([lens(focus)] if two_sided else [])],
        checks=[
            focus.check("logits = the linear layer of the top state", logits, again),
            focus.check_sum(probabilities),
        ],
        notes=[LENS_NOTE] if two_sided else [],
        location=f"{side}, at {label}",
    )


def _probability(focus: Focus, row: int) -> list[Formula]:
    logits = focus.trace.logits[row].double()
    best = int(logits.nan_to_num(-math.inf).argmax())
    total = logits.logsumexp(dim=-1).item()
    score, probability = logits[best].item(), math.exp(logits[best].item() - total)
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).nansum().item()
    piece = focus.trace.label(row, focus.trace.trained.tokenizer.pieces([best])[0])
    letters = "p = exp(logit) / sum of exp(all logits) = exp(logit - log of that sum)"
    filled = f"p({piece}) = exp({number(score)} - {number(total)}) = {number(probability)}"
    numbers = {"score": score, "total": total, "probability": probability}
    perplexity = "perplexity = exp(entropy), entropy = -(sum of p log p)"
    equal = f"exp({number(entropy)}) = {number(math.exp(entropy), 1)} equally likely pieces"
    first = Formula(letters, filled, numbers)
    return [first, Formula(perplexity, equal, {"entropy": entropy})]


def _best_words(focus: Focus, row: int) -> TableFigure:
    logits, tokenizer = focus.trace.logits[row].double(), focus.trace.trained.tokenizer
    best = logits.nan_to_num(-math.inf).topk(min(20, len(logits))).indices.tolist()
    labels = [focus.trace.label(row, piece) for piece in tokenizer.pieces(best)]
    columns = logits[best].tolist(), logits.softmax(dim=-1)[best].tolist()
    rows = list(zip(labels, map(str, best), *columns, strict=True))
    heads = ["piece", "id", "logit", "probability"]
    return TableFigure(f"the {len(rows)} most likely pieces", heads, rows, share=3, names=("top",))


def _text_classifier(focus: Focus) -> Stage:
    logits, names = focus.trace.logits.double(), map(visible, focus.trace.trained.classes)
    probabilities = logits.softmax(dim=-1)
    again = classify(focus, focus.tensor("encoder.output"))
    rows = list(zip(names, logits.tolist(), probabilities.tolist(), strict=True))
    heads = ["class", "logit", "probability"]
    return Stage(
        title="The first token's vector decides the class",
        what="One more layer with tanh, then a linear layer that gives each class a logit. Softmax "
        "turns the logits into probabilities.",
        figures=[TableFigure("the classes", heads, rows, share=2, names=("classes",))],
        checks=[
            focus.check("logits, from the first token's state", logits, again),
            focus.check_sum(probabilities),
        ],
        location="encoder, at the first token",
    )


def _pooling(focus: Focus) -> Stage:
    """A sentence encoder: one vector for the text, as `embed` gives it."""
    trace, states = focus.trace, focus.tensor("encoder.output")
    first = trace.trained.pooling == "first"
    pooled = states[0] if first else states.mean(dim=0)
    length = pooled.norm().item()
    found = torch.tensor(next(embed(trace.trained, [trace.text])), dtype=torch.float64)
    how = "the first token's vector" if first else f"the mean of {len(states)} vectors"
    number_of = "x" if first else f"(x1 + ... + x{len(states)}) / {len(states)}"
    divided = f"{number(pooled[0].item())} / {number(length)} = {number(found[0].item())}"
    numbers = {"pooled": pooled[0].item(), "length": length, "unit": found[0].item()}
    rows = torch.stack([pooled, found])
    names, labels = ("pooled",), ["pooled", "of length 1"]
    return Stage(
        title="The text becomes one vector",
        what=f"This model has no output layer: it embeds texts. The vector of a text is {how}, "
        "divided by its length, so that a dot product of two says how similar their texts are.",
        formulas=[Formula(f"first number: {number_of}, over the length", divided, numbers)],
        figures=[Heatmap(how, names, rows, labels, numbered(rows.size(1)))],
        checks=[focus.check("the vector that `embed` gives", found, pooled / length)],
        location="encoder",
    )


def loop(focus: Focus) -> Stage:
    """Generation token by token, until the end token."""
    trace, traced_text = focus.trace, focus.trace.traced_text
    heads = ["step", "reads", "chosen", "probability", "next best"]
    rows = [_loop_row(trace, n, step) for n, step in enumerate(trace.steps)]
    cut = f"No end token came: the loop stopped after {len(rows)} tokens."
    ended = "The loop stopped at the end token." if traced_text.ended else cut
    return Stage(
        title="The chosen token is read next, until the end",
        what="The chosen token is appended to the decoder's input, and everything is repeated for "
        f"the next one. Here {_ENDINGS.get(traced_text.mode, 'nothing could be chosen')}. {ended}",
        figures=[TableFigure("token by token", heads, rows, share=3, names=("steps",))],
        checks=_loop_checks(focus),
        notes=[_ONE_PASS_RECURRENT if trace.recurrent else _ONE_PASS],
    )


def _loop_row(trace: Trace, n: int, step: DecodingStep) -> list[Cell]:
    others = [c for c in step.top if c.token != step.chosen.token][:2]
    runners_up = tuple(f"{trace.label(step.row, c.piece)} {number(c.probability)}" for c in others)
    chosen = trace.label(step.row, step.chosen.piece)
    return [str(n + 1), step.reads, chosen, step.chosen.probability, runners_up]


def _loop_checks(focus: Focus) -> list[Check]:
    checks, trace = focus.trace.checks, focus.trace
    size = 1 + trace.logits.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    within = trace.tolerance * size
    traced = "the logits with and without the recorder are equal"
    found = [Check(traced, checks.traced_difference, within)]
    if checks.fast_difference is not None:
        carried = "state" if trace.recurrent else "KV cache"
        fast = f"log-probabilities: this pass, and token by token with the {carried}"
        found.append(Check(fast, checks.fast_difference, within))
        same = 0.0 if checks.same_words else 1.0
        found.append(Check("the same tokens are chosen again", same, 0.0))
    return found
