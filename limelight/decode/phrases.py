"""Words that must, or must not, appear in what is written."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile

from limelight.errors import UserError
from limelight.text.tokenizer import Tokenizer, valid_unicode


def several(texts: Iterable[str], name: str) -> tuple[str, ...]:
    """Texts, and not a single one, whose letters would be taken for texts."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.80} is not a list of texts: write [{texts!r:.80}]")
    return tuple(valid_unicode(text) for text in texts)


class Excluded:
    """Words that no output contains, however its tokens might spell them.

    Tokens are compared by their bytes: a token is banned if it would complete the word, whatever
    part of the word stands there already, at the end of the prompt too.
    """

    def __init__(
        self, words: Iterable[str], tokenizer: Tokenizer, prompt: Sequence[int] = ()
    ) -> None:
        self.words = [valid_unicode(word).encode() for word in words if word]
        self.tokenizer = tokenizer
        plain = takewhile(lambda i: i >= tokenizer.first, reversed(prompt))
        self.given = [*plain][::-1]  # after the last special token, which no word spans

    def banned(self, written: Sequence[int]) -> list[int]:
        """The tokens that must not follow these."""
        if not self.words:
            return []
        visible = [i for i in (*self.given, *written) if i >= self.tokenizer.first]
        tail = b"".join(map(self.tokenizer.raw, visible[-max(map(len, self.words)) :]))
        return [
            token
            for word in self.words
            for there in range(len(word))
            if tail.endswith(word[:there])
            for token in completing(self.tokenizer, word, there)
        ]


@lru_cache(maxsize=4096)
def completing(tokenizer: Tokenizer, word: bytes, there: int) -> list[int]:
    """The tokens with which a word is complete that is there already up to some byte."""
    rest = word[there:]
    pieces = ((i, tokenizer.raw(i)) for i in range(tokenizer.first, len(tokenizer)))
    if not there:
        return [i for i, piece in pieces if rest in piece]
    return [i for i, piece in pieces if piece.startswith(rest)]


class Included:
    """Words that every output of a beam search has, wherever they fit best."""

    def __init__(self, words: Iterable[str], tokenizer: Tokenizer) -> None:
        self.words = [valid_unicode(word) for word in words if word]
        self.tokenizer = tokenizer
        self.first = [tuple(tokenizer.encode(word)) for word in self.words]
        self.later = [tuple(tokenizer.encode(f" {word}")) for word in self.words]

    def progress(self, written: Sequence[int]) -> tuple[int, list[int]]:
        """How many tokens of the words are there, and which tokens would be one more."""
        text = self.tokenizer.decode(written)
        met, begun, wanted = 0, 0, []
        for word, first, later in zip(self.words, self.first, self.later, strict=True):
            if word in text:
                met += len(later)
                continue
            phrase = later if text else first
            there = matched(written, phrase)
            begun = max(begun, there)  # only one can be in the making
            wanted.append(phrase[there])
        return met + begun, wanted

    def complete(self, written: Sequence[int]) -> bool:
        """Whether all words are there."""
        text = self.tokenizer.decode(written)
        return all(word in text for word in self.words)


def matched(written: Sequence[int], phrase: tuple[int, ...]) -> int:
    """How much of a phrase stands at the end already; never the whole of it."""
    return next(
        n
        for n in range(len(phrase) - 1, -1, -1)
        if tuple(written[-n or len(written) :]) == phrase[:n]
    )
