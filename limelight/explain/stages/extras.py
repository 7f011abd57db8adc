"""Outside the walk: how the model was trained, how a beam searched, what it attended to."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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


class _TeacherForcing(NamedTuple):
    """The loss of every position, given the true tokens before it; all in nats."""

    losses: Tensor  # T: negative log-likelihood of the true token
    best: Tensor  # T: the most likely token (argmax)
    best_logprobs: Tensor  # T
    mean: float
    uniform: float  # the mean loss over all tokens of the vocabulary
    smoothed: float  # the loss with label smoothing


def teacher_forcing(logits: Tensor, targets: Sequence[int], smoothing: float) -> _TeacherForcing:
    """Score the true tokens `targets` by the rows of `logits` (T V) that predict them.

    With label smoothing, a small weight is spread over all tokens alike (section 5.4).
    """
    logprobs = logits.double().log_softmax(dim=-1).cpu()
    losses = -logprobs.gather(1, torch.tensor(list(targets))[:, None])[:, 0]
    best = logprobs.max(dim=-1)
    mean, uniform = losses.mean().item(), -logprobs.mean().item()
    smoothed = (1 - smoothing) * mean + smoothing * uniform
    return _TeacherForcing(losses, best.indices, best.values, mean, uniform, smoothed)


def teacher(focus: Focus) -> Stage:
    """Training predicts all positions at once, each from the true tokens before it."""
    trace, given = focus.trace, focus.trace.traced_text.given
    logits, targets = trace.logits[given : len(trace.answers)], trace.answers.ids[given:]
    forced = teacher_forcing(logits, targets, trace.smoothing)
    mean = forced.losses.mean()[None]
    again = F.cross_entropy(logits.double(), torch.tensor(targets))
    heads = ["row", "input", "target", "p(target)", "-log p"]
    rows: list[list[Cell]] = [
        [str(n), trace.target.labels[n], trace.answers.labels[n], math.exp(-loss), loss]
        for n, loss in enumerate(forced.losses.tolist(), start=given)
    ]
    table = TableFigure(
        "input shifted right, target, loss", heads, rows, share=3, names=("teacher",)
    )
    return Stage(
        title="Teacher forcing: all positions at once, given the true tokens",
        what="In training the decoder reads the true text, shifted right by one, whatever it would "
        "have predicted (teacher forcing). One parallel pass predicts the next token at every "
        "position. The loss is the mean negative log-likelihood of the true tokens.",
        formulas=_loss_formulas(forced, trace.smoothing),
        figures=[table],
        checks=[focus.check("the mean is torch's cross-entropy", mean, again[None])],
        notes=["The mean is over the real tokens of all texts in a batch; padding does not count."],
    )


def _loss_formulas(forced: _TeacherForcing, smoothing: float) -> list[Formula]:
    total, count = forced.losses.sum().item(), len(forced.losses)
    mean = Formula(
        "loss = mean of -log p(target)",
        f"{number(total)} / {count} = {number(forced.mean)}",
        {"sum": total, "count": count, "mean": forced.mean},
    )
    if not smoothing:
        return [mean]
    numbers = {"share": smoothing, "plain": forced.mean, "spread": forced.uniform}
    smoothed = Formula(
        f"with label smoothing e = {smoothing:g}, as in this model's training: (1 - e) x loss + e "
        "x the mean over all tokens",
        f"{number(1 - smoothing)} x {number(forced.mean)} + {number(smoothing)} x "
        f"{number(forced.uniform)} = {number(forced.smoothed)}",
        numbers | {"smoothed": forced.smoothed},
    )
    return [mean, smoothed]


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
