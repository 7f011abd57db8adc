"""Outside the walk: how a beam searched, and what the model attended to."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from limelight.decode.beam import length_penalty
from limelight.explain.focus import Focus
from limelight.explain.stage import Cell, Formula, Stage, TableFigure, number
from limelight.explain.tokens import joined
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
    numbers = {"sum": total, "length": length, "alpha": alpha, "score": score}
    filled = f"{number(total)} / ((5 + {length}) / 6)^{alpha:g} = {number(score)}"
    formula = Formula("score = sum of log p / ((5 + length) / 6)^alpha", filled, numbers)
    return Stage(
        title=f"Beam search with {size} hypotheses",
        what=f"Every step extends each of {size} hypotheses by every piece and keeps the {size} "
        "best of all. In the end the hypothesis with the best score wins (*).",
        formulas=[formula],
        figures=[_beam_table(trace)],
        checks=[focus.check("the winner's log p, summed over this pass", found, again)],
    )


def _beam_table(trace: Trace) -> TableFigure:
    every, paths = list[list[Any]](), dict[int, list[Any]]()  # nodes from the first to this one
    for nodes in trace.traced_text.tree:
        before = dict(paths)
        for node in nodes:
            paths[node.place] = [*before.get(node.parent, []), node]
            every.append(paths[node.place])
    wanted = trace.answers.ids[trace.traced_text.given :]
    best = next((path for path in every if tuple(node.token for node in path) == wanted), [])
    rows = list[list[Cell]]()
    for path in every:
        node, n = path[-1], len(path)
        text = joined(trace.trained.tokenizer.pieces([each.token for each in path]))
        mark = "  *" if any(node is each for each in best) else ""
        parent = str(node.parent + 1) if n > 1 else "-"
        numbers = [node.logprob, node.score]
        rows.append([str(n), str(node.place + 1), parent, *numbers, text + mark])
    heads = ["step", "beam", "from", "log p", "score", "text so far"]
    return TableFigure("all hypotheses, step by step", heads, rows, names=("beam",))


def follow(focus: Focus) -> Stage:
    """The tokens that each generated token attended to most."""
    trace, rows, heads = focus.trace, list[list[Cell]](), ["reads → generates", "", ""]
    layer, head = (None if index is None else index + 1 for index in focus.asked)
    layer = None if layer is None else focus.layer_on("decoder") + 1
    shown = "mean of " if layer is None or head is None else ""
    shown += "all heads" if head is None else f"head {head}"
    shown += " in all layers" if layer is None else f" in layer {layer}"
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
        "attended to most.",
        figures=[TableFigure(f"attention weights: {shown}", heads, rows, names=("follow",))],
        notes=[_NOT_AN_EXPLANATION],
    )


def _in_one_line(weighted: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    return tuple(f"{word} {number(weight)}" for word, weight in weighted if weight > 0)
