"""The walk: which stops there are for a model, in which order."""

from collections.abc import Callable

from limelight.errors import UserError, unknown
from limelight.explain import aside, attending, entering, layering, writing
from limelight.explain.stage_table import walk_of
from limelight.explain.stop import Stop
from limelight.explain.trace import Trace
from limelight.explain.view import View, look_at

Make = Callable[[View], Stop]

MAKERS: dict[str, Make] = {
    "pieces": entering.pieces,
    "embedding": entering.embedding,
    "positions": entering.positions,
    "queries": attending.queries,
    "scores": attending.scores,
    "scaling": attending.scaling,
    "mask": attending.mask,
    "softmax": attending.softmax,
    "sum": attending.weighted_sum,
    "heads": attending.heads,
    "add-norm": layering.add_norm,
    "feed-forward": layering.feed_forward,
    "stack": layering.stack,
    "start": writing.start,
    "masked": attending.masked_self,
    "cross": attending.cross,
    "classifier": writing.classifier,
    "loop": writing.loop,
}


def stations(trace: Trace) -> dict[str, Make]:
    """The stops of the walk: what the family has, and nothing else."""
    return {name: MAKERS[name] for name in walk_of(trace.trained.family)}


def asides(trace: Trace) -> dict[str, Make]:
    """What can be asked for besides."""
    if not trace.steps or trace.trained.family == "encoder-only":
        return {}
    found: dict[str, Make] = {"follow": aside.follow, "teacher": aside.teacher}
    return found | ({"beam": aside.beam} if trace.passage.tree else {})


def walk(
    trace: Trace, layer: int | None = None, head: int | None = None, word: str | None = None
) -> list[Stop]:
    """All stops for this text, and the asides after them."""
    view = look_at(trace, layer, head, word)
    return [make(view) for make in (stations(trace) | asides(trace)).values()]


def stop_at(trace: Trace, name: str, view: View) -> Stop:
    """One stop, by its name or the beginning of it."""
    known = stations(trace) | asides(trace)
    begin_so = [stop for stop in known if name and stop.startswith(name)]
    if name not in known and len(begin_so) > 1:
        raise UserError(f"{name!r} could be {' or '.join(begin_so)}: write more of the name")
    if not begin_so:
        raise unknown("stop", name, known)
    return known[name if name in known else begin_so[0]](view)
