"""What a change does: the text, its probabilities and the attention, before and after.

Both models read the same tokens, those of the unchanged model's answer, with forced ones in their
positions. So a difference is the change's, and not that of another text.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.errors import UserError
from limelight.explain.interventions import NOT_NUMBERS, Intervention
from limelight.explain.trace import Trace, edited, evaluating

_AT_ONCE = 8  # heads in a batch, one off in each row


class _TokenEffect(NamedTuple):
    """A token of the unchanged model's answer, or a class."""

    token: str
    before: float  # its probability
    after: float
    instead: str  # the most likely one after the change


class HeadEffect(NamedTuple):
    """A head of an attention, from 1, and how large an effect is."""

    tap: str
    head: int
    effect: float


class ChangeComparison(NamedTuple):
    """A text with the unchanged and with the changed model."""

    changes: Sequence[str]
    before: str
    after: str
    tokens: Sequence[_TokenEffect]
    attention: Sequence[HeadEffect]  # share of the attention weight that moved, the largest first


def compare(before: Trace, after: Trace, intervention: Intervention) -> ChangeComparison:
    """Needs one pass more where the changed model generates another text."""
    same_text, forced = intervention.force(before.traced_text), after
    if list(same_text.answers) != list(after.traced_text.answers):
        config, edits = before.decode, intervention.edits
        names = before.weight_names
        forced = Trace(before.trained, before.text, same_text, config, names=names, edits=edits)
    if any(trace.checks.broken.get("logits") for trace in (before, after, forced)):
        raise UserError(NOT_NUMBERS)
    effects = _token_effects(before, forced), _attention_effects(before, forced)
    return ChangeComparison(intervention.spellings, answer_of(before), answer_of(after), *effects)


def answer_of(trace: Trace) -> str:
    """What the model answers: a text, a text with its blanks filled, or a class."""
    tokenizer = trace.trained.tokenizer
    if trace.trained.classes:
        return trace.trained.classes[int(trace.logits.argmax())]
    if trace.trained.family == "encoder-only":
        chosen = {step.row: step.chosen.token for step in trace.steps}
        return tokenizer.decode([chosen.get(i, t) for i, t in enumerate(trace.source.ids)]).strip()
    answers = trace.answers.ids[trace.traced_text.given :]
    return tokenizer.decode([token for token in answers if token != tokenizer.end])


def _token_effects(before: Trace, after: Trace) -> list[_TokenEffect]:
    if names := before.trained.classes:
        old, new = (trace.logits.double().softmax(dim=-1).tolist() for trace in (before, after))
        best = names[int(after.logits.argmax())]
        return [_TokenEffect(n, x, y, best) for n, x, y in zip(names, old, new, strict=True)]
    found, logits = [], after.logits.double()
    for step, changed in zip(before.steps, after.steps, strict=True):
        now = (logits[step.row, step.chosen.token] - changed.logsumexp).exp().item()
        labels = [before.label(step.row, each.piece) for each in (step.chosen, changed.top[0])]
        found.append(_TokenEffect(labels[0], step.chosen.probability, now, labels[1]))
    return found


def _attention_effects(before: Trace, after: Trace) -> list[HeadEffect]:
    names = before.weight_names
    old, new = (trace.collect(names, lambda _, value: value) for trace in (before, after))
    moved = {n: (new[n] - old[n]).abs().sum(dim=-1).mean(dim=-1) / 2 for n in names}
    # Additive attention counts as one head.
    each = [(n, i, x) for n in names for i, x in enumerate(moved[n].flatten().tolist(), 1)]
    return sorted(starmap(HeadEffect, each), key=lambda each: -each.effect)


def rank_heads(
    trace: Trace, progress: Callable[[int], object] = lambda _: None
) -> list[HeadEffect]:
    """Each head off once: by how much the log-probability of the unchanged answer falls."""
    found = []
    for effects in head_effects(trace):
        found += effects
        progress(len(effects))
    return sorted(found, key=lambda each: -each.effect)


def head_effects(trace: Trace) -> Iterator[list[HeadEffect]]:
    """What each head is worth, in the order of the model: some at a time, each a row of a batch."""
    heads, before = all_heads(trace), answer_logprob(trace, trace.logits)
    for some in (heads[i : i + _AT_ONCE] for i in range(0, len(heads), _AT_ONCE)):
        edits = {name: [*others] for name, others in trace.edits.items()}
        for row, (name, head) in enumerate(some):
            edits.setdefault(name, []).append(partial(_off, row, head - 1))
        rows = [each.expand(len(some), -1) for each in trace.inputs]
        with torch.no_grad(), evaluating(trace.model), edited(trace.model, edits):
            logits = trace.model(*rows).cpu()
        after = [before - answer_logprob(trace, each) for each in logits]
        yield [HeadEffect(*at, effect) for at, effect in zip(some, after, strict=True)]


def _off(row: int, head: int, weights: Tensor) -> Tensor:
    changed = weights.clone()
    changed[row, head] = 0
    return changed


def all_heads(trace: Trace) -> list[tuple[str, int]]:
    """The weights of every attention, and the number of each head."""
    if trace.recurrent:
        raise UserError(f"this model is {trace.config.family}: it has no heads to switch off")
    heads = range(1, trace.config.heads + 1)
    return [(name, head) for name in trace.weight_names for head in heads]


def answer_logprob(trace: Trace, logits: Tensor) -> float:
    """The log-probability that these logits give to the answer of a trace."""
    logprobs = logits.double().log_softmax(dim=-1)
    if trace.trained.classes:
        return logprobs[int(trace.logits.argmax())].item()
    return math.fsum(logprobs[step.row, step.chosen.token].item() for step in trace.steps)
