"""Every stage of the walk in one table: its names, its section of the map, and what it depends on.

Terminal, page and exported file read it from here; the page gets it with the manifest of a trace.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_ENCODER_DECODER, _DECODER_ONLY, _ENCODER_ONLY = "encoder-decoder", "decoder-only", "encoder-only"
_GENERATING = (_ENCODER_DECODER, _DECODER_ONLY)
_TRANSFORMERS = (*_GENERATING, _ENCODER_ONLY)
_RECURRENT = tuple(f"recurrent-{family}" for family in _GENERATING)
_EVERY = (*_TRANSFORMERS, *_RECURRENT)


@dataclass(frozen=True)
class _Entry:
    """A row of the table.

    `scope` names what a stage's numbers depend on (layer, head, word); `words` stands for a view of
    all words at once. A stage that is not `first` is about the last stack, which gives the output.
    """

    name: str
    title: str  # short, for lists
    section: str = ""  # of the map
    label: str = ""  # on the page's map
    scope: tuple[str, ...] = ()
    families: tuple[str, ...] = _TRANSFORMERS
    first: bool = True
    extra: bool = False  # not part of the walk

    def side(self, sides: tuple[str, ...]) -> str:
        return sides[0 if self.first else -1]


_WORD = ("word", "words")
_LAYER = ("layer", *_WORD)
_HEAD = ("layer", "head", *_WORD)
_TWO: dict[str, Any] = {"families": (_ENCODER_DECODER,), "first": False}  # stacks
_RNN: dict[str, Any] = {"families": _RECURRENT[:1], "first": False}
_WRITING = (*_GENERATING, *_RECURRENT)
_EXTRA: dict[str, Any] = {"first": False, "extra": True}

STAGES = {
    entry.name: entry
    for entry in (
        _Entry("pieces", "Text to pieces", "pieces", "pieces", families=_EVERY),
        _Entry("embedding", "Embedding", "vectors", "embedding", _WORD, _EVERY),
        _Entry("positions", "Positions", "vectors", "+ positions", _WORD),
        _Entry("queries", "Query, key, value", "attention", "q, k, v", _HEAD),
        _Entry("scores", "Attention scores", "attention", "q · k", _HEAD),
        _Entry("scaling", "Scaling by √d", "attention", "÷ √d", _HEAD),
        _Entry("mask", "Mask", "attention", "mask", _HEAD),
        _Entry("softmax", "Softmax", "attention", "softmax", _HEAD),
        _Entry("sum", "Weighted sum of values", "attention", "Σ w v", _HEAD),
        _Entry("heads", "Multiple heads", "attention", "heads", ("layer", "head", "word")),
        _Entry("add-norm", "Add & norm", "add & norm", "add & norm", _LAYER),
        _Entry("feed-forward", "Feed-forward", "feed-forward", "feed-forward", _LAYER),
        _Entry("stack", "Stack of layers", "layers", "layer output", ("word",)),
        _Entry("start", "Decoder input", "start", "⟨start⟩, shifted", _WORD, **_TWO),
        _Entry("masked", "Masked attention", "masked attention", "masked attention", _HEAD, **_TWO),
        _Entry("cross", "Cross-attention", "cross-attention", "cross-attention", _HEAD, **_TWO),
        _Entry("recurrence", "Recurrence", "recurrence", "recurrence", _LAYER, _RECURRENT),
        _Entry("decoder-recurrence", "Decoder's recurrence", "decoder", "decoder", _LAYER, **_RNN),
        _Entry("attention", "Additive attention", "attention", "attention", _WORD, **_RNN),
        _Entry("classifier", "Output", "output", "linear · softmax", ("word",), _EVERY, False),
        _Entry("loop", "Loop", "loop", "next token ↺", families=_WRITING, first=False),
        _Entry("follow", "Extra: attention while generating", families=_GENERATING, **_EXTRA),
        _Entry("teacher", "Extra: teacher forcing", families=_WRITING, **_EXTRA),
        _Entry("beam", "Extra: beam search", families=_WRITING, **_EXTRA),
        _Entry("loss", "Extra: loss", families=_EVERY, **_EXTRA),
        _Entry("learning", "Extra: one step of learning", families=_EVERY, **_EXTRA),
    )
}


def walk_of(family: str) -> list[str]:
    """The stages that a family has, in the order of the walk; no extras."""
    return [name for name, e in STAGES.items() if family in e.families and not e.extra]


def stage_facts(
    names: Iterable[str], sides: tuple[str, ...], decoder_cell: str = "attention"
) -> list[dict[str, Any]]:
    """These rows of the table as data, for a page."""
    fields = ("name", "title", "section", "label", "extra")
    cell = {"title": "Recurrent cell", "label": "recurrent cell", "scope": [*_LAYER]}  # no heads
    renamed = {"masked": cell} if decoder_cell == "ssru" else {}
    return [
        {field: getattr(entry, field) for field in fields}
        | {"scope": list(entry.scope), "side": entry.side(sides)}
        | renamed.get(entry.name, {})
        for entry in map(STAGES.__getitem__, names)
    ]
