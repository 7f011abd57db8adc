"""Tokens in a form that people can read, whatever bytes they hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from limelight.data.tokenizer import Tokenizer, valid_unicode
from limelight.tasks.fill import BLANK

_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_Span = tuple[int, int]  # first character of the text, and one past the last


@dataclass(frozen=True)
class Words:
    """The tokens that one stack of a model reads, and their positions in the text."""

    ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()  # text, a special name, or bytes of a partial character
    labels: tuple[str, ...] = ()  # pieces with visible marks for white space and control characters
    spans: tuple[_Span | None, ...] = ()
    special: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Readable pieces; a model may have more ids than its tokenizer."""
    known = len(tokenizer)
    return [tokenizer.pieces([i])[0] if i < known else f"⟨unused {i}⟩" for i in ids]


def words_of(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> Words:
    """Tokens with their labels, and their spans in `text` where they come from it."""
    pieces = pieces_of(tokenizer, ids)
    return Words(
        tuple(ids),
        tuple(pieces),
        tuple(visible(piece) for piece in pieces),
        tuple(_spans(tokenizer, ids, valid_unicode(text))),
        tuple(i < tokenizer.first_text_id for i in ids),
    )


def visible(piece: str) -> str:
    """A piece with marks for white space, and codes for all other unprintable characters.

    Control characters could move a terminal's cursor, and direction marks reverse the line.
    """
    return "".join(_MARKS.get(c, c if c.isprintable() else _code_of(c)) for c in piece)


def _code_of(c: str) -> str:
    return f"<{ord(c):02X}>" if c < "Ā" else f"<U+{ord(c):04X}>"


def _spans(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[_Span | None]:
    """The span of each token in characters; a partial character counts as all of it.

    Tokens follow each other in the text; only blanks, and a space before one, lie between them.
    """
    characters = [c.lower() if tokenizer.uncased else c for c in text]
    data = "".join(characters).encode()
    character = [i for i, c in enumerate(characters) for _ in c.encode()]  # of each byte
    found: list[_Span | None] = []
    offset = 0
    for i in ids:
        raw = b"" if i >= len(tokenizer) else tokenizer.token_bytes(i)
        raw = BLANK.encode() if i == tokenizer.mask else raw
        raw = raw.removeprefix(b" ") if tokenizer.uncased else raw  # the text may not have one
        start = data.find(raw, offset) if raw else -1
        if start < 0:
            found.append(None)
            continue
        offset = start + len(raw)
        found.append((character[start], character[offset - 1] + 1))
    return found
