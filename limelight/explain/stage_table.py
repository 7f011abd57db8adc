"""Every stage of the walk in one table: its names, its place on the map, and what it depends on.

Terminal, page and exported file read it from here; the page gets it with the manifest of a trace.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY = "encoder-decoder", "decoder-only", "encoder-only"
GENERATING = (ENCODER_DECODER, DECODER_ONLY)
EVERY = (*GENERATING, ENCODER_ONLY)


@dataclass(frozen=True)
class StageEntry:
    """A row of the table.

    `scope` names what a stage's numbers depend on (layer, head, word); `words` stands for a view of
    all words at once. A stage that is not `first` is about the last stack, which gives the output.
    """

    name: str
    title: str  # short, for lists
    section: str  # of the map
    label: str  # on the page's map
    scope: tuple[str, ...] = ()
    families: tuple[str, ...] = EVERY
    first: bool = True
    extra: bool = False  # beside the walk

    def side(self, sides: tuple[str, ...]) -> str:
        """Which of a model's stacks the stage is about."""
        return sides[0 if self.first else -1]


WORD = ("word", "words")
LAYER = ("layer", *WORD)
HEAD = ("layer", "head", *WORD)
DECODER: dict[str, Any] = {"families": (ENCODER_DECODER,), "first": False}
EXTRA: dict[str, Any] = {"families": GENERATING, "first": False, "extra": True}

STAGES = {
    entry.name: entry
    for entry in (
        StageEntry("pieces", "Text to pieces", "pieces", "pieces"),
        StageEntry("embedding", "Embedding", "vectors", "embedding", WORD),
        StageEntry("positions", "Positions", "vectors", "+ positions", WORD),
        StageEntry("queries", "Query, key, value", "attention", "q, k, v", HEAD),
        StageEntry("scores", "Attention scores", "attention", "q · k", HEAD),
        StageEntry("scaling", "Scaling by √d", "attention", "÷ √d", HEAD),
        StageEntry("mask", "Mask", "attention", "mask", HEAD),
        StageEntry("softmax", "Softmax", "attention", "softmax", HEAD),
        StageEntry("sum", "Weighted sum of values", "attention", "Σ w v", HEAD),
        StageEntry("heads", "Multiple heads", "attention", "heads", ("layer", "head", "word")),
        StageEntry("add-norm", "Add & norm", "add & norm", "add & norm", LAYER),
        StageEntry("feed-forward", "Feed-forward", "feed-forward", "feed-forward", LAYER),
        StageEntry("stack", "Stack of layers", "layers", "layer output", ("word",)),
        StageEntry("start", "Decoder input", "start", "⟨start⟩, shifted", WORD, **DECODER),
        StageEntry(
            "masked", "Masked attention", "masked attention", "masked attention", HEAD, **DECODER
        ),
        StageEntry(
            "cross", "Cross-attention", "cross-attention", "cross-attention", HEAD, **DECODER
        ),
        StageEntry("classifier", "Output", "output", "linear · softmax", ("word",), first=False),
        StageEntry("loop", "Loop", "loop", "next token ↺", families=GENERATING, first=False),
        StageEntry("follow", "Extra: attention while generating", "", "", **EXTRA),
        StageEntry("teacher", "Extra: teacher forcing", "", "", **EXTRA),
        StageEntry("beam", "Extra: beam search", "", "", **EXTRA),
    )
}


def walk_of(family: str) -> list[str]:
    """The stages that a family has, in the order of the walk; no extras."""
    return [name for name, e in STAGES.items() if family in e.families and not e.extra]


def stage_facts(names: Iterable[str], sides: tuple[str, ...]) -> list[dict[str, Any]]:
    """These rows of the table as data, for a page."""
    return [
        {
            "name": name,
            "title": entry.title,
            "section": entry.section,
            "label": entry.label,
            "scope": list(entry.scope),
            "side": entry.side(sides),
            "extra": entry.extra,
        }
        for name, entry in ((name, STAGES[name]) for name in names)
    ]
