"""`limelight.load(RUN).explain("Hi how are you")`: a trace that tells its own story.

explanation = model.explain("Hi how are you")
explanation.tensor("encoder.0.self.scores")
explanation.attention(layer=1, head=2)
explanation.stops[4].formulas
"""

from collections.abc import Sequence
from html import escape

from limelight.decode.config import DecodeConfig
from limelight.explain.render.figures import picture_of
from limelight.explain.render.html import as_html
from limelight.explain.render.terminal import plain_text
from limelight.explain.stage import Stage
from limelight.explain.stages import walk
from limelight.explain.trace import Trace
from limelight.explain.traced_text import passage_for
from limelight.tasks.text_model import TextModel

_NOTEBOOK = 1_000_000  # bytes of a page in a notebook, which keeps every one of them


class Explanation(Trace):
    """What happened to one text, and the walk through it."""

    @property
    def stops(self) -> list[Stage]:
        """The story, station by station, with this model's numbers."""
        return self.walk()

    def walk(
        self, layer: int | None = None, head: int | None = None, word: str | None = None
    ) -> list[Stage]:
        """The same for a layer, a head and a word of one's own choice, counted from 1."""
        return walk(self, layer, head, word)

    def html(
        self, layer: int | None = None, head: int | None = None, word: str | None = None
    ) -> str:
        """The walk as a page in one file, to be kept, sent or opened from a disk."""
        return as_html(self, layer=layer, head=head, word=word)

    def __repr__(self) -> str:
        names = ("cross", "softmax")
        shown = [stop for stop in self.walk() if stop.name in names][-1:]
        return plain_text(self, shown)

    def _repr_html_(self) -> str:
        """In a notebook, the page in a frame of its own: no name or style gets in or out."""
        page = escape(as_html(self, room=_NOTEBOOK))
        look = "width: 100%; height: 46rem; border: 1px solid #8884; resize: vertical"
        allowed = "allow-scripts allow-downloads"
        return f'<iframe srcdoc="{page}" sandbox="{allowed}" style="{look}"></iframe>'

    def _repr_png_(self) -> bytes:
        """Where a notebook shows no frames, as it is not trusted."""
        return picture_of(self)


def explain(
    trained: TextModel,
    text: str,
    target: str | None = None,
    config: DecodeConfig | None = None,
    names: str | Sequence[str] = "*",
    smoothing: float = 0.0,
    tag: str = "",
) -> Explanation:
    """Read a text and write what follows, or take `target` for that; then look at all of it."""
    config = config or trained.decode
    passage = passage_for(trained, text, target, config, tag)
    return Explanation(trained, text, passage, config, names, smoothing)
