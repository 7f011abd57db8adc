"""The walk: which stops there are for a model, in which order."""

from collections.abc import Callable

from limelight.errors import UserError, unknown_name
from limelight.explain.focus import Focus, focus_on
from limelight.explain.stage import Stage
from limelight.explain.stages import attention, embedding, extras, layers, output
from limelight.explain.trace import Trace

_Make = Callable[[Focus], Stage]

_READING: dict[str, _Make] = {
    "pieces": embedding.pieces,
    "embedding": embedding.embedding,
    "positions": embedding.positions,
    "queries": attention.queries,
    "scores": attention.scores,
    "scaling": attention.scaling,
    "mask": attention.mask,
    "softmax": attention.softmax,
    "sum": attention.weighted_sum,
    "heads": attention.heads,
    "add-norm": layers.add_norm,
    "feed-forward": layers.feed_forward,
    "stack": layers.stack,
}
_DECODING: dict[str, _Make] = {
    "start": output.start,
    "masked": attention.masked_self,
    "cross": attention.cross,
}
_CHOOSING: dict[str, _Make] = {"classifier": output.classifier}
_LOOPING: dict[str, _Make] = {"loop": output.loop}


def stages(trace: Trace) -> dict[str, _Make]:
    """The stops of the walk: what the family has, and nothing else."""
    if trace.trained.family == "encoder-only":
        return _READING | _CHOOSING
    if trace.trained.family == "decoder-only":
        return _READING | _CHOOSING | _LOOPING
    return _READING | _DECODING | _CHOOSING | _LOOPING


def extra_stages(trace: Trace) -> dict[str, _Make]:
    """What can be asked for besides."""
    if not trace.steps or trace.trained.family == "encoder-only":
        return {}
    found: dict[str, _Make] = {"follow": extras.follow, "teacher": extras.teacher}
    return found | ({"beam": extras.beam} if trace.passage.tree else {})


def walk(
    trace: Trace, layer: int | None = None, head: int | None = None, word: str | None = None
) -> list[Stage]:
    """All stops for this text, and the asides after them."""
    view = focus_on(trace, layer, head, word)
    return [make(view) for make in (stages(trace) | extra_stages(trace)).values()]


def stop_at(trace: Trace, name: str, view: Focus) -> Stage:
    """One stop, by its name or the beginning of it."""
    known = stages(trace) | extra_stages(trace)
    begin_so = [stop for stop in known if name and stop.startswith(name)]
    if name not in known and len(begin_so) > 1:
        raise UserError(f"{name!r} could be {' or '.join(begin_so)}: write more of the name")
    if not begin_so:
        raise unknown_name("stop", name, known)
    return known[name if name in known else begin_so[0]](view)
