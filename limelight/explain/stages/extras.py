"""Outside the walk: how a beam searched, and what the model attended to."""

import math
from collections.abc import Iterable

import torch

from limelight.decode.beam import length_penalty
from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Formula, Stage, TableFigure, number
from limelight.explain.tokens import joined, pieces_of
from limelight.explain.trace import Trace
from limelight.model.taps import attends

_NOT_AN_EXPLANATION = (
    "Attention shows where information came from, not why: a token can matter without much "
    "weight, and have weight without mattering."
)
_MOST = 3  # tokens that are listed


def beam(focus: Focus) -> Stage:
    """The search that found the text (section 6.1)."""
    trace, size, alpha = focus.trace, focus.trace.decode.beam, focus.trace.decode.length_penalty
    replayed = sum(math.log(step.chosen.probability) for step in trace.steps)
    total, length = sum(trace.traced_text.logprobs), len(trace.traced_text.logprobs)
    found, again = torch.tensor([[total], [replayed]]).double()
    # Longer texts have more factors below 1, so the sum is divided by a penalty.
    score = total / length_penalty(length, alpha)
    formula = Formula(
        "score = sum of log p / ((5 + length) / 6)^alpha",
        f"{number(total)} / ((5 + {length}) / 6)^{alpha:g} = {number(score)}",
        {"sum": total, "length": length, "alpha": alpha, "score": score},
    )
    return Stage(
        title=f"Beam search with {size} hypotheses",
        what=f"Every step extends each of {size} hypotheses by every piece and keeps the {size} "
        "best of all. In the end the hypothesis with the best score wins (*).",
        formulas=[formula],
        figures=[_beam_table(trace)],
        checks=[focus.check("the winner's log p, summed over this pass", found, again)],
    )


def _beam_table(trace: Trace) -> TableFigure:
    best, rows = _winner(trace), list[list[Cell]]()
    texts: dict[int, list[str]] = {}  # as pieces
    for n, nodes in enumerate(trace.traced_text.tree):
        before = dict(texts)
        for node in nodes:
            piece = pieces_of(trace.trained.tokenizer, [node.token])
            texts[node.place] = before.get(node.parent, []) + piece
            mark = "  *" if (n, node.place) in best else ""
            parent = str(node.parent + 1) if n else "-"
            cells: list[Cell] = [str(n + 1), str(node.place + 1), parent, node.logprob, node.score]
            rows.append([*cells, joined(texts[node.place]) + mark])
    heads = ["step", "beam", "from", "log p", "score", "text so far"]
    return TableFigure("all hypotheses, step by step", heads, rows, names=("beam",))


def _winner(trace: Trace) -> set[tuple[int, int]]:
    """The nodes of the tree that the winning hypothesis went through: (step, beam index)."""
    tree, wanted = trace.traced_text.tree, trace.answers.ids[trace.traced_text.given :]
    last = len(wanted) - 1
    for node in tree[last] if last < len(tree) else []:
        path, index = [], node.place
        for n in range(last, -1, -1):
            at = next((x for x in tree[n] if x.place == index), None)
            if at is None or at.token != wanted[n]:
                break
            path.append((n, index))
            index = at.parent
        else:
            return set(path)
    return set()


def follow(focus: Focus) -> Stage:
    """The tokens that each generated token attended to most."""
    trace, rows, heads = focus.trace, list[list[Cell]](), ["reads → generates", "", ""]
    layer, head = (None if index is None else index + 1 for index in focus.asked)
    layers = "all layers" if layer is None else f"layer {layer}"
    heads_shown = "all heads" if head is None else f"head {head}"
    mean = "the mean of " if layer is None or head is None else ""
    attended = {}
    if attends(trace.config, "decoder", "self"):
        attended["in the target"] = trace.mean_attention("decoder", layer, head), trace.target
    if len(trace.source):
        cross = trace.mean_attention("cross", layer, head)
        attended = {"in the source": (cross, trace.source)} | attended
    for step in trace.steps:
        best = _in_one_line((trace.label(step.row, c.piece), c.probability) for c in step.top[:5])
        chosen = trace.label(step.row, step.chosen.piece)
        rows.append([f"{step.reads} → {chosen}", "best five", best])
        for side, (weights, words) in attended.items():
            row = weights[step.row].nan_to_num()
            ranked = row.argsort(descending=True).tolist()[:_MOST]
            rows.append(["", side, _in_one_line((words.labels[i], row[i].item()) for i in ranked)])
    return Stage(
        title="What it attended to while generating",
        what="For each generated token: the five most likely candidates, and the tokens that it "
        f"attended to most, by attention weights of {mean}{heads_shown} in {layers}.",
        figures=[TableFigure("token by token", heads, rows, names=("follow",))],
        notes=[_NOT_AN_EXPLANATION],
    )


def _in_one_line(weighted: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    return tuple(f"{word} {number(weight)}" for word, weight in weighted if weight > 0)
