"""Which lines of a bilingual corpus are in the wrong language? The corpus itself knows.

Three letters in a row are typical of the one side or of the other. What most lines say about them
judges every single line; no model and no list of languages is needed. Where few lines are typical
of their side, as in questions and answers, there is one language, and nothing is suspected.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BUCKETS = 2**16  # that the trigrams are counted in; a few share one
_ENOUGH = 12  # trigrams: shorter lines (names, numbers) can be anything
_TWO_LANGUAGES = 0.75  # of the lines must be typical of their side: of two languages 0.97 are
_SURE = 0.7  # of the mean logarithm of the odds, for one language against the other


@dataclass(frozen=True)
class LanguageMixups:
    """How many pairs are not what they should be."""

    copied: int  # the target is the source: not translated
    swapped: int  # each side looks like the other's language
    source: int  # only the source looks like the target's language
    target: int  # only the target looks like the source's


def find_mixups(read: Callable[[], Iterable[tuple[str, ...]]]) -> LanguageMixups:
    """Read the pairs twice: first for what is typical of each side, then to judge each line."""
    counts = np.ones((2, _BUCKETS))  # no trigram is impossible
    for pair in read():
        for side in (0, 1):
            np.add.at(counts[side], _trigrams(pair[side]), 1)
    odds = np.diff(np.log(counts / counts.sum(axis=1, keepdims=True)), axis=0)[0]
    found = {"copied": 0, "swapped": 0, "source": 0, "target": 0}
    typical, judged = np.zeros(2), np.zeros(2)
    for source, target in read():
        lean = np.array(
            [-_language_score(source, odds), _language_score(target, odds)]
        )  # above 0: to its own side
        typical, judged = typical + (lean > _SURE), judged + (lean != 0)
        wrong = lean < -_SURE
        if source == target and len(source.split()) > 2:
            found["copied"] += 1
        elif any(wrong):
            found["swapped" if all(wrong) else "source" if wrong[0] else "target"] += 1
    if any(typical < _TWO_LANGUAGES * judged):
        return LanguageMixups(found["copied"], 0, 0, 0)
    return LanguageMixups(**found)


def _language_score(text: str, odds: NDArray[np.float64]) -> float:
    """How much a text looks like the target's side (above 0) or the source's (below)."""
    found = _trigrams(text)
    return float(odds[found].mean()) if len(found) >= _ENOUGH else 0.0


def _trigrams(text: str) -> NDArray[np.int64]:
    """The bucket of every three characters in a row, without regard to case."""
    codes = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", "replace"), "<u4")
    codes = codes.astype(np.int64)
    return (codes[:-2] * 1_000_003 + codes[1:-1] * 10_007 + codes[2:] * 101) % _BUCKETS
