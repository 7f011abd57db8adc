"""The last stops: how a decoder begins, how a word is chosen, and how the loop ends."""

import math

import torch

from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Check, Formula, Stage, TableFigure, number
from limelight.explain.stages.embedding import input_again
from limelight.explain.stages.layers import LENS_NOTE, classify, final_side, lens
from limelight.explain.tokens import pieces_of, visible
from limelight.explain.trace import DecodingStep

_ENDINGS = {
    "greedy": "the likeliest token is taken at every step",
    "beam": "a beam keeps several texts alive and takes the best in the end",
    "drawn": "every token is drawn by its probability",
    "given": "the target was given: nothing was chosen",
}


_FIRST = {
    "decoder": "A last linear layer",
    "encoder": "One more small layer, then a last linear one,",
}


def start(view: Focus) -> Stage:
    """What a decoder reads first."""
    trace = view.trace
    again, how = input_again(view, "decoder")
    follows = zip(trace.target.labels, [*trace.answers.labels, "?"], strict=False)
    rows: list[list[Cell]] = [[str(n), *pair] for n, pair in enumerate(follows)]
    told, heads = "what each row reads, and what follows it", ["row", "reads", "predicts"]
    return Stage(
        name="start",
        title="The decoder begins with a start token",
        section="3.1",
        what="The other half writes. It reads what has been written so far, one place behind: at "
        "first nothing but a start token. Row by row it reads one token and predicts the next.",
        formulas=[Formula(f"the decoder's input = {how}", "as at the first stops, for the target")],
        figures=[
            TableFigure(told, heads, rows, focus=view.target_word),
            view.all_words("decoder", "decoder.input", "what enters the decoder"),
        ],
        checks=[view.check(f"input = {how}", "decoder.input", again)],
    )


def classifier(view: Focus) -> Stage:
    """A score for every piece of the vocabulary, made into probabilities."""
    if view.trace.config.classes:
        return _text_classifier(view)
    trace, side = view.trace, final_side(view)
    row = view.word(side)
    state = view.tensor(f"{side}.output")
    logits = trace.logits.double()
    chances = logits[row].softmax(dim=-1)
    two_sided = len(trace.source) > 0 and len(trace.target) > 0
    label = view.label(side)
    where = f"at {label}" if side == "encoder" else f"after {label}"
    return Stage(
        name="classifier",
        title="Every piece of the vocabulary gets a probability",
        section="3.4",
        what=f"{_FIRST[side]} turns the vector {where} into a score for each of the "
        f"{logits.size(1):,} pieces, and softmax over all of them makes probabilities.",
        formulas=_probability(view, row),
        figures=[_best_words(view, row), *([lens(view)] if two_sided else [])],
        checks=[
            view.check("scores = the linear layer of the top state", logits, classify(view, state)),
            view.check(
                "all probabilities together are 1", chances.sum()[None], torch.ones(1).double()
            ),
        ],
        notes=[LENS_NOTE] if two_sided else [],
        place=f"{side}, at {label}",
    )


def _probability(view: Focus, row: int) -> list[Formula]:
    """The likeliest piece's: e to its score over the sum for the whole vocabulary."""
    logits = view.trace.logits[row].double()
    best = int(logits.nan_to_num(-math.inf).argmax())
    total = logits.logsumexp(dim=-1).item()
    score, chance = logits[best].item(), math.exp(logits[best].item() - total)
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).nansum().item()
    piece = visible(pieces_of(view.trace.trained.tokenizer, [best])[0])
    return [
        Formula(
            "p = exp(score) / sum of exp(all scores) = exp(score - log of that sum)",
            f"p({piece}) = exp({number(score)} - {number(total)}) = {number(chance)}",
            {"score": score, "total": total, "probability": chance},
        ),
        Formula(
            "uncertainty = -(sum of p log p), as a number of equally likely pieces",
            f"exp({number(entropy)}) = {number(math.exp(entropy), 1)} pieces",
            {"entropy": entropy},
        ),
    ]


def _best_words(view: Focus, row: int) -> TableFigure:
    """The twenty likeliest, of all."""
    logits = view.trace.logits[row].double()
    chances = logits.softmax(dim=-1)
    tokenizer = view.trace.trained.tokenizer
    best = logits.nan_to_num(-math.inf).topk(min(20, len(logits))).indices.tolist()
    rows: list[list[Cell]] = [
        [visible(piece), str(token), logits[token].item(), chances[token].item()]
        for token, piece in zip(best, pieces_of(tokenizer, best), strict=True)
    ]
    heads = ["piece", "id", "score", "probability"]
    return TableFigure(f"the {len(rows)} likeliest pieces", heads, rows, share=3, names=("top",))


def _text_classifier(view: Focus) -> Stage:
    """Decided from the first token's state."""
    trace = view.trace
    logits = trace.logits.double()
    chances = logits.softmax(dim=-1)
    again = classify(view, view.tensor("encoder.output"))
    rows: list[list[Cell]] = [
        [visible(name), logits[c].item(), chances[c].item()]
        for c, name in enumerate(trace.trained.classes)
    ]
    return Stage(
        name="classifier",
        title="The first token's vector decides for the whole text",
        section="3.4",
        what="One more layer with tanh, and a last one that gives a score to each class; softmax "
        "makes probabilities.",
        figures=[
            TableFigure(
                "the classes", ["class", "score", "probability"], rows, share=2, names=("classes",)
            )
        ],
        checks=[
            view.check("scores, from the first token's state", logits, again),
            view.check(
                "all probabilities together are 1", chances.sum()[None], torch.ones(1).double()
            ),
        ],
        place="encoder, at the first token",
    )


def loop(view: Focus) -> Stage:
    """The chosen word is read next, until the end."""
    trace, passage = view.trace, view.trace.passage
    steps = trace.steps
    ended = (
        "The end token came, and the loop stops."
        if passage.ended
        else f"No end token came: {len(steps)} tokens were the limit."
    )
    return Stage(
        name="loop",
        title="The chosen word is read next, until the end",
        section="3",
        what="The word that was chosen is appended to what the decoder reads, and all happens "
        f"again for the next one. Here {_ENDINGS.get(passage.mode, 'nothing could be chosen')}. "
        f"{ended}",
        figures=[
            TableFigure(
                "one word after another",
                ["step", "reads", "chosen", "probability", "next best"],
                [_loop_row(n, step) for n, step in enumerate(steps)],
                share=3,
                names=("steps",),
            )
        ],
        checks=_loop_checks(view),
        notes=[
            "These rows were read off one pass over the finished text: with the mask, row t of it "
            "is step t of the writing. In training that one pass handles all positions at once; "
            "only writing is a loop."
        ],
    )


def _loop_row(n: int, step: DecodingStep) -> list[Cell]:
    """One turn of the loop."""
    others = [c for c in step.top if c.token != step.chosen.token][:2]
    said = tuple(f"{visible(c.piece)} {number(c.probability)}" for c in others)
    chosen = visible(step.chosen.piece)
    return [str(n + 1), visible(step.reads), chosen, step.chosen.probability, said]


def _loop_checks(view: Focus) -> list[Check]:
    """The replay is the writing: the same words, with the same probabilities."""
    checks, trace = view.trace.checks, view.trace
    size = 1 + trace.logits.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    found = [
        Check(
            "scores with the recorder and without are the same",
            checks.traced_difference,
            trace.tolerance * size,
        )
    ]
    if checks.fast_difference is not None:
        found.append(
            Check(
                "log-probabilities: this pass, and word by word with a cache",
                checks.fast_difference,
                trace.tolerance * size,
            )
        )
        found.append(
            Check("the same words are chosen again", 0.0 if checks.same_words else 1.0, 0.0)
        )
    return found
