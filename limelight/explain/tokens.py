"""Tokens in a form that people can read, whatever bytes they hold."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from limelight.data.spans import Span, spans_of
from limelight.data.tokenizer import Tokenizer
from limelight.tasks.fill import BLANK

_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
# How a tokenizer writes a piece with part of a character. No text is spelled like this in one
# piece, as tokenizers join no letters and digits with marks.
_PARTIAL = re.compile("(?:<[0-9A-F]{2}>)+")


@dataclass(frozen=True)
class Words:
    """The tokens that one stack of a model reads, and their positions in the text."""

    ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()  # text, a special name, or bytes of a partial character
    labels: tuple[str, ...] = ()  # pieces as people read them
    spans: tuple[Span | None, ...] = ()
    special: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def words_of(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> Words:
    """Tokens with their labels, and their spans in `text` where they come from it."""
    pieces = tokenizer.pieces(ids)
    spans = tuple(spans_of(tokenizer, ids, text, BLANK))
    special = tuple(not tokenizer.is_text(i) for i in ids)
    return Words(tuple(ids), tuple(pieces), tuple(labels_of(pieces)), spans, special)


def labels_of(pieces: Sequence[str]) -> list[str]:
    """Pieces that follow each other, as people read them.

    A character that several pieces spell is shown in each of them, with which part of it that
    is: Ü¹/₂ Ü²/₂. Bytes that spell no character are shown as they are.
    """
    labels = [""] * len(pieces)
    for shown, where in _characters(pieces):
        for part, i in enumerate(where):
            share = f"{'¹²³⁴'[part]}/{'₂₃₄'[len(where) - 2]}" if len(where) > 1 else ""
            labels[i] += shown + share
    return labels


def label_at(written: Sequence[str], i: int, piece: str) -> str:
    """The label of a piece that could be the i-th of a text: what was written, or another one."""
    before = written[max(0, i - 3) : i]  # a character has four bytes at most
    after = written[i + 1 : i + 4] if [piece] == list(written[i : i + 1]) else ()
    return labels_of([*before, piece, *after])[len(before)]


def joined(pieces: Sequence[str]) -> str:
    """The text of pieces, with visible marks."""
    return "".join(shown for shown, _ in _characters(pieces))


def _characters(pieces: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Each character, visible, and the pieces that spell it."""
    raws = [
        bytes.fromhex(re.sub("[<>]", " ", p)) if _PARTIAL.fullmatch(p) else p.encode()
        for p in pieces
    ]
    piece_of = [i for i, raw in enumerate(raws) for _ in raw]  # of each byte
    at = 0
    for c in b"".join(raws).decode("utf-8", "surrogateescape"):
        stray = "\udc80" <= c <= "\udcff"  # a byte that belongs to no character
        size = 1 if stray else len(c.encode())
        shown = f"<{ord(c) - 0xDC00:02X}>" if stray else visible(c)
        yield shown, sorted({*piece_of[at : at + size]})
        at += size


def visible(piece: str) -> str:
    """A piece with marks for white space, and codes for all other unprintable characters.

    Control characters could move a terminal's cursor, and direction marks reverse the line.
    """
    return "".join(_MARKS.get(c, c if c.isprintable() else _code_of(c)) for c in piece)


def _code_of(c: str) -> str:
    return f"<{ord(c):02X}>" if c < "Ā" else f"<U+{ord(c):04X}>"
