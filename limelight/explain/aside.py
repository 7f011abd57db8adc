"""Beside the walk: how the model learned, how a beam searched, what it looked at."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from limelight.explain.stop import Cell, Formula, Listing, Stop, number
from limelight.explain.trace import Step, Trace
from limelight.explain.view import View
from limelight.explain.words import pieces_of, visible

NOT_AN_EXPLANATION = (
    "Attention shows where information was taken from, not why: a word can matter without much "
    "weight, and have weight without mattering."
)


def teacher(view: View) -> Stop:
    """S18: training asks all positions at once, each given the true words before it."""
    trace = view.trace
    rows = len(trace.answers)
    logprobs = trace.logits[:rows].double().log_softmax(dim=-1)
    wanted = torch.tensor(trace.answers.ids)
    own = logprobs.gather(1, wanted[:, None])[:, 0]
    losses = -own
    asked = losses[trace.passage.given :]
    listed: list[list[Cell]] = [
        [
            str(n),
            trace.target.labels[n],
            trace.answers.labels[n],
            own[n].exp().item(),
            losses[n].item(),
        ]
        for n in range(trace.passage.given, rows)
    ]
    formulas = [
        Formula(
            "loss = mean of -log p(target)",
            f"{number(asked.sum().item())} / {len(asked)} = {number(asked.mean().item())}",
            {"sum": asked.sum().item(), "mean": asked.mean().item()},
        )
    ]
    if trace.smoothing:
        formulas.append(smoothed(trace, logprobs[trace.passage.given :], asked))
    again = torch.nn.functional.cross_entropy(
        trace.logits[trace.passage.given : rows].double(), wanted[trace.passage.given :]
    )
    return Stop(
        name="teacher",
        title="How it learned: every position at once, with the true words before it",
        step="S18",
        what="In training the decoder reads the true text, shifted right by one, whatever it would "
        "have said itself (teacher forcing). One parallel pass asks every position for the next "
        "token; the loss is how surprised the model is, on average.",
        formulas=formulas,
        exhibits=[
            Listing(
                "input shifted right, target, loss",
                ["row", "input", "target", "p(target)", "-log p"],
                listed,
                share=3,
                names=("teacher",),
            )
        ],
        checks=[view.check("the mean is torch's cross-entropy", asked.mean()[None], again[None])],
        notes=[
            "The mean is over real tokens, of all sentences of a batch together: padding is not "
            "counted."
        ],
    )


def smoothed(trace: Trace, logprobs: Tensor, losses: Tensor) -> Formula:
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
        {"plain": plain, "spread": spread, "smoothed": total},
    )


def beam(view: View) -> Stop:
    """The search that found the text (section 6.1)."""
    trace = view.trace
    config, tree = trace.decode, trace.passage.tree
    best = winner(trace)
    rows: list[list[Cell]] = []
    texts: list[str] = [""] * config.beam
    for n, nodes in enumerate(tree):
        before = list(texts)
        for node in nodes:
            piece = visible(pieces_of(trace.trained.tokenizer, [node.token])[0])
            texts[node.place] = before[node.parent] + piece
            mark = "*" if (n, node.place) in best else ""
            come_from = "-" if n == 0 else str(node.parent + 1)
            rows.append(
                [
                    str(n + 1),
                    str(node.place + 1),
                    come_from,
                    node.logprob,
                    node.score,
                    f"{texts[node.place]}{mark and '  ' + mark}",
                ]
            )
    total = sum(trace.passage.logprobs)
    length = len(trace.passage.logprobs)
    over = ((5 + length) / 6) ** config.length_penalty
    return Stop(
        name="beam",
        title=f"The search: {config.beam} texts at a time",
        step="S17",
        what=f"At every step each of {config.beam} texts is extended by every piece, and the best "
        f"{config.beam} of all these go on. In the end the text with the best score wins (*).",
        formulas=[
            Formula(
                "score = sum of log p / ((5 + length) / 6)^alpha",
                f"{number(total)} / ((5 + {length}) / 6)^{config.length_penalty:g} = "
                f"{number(total / over)}",
                {"sum": total, "score": total / over},
            )
        ],
        exhibits=[
            Listing(
                "the places of the beam, step by step",
                ["step", "place", "from", "log p", "score", "text so far"],
                rows,
                names=("beam",),
            )
        ],
        checks=[
            view.check(
                "the winner's log p, added up from this pass",
                torch.tensor([total]).double(),
                torch.tensor([sum(math.log(s.chosen.probability) for s in trace.steps)]).double(),
            )
        ],
    )


def winner(trace: Trace) -> set[tuple[int, int]]:
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


def follow(view: View) -> Stop:
    """S19: which words were looked at, for each word that was written."""
    trace = view.trace
    rows: list[list[Cell]] = []
    for step in trace.steps:
        best = in_one_line((visible(c.piece), c.probability) for c in step.top[:5])
        told = f"{visible(step.reads)} → {visible(step.chosen.piece)}"
        rows.append([told, "best five", best])
        for use in uses(trace):
            rows.append(["", TOLD[use], in_one_line(attended(view, step, use)[:MOST])])
    return Stop(
        name="follow",
        title="What it looked at while it wrote",
        step="S19",
        what="For each word written: the five likeliest candidates, and the words it looked at "
        f"most, by attention weights of {averaged(view)}.",
        exhibits=[Listing("word by word", ["reads → writes", "", ""], rows, names=("follow",))],
        notes=[NOT_AN_EXPLANATION],
    )


MOST = 3  # words that are named
TOLD = {"cross": "in the source", "self": "in its own text"}


def in_one_line(weighted: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Words with their numbers, as far as they have any weight."""
    return tuple(f"{word} {number(share)}" for word, share in weighted if share > 0)


def uses(trace: Trace) -> tuple[str, ...]:
    """The attentions through which a decoder sees words."""
    return ("cross", "self") if len(trace.source) else ("self",)


def averaged(view: View) -> str:
    """Over what a mean is taken: all that nobody chose."""
    layer, head = view.asked
    layers = "all layers" if layer is None else f"layer {layer + 1}"
    heads = "all heads" if head is None else f"head {head + 1}"
    mean = "the mean of " if layer is None or head is None else ""
    return f"{mean}{heads} in {layers}"


def attended(view: View, step: Step, use: str) -> list[tuple[str, float]]:
    """The words that a row looked at, by their mean weight, most first."""
    layer, head = view.asked
    layers = range(view.trace.config.layers) if layer is None else [layer]
    every = torch.stack([view.tensor(f"decoder.{n}.{use}.weights")[:, step.row] for n in layers])
    weights = every.mean(dim=(0, 1)) if head is None else every[:, head].mean(dim=0)
    words = view.trace.source if use == "cross" else view.trace.target
    ranked = weights.nan_to_num().argsort(descending=True).tolist()
    return [(words.labels[i], weights[i].item()) for i in ranked]
