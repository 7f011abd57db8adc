"""The stages of the walk, from the text to the next token. Read in this order:

embedding    text becomes token ids, vectors and positions
attention    equation 1: queries, keys and values, scores, mask, softmax, weighted sum
layers       add & norm, feed-forward, and the stack of layers
recurrence   of recurrent models: gates, states, and their attention; the cell of an SSRU decoder
output       the decoder's input, the probabilities of the next token, and the loop
extras       beam search, and attention while generating
learning     teacher forcing, the loss of a text, its gradient, and one step along it
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from limelight.errors import UserError, unknown_name
from limelight.explain.focus import Focus
from limelight.explain.stage import Stage
from limelight.explain.stage_table import walk_of
from limelight.explain.stages import (
    attention,
    embedding,
    extras,
    layers,
    learning,
    output,
    recurrence,
)
from limelight.explain.starting_point import first_focus
from limelight.explain.trace import Trace
from limelight.model.taps import attends


def _masked(focus: Focus) -> Stage:
    attending = attends(focus.trace.config, "decoder", "self")
    return attention.masked_self(focus) if attending else recurrence.ssru(focus)


# How each stage of `stage_table` is built, and the section of the paper to read.
BUILDERS: dict[str, tuple[Callable[[Focus], Stage], str]] = {
    "pieces": (embedding.pieces, "5.1"),
    "embedding": (embedding.embedding, "3.4"),
    "positions": (embedding.positions, "3.5"),
    "queries": (attention.queries, "3.2.2"),
    "scores": (attention.scores, "3.2.1"),
    "scaling": (attention.scaling, "3.2.1"),
    "mask": (attention.mask, "3.2.3"),
    "softmax": (attention.softmax, "3.2.1"),
    "sum": (attention.weighted_sum, "3.2.1"),
    "heads": (attention.heads, "3.2.2"),
    "add-norm": (layers.add_norm, "3.1"),
    "feed-forward": (layers.feed_forward, "3.3"),
    "stack": (layers.stack, "3.1"),
    "start": (output.start, "3.1"),
    "masked": (_masked, "3.2.3"),
    "cross": (attention.cross, "3.2.3"),
    "recurrence": (recurrence.recurrence, "1"),
    "decoder-recurrence": (partial(recurrence.recurrence, side="decoder"), "1"),
    "attention": (recurrence.attention, "2"),
    "classifier": (output.classifier, "3.4"),
    "loop": (output.loop, "3"),
    "follow": (extras.follow, "4"),
    "teacher": (learning.teacher, "5"),
    "beam": (extras.beam, "6.1"),
    "loss": (learning.loss, "5"),
    "learning": (learning.learning, "5.3"),
}


def main_stages(trace: Trace) -> list[str]:
    """The names of the stages that the model's family has, in the order of the walk."""
    names = walk_of(trace.config.family)
    without = trace.recurrent and not trace.config.attention
    return [name for name in names if not (without and name == "attention")]


def extra_stages(trace: Trace) -> list[str]:
    """The names of the stages that stand outside the walk."""
    if trace.checks.broken.get("logits") or not (trace.steps or trace.trained.classes):
        return []
    learn = ["loss", "learning"]
    if trace.trained.family == "encoder-only":
        return learn
    follow = [] if trace.recurrent else ["follow"]
    return [*follow, "teacher", *(["beam"] if trace.traced_text.tree else []), *learn]


def all_stages(trace: Trace) -> list[str]:
    """The extras last."""
    return [*main_stages(trace), *extra_stages(trace)]


def walk(
    trace: Trace, layer: int | None = None, head: int | None = None, word: str | None = None
) -> list[Stage]:
    """Every stage for this text, the extras last."""
    focus = first_focus(trace, layer, head, word)
    return [_build(name, focus) for name in all_stages(trace)]


def stage_at(trace: Trace, name: str, focus: Focus) -> Stage:
    """One stage, by its name or an unambiguous prefix of it."""
    known = all_stages(trace)
    matches = [stage for stage in known if name and stage.startswith(name)]
    if name not in known and len(matches) > 1:
        raise UserError(f"{name!r} could be {' or '.join(matches)}: write more of the name")
    if not matches:
        raise unknown_name("stage", name, known)
    return _build(name if name in known else matches[0], focus)


def _build(name: str, focus: Focus) -> Stage:
    build, section = BUILDERS[name]
    return replace(build(focus), name=name, section=section)
