"""Where a walk tells most: the layer, head and words with a large weight between content words.

The first head and the last token are arbitrary: often a full stop that attends to a special token.
So every head is scored at every word, by its weight on another content word.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.explain.focus import Focus, focus_on
from limelight.explain.tokens import Words
from limelight.explain.trace import Trace

_LONG = 4  # letters of a content word: shorter ones are mostly articles and prepositions


class _StartingPoint(NamedTuple):
    """Rows are counted from 0, as tokens are; the layer and the head from 1, as in commands."""

    layer: int
    head: int
    source: int  # row of the encoder
    target: int  # row of the decoder
    key: int  # what the chosen row attends to
    weight: float
    # With two stacks: what the encoder's head attends to at the source word, and the product.
    encoder_key: int | None = None
    encoder_weight: float | None = None
    score: float | None = None


def starting_point(trace: Trace) -> _StartingPoint | None:
    """The largest score of attention between content words; None where nothing attends.

    The score is the weight. With two stacks it is cross-attention from the row that predicts a word
    to the source, times 0.25 + 0.75 w, where w is what the encoder's head of the same number gives
    to another content word: the walk begins in the encoder. A row of a decoder alone lies in the
    middle, so that the mask hides something; that of an encoder is the blank, if there is one.
    """
    uses = [name.split(".") for name in trace.weight_names]
    if trace.recurrent or not uses:
        return None
    crossing = any(use == "cross" for _, _, use, _ in uses)
    side = "decoder" if crossing or not len(trace.source) else "encoder"
    rows = _rows(trace, side, crossing)
    keys = content_words(trace.source if crossing or side == "encoder" else trace.target)
    names = [n for n in trace.weight_names if n.startswith(side) and (".cross." in n) == crossing]
    found = trace.collect(names, lambda _, weights: weights.nan_to_num(0.0))
    scores = torch.stack([found[name].float() for name in names])  # L H T S
    if crossing:
        return _crossing_point(trace, scores, rows, keys)
    at = best_cell(scores, rows, keys)
    layer, head, row, key = at
    return _StartingPoint(layer + 1, head + 1, row, row, key, scores[at].item())


def _crossing_point(
    trace: Trace, weights: Tensor, rows: Sequence[int], keys: Sequence[int]
) -> _StartingPoint:
    between = _between_source_words(trace, keys, len(weights))
    largest, places = between.max(-1)  # L H S
    scores = weights * (0.25 + 0.75 * largest)[:, :, None]
    at = best_cell(scores, rows, keys)
    layer, head, row, key = at
    place = _StartingPoint(layer + 1, head + 1, key, row, key, weights[at].item())
    own = largest[layer, head, key].item()
    second = keys[int(places[layer, head, key])] if own > 0 else None  # None: no other word
    return place._replace(encoder_key=second, encoder_weight=own, score=scores[at].item())


def first_focus(trace: Trace, layer: int | None, head: int | None, word: str | None) -> Focus:
    """What was asked for, and the rest from where the walk tells most."""
    start = starting_point(trace)
    if start is None or word is not None:
        return focus_on(trace, layer, head, word)
    source = start.source if len(trace.source) else None
    target = start.target if len(trace.target) else None
    at_layer = start.layer if layer is None else layer
    at_head = start.head if head is None else head
    focus = focus_on(trace, at_layer, at_head, None, (source, target))
    asked = (None if layer is None else focus.layer, None if head is None else focus.head)
    return replace(focus, asked=asked)


def content_words(words: Words) -> list[int]:
    """Positions of long words; of all words or characters, if there are not two long ones."""
    real = [i for i, special in enumerate(words.special) if not special]
    for least in range(_LONG, 0, -1):
        found = [i for i in real if sum(map(str.isalnum, words.labels[i])) >= least]
        if len(found) > 1:
            return found
    return found or real or list(range(len(words.labels)))


def best_cell(
    scores: Tensor, rows: Sequence[int], keys: Sequence[int]
) -> tuple[int, int, int, int]:
    """Layer, head, row and key of the largest score in these rows and keys, never a row's own."""
    allowed = torch.zeros(scores.shape[2:], dtype=torch.bool)
    allowed[torch.tensor(rows)[:, None], torch.tensor(keys)] = True
    if len(keys) > 1 and scores.size(2) == scores.size(3):
        allowed.fill_diagonal_(False)
    flat = scores.masked_fill(~allowed, -1.0).flatten().argmax()
    # NumPy's: torch.unravel_index imports sympy, which takes the first reader 0.3 s
    layer, head, row, key = map(int, np.unravel_index(int(flat), tuple(scores.shape)))
    return layer, head, row, key


def _rows(trace: Trace, side: str, crossing: bool) -> list[int]:
    if side == "encoder":
        blank = trace.trained.tokenizer.mask
        blanks = [i for i, token in enumerate(trace.source.ids) if token == blank]
        return blanks or content_words(trace.source)
    if crossing:  # rows that predict content words
        return [i for i in content_words(trace.answers) if i < len(trace.target)] or [0]
    count, content = len(trace.target), content_words(trace.target)
    middle = [i for i in content if count / 4 <= i <= 3 * count / 4 and i > content[0]]
    return middle or [i for i in content if 0 < i < count - 1] or [count // 2]


def _between_source_words(trace: Trace, keys: Sequence[int], layers: int) -> Tensor:
    """The encoder's weights on other content words, L H S K, for each layer of the decoder."""
    names = [n for n in trace.weight_names if n.startswith("encoder")]
    found = trace.collect(names, lambda _, weights: weights.nan_to_num(0.0))
    each = [found[names[min(i, len(names) - 1)]].float() for i in range(layers)]
    between = torch.stack(each)[..., list(keys)]
    for column, key in enumerate(keys):
        between[..., key, column] = 0.0
    return between
