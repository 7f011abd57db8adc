"""A text that is too long for a model becomes parts: whole sentences, as many as fit."""

import re
from collections.abc import Callable
from itertools import pairwise

# The end of a sentence: its mark, quotes or brackets that close behind it, and space, which Chinese
# and Japanese do without.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*\s*|\n+")  # noqa: RUF001
_SPACE = re.compile(r"\s+")


def in_parts(text: str, length: Callable[[str], int], longest: int) -> list[str]:
    """The text in parts that are at most so long each, by this measure of length.

    It is cut at the ends of sentences; a sentence that is too long itself, between words; a word
    that is too long, anywhere. Only a single character may be longer than it should. Nothing is
    lost but space between parts.
    """
    if length(text) <= longest:
        return [text]
    parts: list[str] = []
    for piece in _cut(text, length, longest):
        if parts and length((parts[-1] + piece).strip()) <= longest:
            parts[-1] += piece
        else:
            parts.append(piece)
    return [part.strip() for part in parts if part.strip()]


def _cut(text: str, length: Callable[[str], int], longest: int) -> list[str]:
    if length(text.strip()) <= longest or len(text) == 1:
        return [text]
    ends = [end.end() for end in _SENTENCE_END.finditer(text)]
    cuts = [0, *(end for end in ends if 0 < end < len(text)), len(text)]
    if len(cuts) == 2:
        spaces = _SPACE.finditer(text)
        gaps = [gap.end() for gap in spaces if gap.start() and gap.end() < len(text)]
        cuts.insert(1, gaps[len(gaps) // 2] if gaps else len(text) // 2)
    pieces = [text[first:end] for first, end in pairwise(cuts) if first < end]
    return [part for piece in pieces for part in _cut(piece, length, longest)]
