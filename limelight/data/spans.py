"""Where the tokens of a text stand in it.

A tokenizer may have changed the text before it cut it: small letters, no accents, a space in front.
So each token is looked for behind the one before it, in a text that was changed alike.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence

from limelight.data.tokenizer import Tokenizer, valid_unicode

Span = tuple[int, int]  # first character of the text, and one past the last
_LEAP = 100  # characters that may lie before a token where others were not found


def spans_of(
    tokenizer: Tokenizer, ids: Sequence[int], text: str, blank: str = ""
) -> list[Span | None]:
    """The span of each token in characters; a partial character counts as all of it.

    None for a special token, and for one that is spelled otherwise in the text. `blank` is how the
    text spells the mask.
    """
    text, changed = valid_unicode(text), _changed_by(tokenizer)
    characters = [changed(c) for c in text]
    data = "".join(characters).encode()
    owner = [i for i, c in enumerate(characters) for _ in c.encode()]  # of each byte
    found: list[Span | None] = []
    offset, lost = 0, False
    for i in ids:
        raw = blank.encode() if i == tokenizer.mask else tokenizer.token_bytes(i)
        whole = _spelled(raw, changed)
        word = whole.removeprefix(b" ")  # the text may have no space there
        if lost and not tokenizer.uncased:
            word = word or whole
        start: int | None = offset
        if tokenizer.uncased or not whole or not data.startswith(whole, offset):
            places = _places(text, owner, offset, word != whole, lost) if word else ()
            start = next((at for at in places if data.startswith(word, at)), None)
            whole = word
        lost = start is None and (lost or word != b"" or not raw)
        if start is None:
            found.append(None)
            continue
        offset = start + len(whole)
        found.append((owner[start], owner[offset - 1] + 1))
    return found


def _changed_by(tokenizer: Tokenizer) -> Callable[[str], str]:
    """What a tokenizer does to letters, in the text and in its pieces alike."""
    if not tokenizer.uncased:
        return str
    if tokenizer.normalize("é").strip() != "e":
        return str.lower

    def bare(text: str) -> str:
        letters = unicodedata.normalize("NFD", text.lower())
        return "".join(c for c in letters if unicodedata.category(c) != "Mn")

    return bare


def _spelled(raw: bytes, changed: Callable[[str], str]) -> bytes:
    try:
        return changed(raw.decode()).encode()
    except UnicodeDecodeError:  # a part of a character
        return raw


def _places(
    text: str, owner: Sequence[int], offset: int, begins: bool, lost: bool
) -> Iterator[int]:
    """Where the next token may stand, in bytes: behind spaces and marks; and behind letters, if
    tokens before it were `lost`: at a word if it `begins` one, else within the next word."""
    first = owner[offset] if offset < len(owner) else 0
    for at in range(offset, len(owner)):
        i = owner[at]
        if at > offset and owner[at - 1] == i:
            continue  # within a character
        letters = at > offset and text[i - 1].isalnum()
        if (letters and not lost) or i - first > _LEAP:
            return
        if lost and not begins and text[first:i].strip() and text[i - 1].isspace():
            return
        if not (begins and letters and text[i].isalnum()):
            yield at
