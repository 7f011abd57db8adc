"""`limelight.load(RUN).explain("Hi how are you")`: a trace with its walk.

explanation = model.explain("Hi how are you")
explanation.tensor("encoder.0.self.scores")
explanation.attention(layer=1, head=2)
explanation.stages[4].formulas
"""

import math
from collections.abc import Sequence
from html import escape

from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.explain.comparison import ChangeComparison, compare
from limelight.explain.interventions import Intervention, intervention_in_steps, parse
from limelight.explain.render.figures import png_of
from limelight.explain.render.html import as_html
from limelight.explain.render.terminal import plain_text
from limelight.explain.stage import Stage
from limelight.explain.stages import walk
from limelight.explain.trace import Trace
from limelight.explain.traced_text import TracedText, run_through, traced_text_in_steps
from limelight.tasks.text_model import TextModel

_NOTEBOOK = 1_000_000  # bytes of a page in a notebook, which stores every output


class Explanation(Trace):
    """The trace of one text, and the walk through it.

    Of a changed model, `comparison` has what the changes did.
    """

    comparison: ChangeComparison | None = None

    @property
    def stages(self) -> list[Stage]:
        """All stages, with this model's numbers."""
        return self.walk()

    stops = stages  # the old name

    def walk(
        self, layer: int | None = None, head: int | None = None, word: str | None = None
    ) -> list[Stage]:
        """All stages for a layer and a head, counted from 1, and a word."""
        return walk(self, layer, head, word)

    def html(
        self, layer: int | None = None, head: int | None = None, word: str | None = None
    ) -> str:
        """The walk as one HTML file that works offline."""
        return as_html(self, layer=layer, head=head, word=word)

    def __repr__(self) -> str:
        names = ("cross", "softmax", "recurrence", "attention")
        shown = [stage for stage in self.walk() if stage.name in names][-1:]
        return plain_text(self, shown)

    def _repr_html_(self) -> str | None:
        """In an iframe, so that no names or styles leak in or out; a long text is a picture."""
        try:
            page = escape(as_html(self, max_bytes=_NOTEBOOK))
        except UserError:
            return None
        style = "width: 100%; height: 46rem; border: 1px solid #8884; resize: vertical"
        allowed = "allow-scripts allow-downloads"
        return f'<iframe srcdoc="{page}" sandbox="{allowed}" style="{style}"></iframe>'

    def _repr_png_(self) -> bytes | None:
        """For notebooks that are not trusted, where no iframe is shown."""
        attends = not self.recurrent or "decoder.cross.weights" in self.summaries
        return png_of(self) if attends else None


def explain(
    trained: TextModel,
    text: str,
    target: str | None = None,
    config: DecodeConfig | None = None,
    names: str | Sequence[str] = "*",
    tag: str = "",
    change: Sequence[str] = (),
) -> Explanation:
    """Generate what follows a text, or use `target`; then trace one pass over all of it.

    `change` is a list such as ["decoder.0.cross.weights@3=off"]: see `interventions`.
    """
    config, changes = config or trained.decode, parse(change)
    traced_text = run_through(traced_text_in_steps(trained, text, target, config, tag))
    trace = Explanation(trained, text, traced_text, config, names)
    if not changes:
        return trace
    made = run_through(intervention_in_steps(trained, changes, target, config, tag))
    changed_text = run_through(made.text_in_steps(trained, text, target, config, tag))
    return changed(trace, changed_text, made, names)


def changed(
    before: Explanation,
    traced_text: TracedText,
    made: Intervention,
    names: str | Sequence[str] = "*",
    max_bytes: float = math.inf,
) -> Explanation:
    """The trace of the changed model on the same text, compared with the unchanged one."""
    given, changes = (before.trained, before.text), (made.edits, made.spellings)
    found = Explanation(*given, traced_text, before.decode, names, max_bytes, *changes)
    found.comparison = compare(before, found, made)
    return found
