"""Phrases that must, or must not, appear in what is written."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile

from limelight.data.tokenizer import Tokenizer, valid_unicode
from limelight.decode.request import Request
from limelight.errors import UserError


def as_phrases(texts: Iterable[str], name: str) -> tuple[str, ...]:
    """A tuple of texts; a single string, whose letters would be read as texts, is rejected."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.80} is not a list of texts: write [{texts!r:.80}]")
    found = tuple(valid_unicode(text) for text in texts)
    if "" in found:
        raise UserError(f"{name} has an empty text: is it a variable that is not set?")
    return found


def prompt_text_tokens(prompt: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The prompt behind its last special token, which no phrase spans."""
    return [*takewhile(tokenizer.is_text, reversed(prompt))][::-1]


class BannedPhrases:
    """Phrases that no output contains, however its tokens might spell them.

    Tokens are compared by their bytes: a token is banned if it would complete a phrase, also one
    that the prompt has begun. Where a space must come first, all other tokens are banned.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.words = [valid_unicode(word).encode() for word in request.exclude if word]
        self.tokenizer, self.needs_leading_space = tokenizer, request.needs_leading_space
        self.given = prompt_text_tokens(request.prompt, tokenizer)

    def __bool__(self) -> bool:
        return bool(self.words or self.needs_leading_space)

    def banned(self, written: Sequence[int]) -> list[int]:
        unspaced = without_space(self.tokenizer) if self.needs_leading_space and not written else []
        if not self.words:
            return unspaced
        visible = [i for i in (*self.given, *written) if self.tokenizer.is_text(i)]
        tail = b"".join(map(self.tokenizer.token_bytes, visible[-max(map(len, self.words)) :]))
        return unspaced + [
            token
            for word in self.words
            for there in range(len(word))
            if tail.endswith(word[:there])
            for token in _completing(self.tokenizer, word, there)
        ]


@lru_cache(maxsize=64)
def without_space(tokenizer: Tokenizer) -> list[int]:
    """The tokens that do not begin with a space."""
    return [i for i in tokenizer.text_ids if not tokenizer.token_bytes(i).startswith(b" ")]


@lru_cache(maxsize=64)
def has_leading_space_tokens(tokenizer: Tokenizer) -> bool:
    """Whether a word's token includes the space before it, as with subwords."""
    pieces = map(tokenizer.token_bytes, tokenizer.text_ids)
    return any(len(piece) > 1 and piece.startswith(b" ") for piece in pieces)


def encode_prefix(tokenizer: Tokenizer, text: str) -> tuple[list[int], bool]:
    """The tokens of a text that will be continued, and whether a space comes next.

    Where a space belongs to the next word's token, a token for it alone would mislead the model.
    """
    if text == "":
        return [], False
    cut = text.rstrip(" ") if has_leading_space_tokens(tokenizer) else text
    return tokenizer.encode(cut), cut != text


@lru_cache(maxsize=4096)
def _completing(tokenizer: Tokenizer, word: bytes, there: int) -> list[int]:
    rest = word[there:]
    pieces = ((i, tokenizer.token_bytes(i)) for i in tokenizer.text_ids)
    if not there:
        return [i for i, piece in pieces if rest in piece]
    return [i for i, piece in pieces if piece.startswith(rest)]


def capitalized(phrase: str) -> str:
    """A phrase as it begins a sentence."""
    return phrase[:1].upper() + phrase[1:]


class RequiredPhrases:
    """Phrases that every output of a beam search has, wherever they fit best."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.words = [valid_unicode(word) for word in request.include if word]
        self.tokenizer, self.given = tokenizer, prompt_text_tokens(request.prompt, tokenizer)
        self.initial = [
            capitalized(word) if word in request.capitalizable else word for word in self.words
        ]
        self.first = [tuple(tokenizer.encode(word)) for word in self.initial]
        self.later = [tuple(tokenizer.encode(f" {word}")) for word in self.words]

    def __bool__(self) -> bool:
        return bool(self.words)

    def progress(self, written: Sequence[int]) -> tuple[int, list[int]]:
        """How many tokens of the phrases are there, and which tokens would be one more."""
        tokens = [*self.given, *written]
        text = self.tokenizer.decode(tokens)
        met, begun, wanted = 0, 0, []
        each = zip(self.words, self.initial, self.first, self.later, strict=True)
        for word, initial, first, later in each:
            if word in text or text.startswith(initial):
                met += len(later)
                continue
            phrase = later if text else first
            fewer = range(len(phrase) - 1, -1, -1)  # than all of its tokens
            there = next(n for n in fewer if tuple(tokens[len(tokens) - n :]) == phrase[:n])
            begun = max(begun, there)  # only one can be in the making
            wanted.append(phrase[there])
        return met + begun, wanted

    def complete(self, written: Sequence[int]) -> bool:
        if not self.words:  # then nothing needs to be decoded
            return True
        text = self.tokenizer.decode([*self.given, *written])
        each = zip(self.words, self.initial, strict=True)
        return all(word in text or text.startswith(initial) for word, initial in each)
