"""A text that is too long for a model becomes parts: whole sentences, as many as fit."""

import re
from collections.abc import Callable

# The end of a sentence: its mark, quotes or brackets that close behind it, and space.
SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’»)\]]*\s+|\n+")  # noqa: RUF001


def in_parts(text: str, length: Callable[[str], int], longest: int) -> list[str]:
    """The text in parts that are at most so long each, by this measure of length.

    It is cut at the ends of sentences; a sentence that is too long itself, between words; a word
    that is too long, anywhere.
    """
    if length(text) <= longest:
        return [text]
    parts: list[str] = []
    for piece in cut(text, length, longest):
        if parts and length(joined := f"{parts[-1]} {piece}") <= longest:
            parts[-1] = joined
        else:
            parts.append(piece)
    return parts


def cut(text: str, length: Callable[[str], int], longest: int) -> list[str]:
    """Pieces that fit: sentences, else halves between words, else halves."""
    if length(text) <= longest or len(text) == 1:
        return [text] if text.strip() else []
    pieces = sentences(text)
    if len(pieces) == 1:
        words = text.split()
        middle = len(words) // 2
        pieces = [" ".join(words[:middle]), " ".join(words[middle:])]
        if len(words) == 1:
            pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
    return [part for piece in pieces for part in cut(piece, length, longest)]


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the space between them."""
    found, start = [], 0
    for end in SENTENCE_END.finditer(text):
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]
