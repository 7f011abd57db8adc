"""Beside the walk: how the model learned, how a beam searched, what it looked at."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.decode.beam import length_penalty
from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Formula, Stage, TableFigure, number
from limelight.explain.tokens import pieces_of, visible
from limelight.explain.trace import DecodingStep, Trace

_NOT_AN_EXPLANATION = (
    "Attention shows where information was taken from, not why: a word can matter without much "
    "weight, and have weight without mattering."
)


def teacher(view: Focus) -> Stage:
    """Training asks all positions at once, each given the true words before it."""
    trace, asked = view.trace, slice(view.trace.passage.given, len(view.trace.answers))
    logits, wanted = trace.logits[asked].double(), torch.tensor(trace.answers.ids[asked])
    logprobs = logits.log_softmax(dim=-1)
    losses = -logprobs.gather(1, wanted[:, None])[:, 0]
    again = F.cross_entropy(logits, wanted)
    smooth = [_smoothed(trace, logprobs, losses)] if trace.smoothing else []
    return Stage(
        name="teacher",
        title="How it learned: every position at once, with the true words before it",
        section="5",
        what="In training the decoder reads the true text, shifted right by one, whatever it would "
        "have said itself (teacher forcing). One parallel pass asks every position for the next "
        "token; the loss is how surprised the model is, on average.",
        formulas=[_mean_loss(losses), *smooth],
        figures=[_loss_table(trace, losses)],
        checks=[view.check("the mean is torch's cross-entropy", losses.mean()[None], again[None])],
        notes=[
            "The mean is over real tokens, of all sentences of a batch together: padding is not "
            "counted."
        ],
    )


def _mean_loss(losses: Tensor) -> Formula:
    """The sum of all positions' losses, divided once."""
    total, mean = losses.sum().item(), losses.mean().item()
    filled = f"{number(total)} / {len(losses)} = {number(mean)}"
    numbers = {"sum": total, "count": len(losses), "mean": mean}
    return Formula("loss = mean of -log p(target)", filled, numbers)


def _loss_table(trace: Trace, losses: Tensor) -> TableFigure:
    """Position by position: what is read, what is wanted, and how surprising that was."""
    first = trace.passage.given
    rows: list[list[Cell]] = [
        [str(n), trace.target.labels[n], trace.answers.labels[n], math.exp(-loss), loss]
        for n, loss in enumerate(losses.tolist(), start=first)
    ]
    heads = ["row", "input", "target", "p(target)", "-log p"]
    return TableFigure(
        "input shifted right, target, loss", heads, rows, share=3, names=("teacher",)
    )


def _smoothed(trace: Trace, logprobs: Tensor, losses: Tensor) -> Formula:
    """Label smoothing: a small share of the target goes to all tokens alike (section 5.4)."""
    share = trace.smoothing
    spread = -logprobs.mean(dim=-1).mean().item()
    plain = losses.mean().item()
    total = (1 - share) * plain + share * spread
    return Formula(
        f"with label smoothing e = {share:g}, as this model was trained: (1 - e) x loss + e x the "
        "mean over all tokens",
        f"{number(1 - share)} x {number(plain)} + {number(share)} x {number(spread)} = "
        f"{number(total)}",
        {"share": share, "plain": plain, "spread": spread, "smoothed": total},
    )


def beam(view: Focus) -> Stage:
    """The search that found the text (section 6.1)."""
    trace, size = view.trace, view.trace.decode.beam
    own = [math.log(step.chosen.probability) for step in trace.steps]
    total = torch.tensor([sum(trace.passage.logprobs)]).double()
    again = torch.tensor([sum(own)]).double()
    return Stage(
        name="beam",
        title=f"The search: {size} texts at a time",
        section="6.1",
        what=f"At every step each of {size} texts is extended by every piece, and the best {size} "
        "of all these go on. In the end the text with the best score wins (*).",
        formulas=[_beam_score(trace)],
        figures=[_places(trace)],
        checks=[view.check("the winner's log p, added up from this pass", total, again)],
    )


def _beam_score(trace: Trace) -> Formula:
    """The winner's score; the longer a text, the less its many factors count against it."""
    total, length = sum(trace.passage.logprobs), len(trace.passage.logprobs)
    alpha = trace.decode.length_penalty
    score = total / length_penalty(length, alpha)
    return Formula(
        "score = sum of log p / ((5 + length) / 6)^alpha",
        f"{number(total)} / ((5 + {length}) / 6)^{alpha:g} = {number(score)}",
        {"sum": total, "length": length, "alpha": alpha, "score": score},
    )


def _places(trace: Trace) -> TableFigure:
    """Every place of the beam, step by step, with its text so far."""
    best, rows = _winner(trace), list[list[Cell]]()
    texts: dict[int, str] = {}
    for n, nodes in enumerate(trace.passage.tree):
        before = dict(texts)
        for node in nodes:
            piece = visible(pieces_of(trace.trained.tokenizer, [node.token])[0])
            texts[node.place] = before.get(node.parent, "") + piece
            mark = "  *" if (n, node.place) in best else ""
            parent = str(node.parent + 1) if n else "-"
            where = [str(n + 1), str(node.place + 1), parent]
            rows.append([*where, node.logprob, node.score, texts[node.place] + mark])
    heads = ["step", "place", "from", "log p", "score", "text so far"]
    return TableFigure("the places of the beam, step by step", heads, rows, names=("beam",))


def _winner(trace: Trace) -> set[tuple[int, int]]:
    """The places of the tree that the text that won went through: (step, place)."""
    tree, wanted = trace.passage.tree, trace.answers.ids[trace.passage.given :]
    last = len(wanted) - 1
    for node in tree[last] if last < len(tree) else []:
        path, place = [], node.place
        for n in range(last, -1, -1):
            at = next((x for x in tree[n] if x.place == place), None)
            if at is None or at.token != wanted[n]:
                break
            path.append((n, place))
            place = at.parent
        else:
            return set(path)
    return set()


def follow(view: Focus) -> Stage:
    """Which words were looked at, for each word that was written."""
    trace = view.trace
    rows: list[list[Cell]] = []
    for step in trace.steps:
        best = _in_one_line((visible(c.piece), c.probability) for c in step.top[:5])
        told = f"{visible(step.reads)} → {visible(step.chosen.piece)}"
        rows.append([told, "best five", best])
        for use in _uses(trace):
            rows.append(["", _TOLD[use], _in_one_line(_attended(view, step, use)[:_MOST])])
    return Stage(
        name="follow",
        title="What it looked at while it wrote",
        section="4",
        what="For each word written: the five likeliest candidates, and the words it looked at "
        f"most, by attention weights of {_averaged(view)}.",
        figures=[TableFigure("word by word", ["reads → writes", "", ""], rows, names=("follow",))],
        notes=[_NOT_AN_EXPLANATION],
    )


_MOST = 3  # words that are named
_TOLD = {"cross": "in the source", "self": "in its own text"}


def _in_one_line(weighted: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Words with their numbers, as far as they have any weight."""
    return tuple(f"{word} {number(share)}" for word, share in weighted if share > 0)


def _uses(trace: Trace) -> tuple[str, ...]:
    """The attentions through which a decoder sees words."""
    return ("cross", "self") if len(trace.source) else ("self",)


def _averaged(view: Focus) -> str:
    """Over what a mean is taken: all that nobody chose."""
    layer, head = view.asked
    layers = "all layers" if layer is None else f"layer {layer + 1}"
    heads = "all heads" if head is None else f"head {head + 1}"
    mean = "the mean of " if layer is None or head is None else ""
    return f"{mean}{heads} in {layers}"


def _attended(view: Focus, step: DecodingStep, use: str) -> list[tuple[str, float]]:
    """The words that a row looked at, by their mean weight, most first."""
    layer, head = view.asked
    layers = range(view.trace.config.layers) if layer is None else [layer]
    every = torch.stack([view.tensor(f"decoder.{n}.{use}.weights")[:, step.row] for n in layers])
    weights = every.mean(dim=(0, 1)) if head is None else every[:, head].mean(dim=0)
    words = view.trace.source if use == "cross" else view.trace.target
    ranked = weights.nan_to_num().argsort(descending=True).tolist()
    return [(words.labels[i], weights[i].item()) for i in ranked]
