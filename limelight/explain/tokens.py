"""Tokens as a person meets them: every piece readable, whatever it holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from limelight.data.tokenizer import Tokenizer, valid_unicode
from limelight.tasks.fill import BLANK

_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_Span = tuple[int, int]  # from this character of the text, up to that one


@dataclass(frozen=True)
class Words:
    """The tokens that one side of a model reads, and where in the text they come from."""

    ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()  # text, a special name, or the bytes of half a character
    labels: tuple[str, ...] = ()  # the same with nothing invisible in it
    spans: tuple[_Span | None, ...] = ()
    special: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as a person can read them; a model may have room for more than the tokenizer has."""
    known = len(tokenizer)
    return [tokenizer.pieces([i])[0] if i < known else f"⟨unused {i}⟩" for i in ids]


def words_of(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> Words:
    """Tokens, as far as they are the text's with their places in it."""
    pieces = pieces_of(tokenizer, ids)
    return Words(
        tuple(ids),
        tuple(pieces),
        tuple(visible(piece) for piece in pieces),
        tuple(_places(tokenizer, ids, valid_unicode(text))),
        tuple(i < tokenizer.first_text_id for i in ids),
    )


def visible(piece: str) -> str:
    """A piece with marks for spaces and line ends, and codes for what would not show or worse.

    Control characters could move a terminal's cursor, and marks of direction turn the line around.
    """
    return "".join(
        _MARKS.get(
            c, c if c.isprintable() else f"<{ord(c):02X}>" if c < "Ā" else f"<U+{ord(c):04X}>"
        )
        for c in piece
    )


def _places(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[_Span | None]:
    """Where each token stands in the text, in characters; half a character is all of it.

    The tokens of a text follow each other; only blanks, and a space before one, lie between them.
    """
    characters = [c.lower() if tokenizer.uncased else c for c in text]
    data = "".join(characters).encode()
    character = [i for i, c in enumerate(characters) for _ in c.encode()]  # each byte's
    found: list[_Span | None] = []
    offset = 0
    for i in ids:
        raw = b"" if i >= len(tokenizer) else tokenizer.token_bytes(i)
        raw = BLANK.encode() if i == tokenizer.mask else raw
        raw = raw.removeprefix(b" ") if tokenizer.uncased else raw  # there may have been none
        start = data.find(raw, offset) if raw else -1
        if start < 0:
            found.append(None)
            continue
        offset = start + len(raw)
        found.append((character[start], character[offset - 1] + 1))
    return found
