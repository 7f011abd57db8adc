"""The stages of the walk, from the text to the next token. Read in this order:

embedding    text becomes token ids, vectors and positions
attention    equation 1: queries, keys and values, scores, mask, softmax, weighted sum
layers       add & norm, feed-forward, and the stack of layers
output       the decoder's input, the probabilities of the next token, and the loop
extras       teacher forcing, beam search, and attention while generating
"""

from collections.abc import Callable

from limelight.errors import UserError, unknown_name
from limelight.explain.focus import Focus, focus_on
from limelight.explain.stage import Stage
from limelight.explain.stage_table import walk_of
from limelight.explain.stages import attention, embedding, extras, layers, output
from limelight.explain.trace import Trace

_Build = Callable[[Focus], Stage]

BUILDERS: dict[str, _Build] = {  # what the stages are called and depend on is in `stage_table`
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
    "start": output.start,
    "masked": attention.masked_self,
    "cross": attention.cross,
    "classifier": output.classifier,
    "loop": output.loop,
    "follow": extras.follow,
    "teacher": extras.teacher,
    "beam": extras.beam,
}


def main_stages(trace: Trace) -> list[str]:
    """The names of the stages that the model's family has, in the order of the walk."""
    return walk_of(trace.trained.family)


def extra_stages(trace: Trace) -> list[str]:
    """The names of the stages that stand outside the walk."""
    if not trace.steps or trace.trained.family == "encoder-only":
        return []
    return ["follow", "teacher", *(["beam"] if trace.traced_text.tree else [])]


def walk(
    trace: Trace, layer: int | None = None, head: int | None = None, word: str | None = None
) -> list[Stage]:
    """Every stage for this text, the extras last."""
    focus = focus_on(trace, layer, head, word)
    return [BUILDERS[name](focus) for name in (*main_stages(trace), *extra_stages(trace))]


def stage_at(trace: Trace, name: str, focus: Focus) -> Stage:
    """One stage, by its name or an unambiguous prefix of it."""
    known = [*main_stages(trace), *extra_stages(trace)]
    matches = [stage for stage in known if name and stage.startswith(name)]
    if name not in known and len(matches) > 1:
        raise UserError(f"{name!r} could be {' or '.join(matches)}: write more of the name")
    if not matches:
        raise unknown_name("stage", name, known)
    return BUILDERS[name if name in known else matches[0]](focus)
