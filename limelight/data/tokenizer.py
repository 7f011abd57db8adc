"""Text becomes token ids and comes back, byte for byte.

All kinds are byte-level, so no text is unknown: `bpe` merges frequent neighbours, `word` and `char`
have tokens for frequent words and characters and spell the rest in bytes. `uncased` is `bpe` for
models that read and do not write: like BERT's it lowercases and splits off punctuation. The work is
done by the `tokenizers` library; `tokenizer.json` is its file.

Special tokens such as ⟨end⟩ are written with brackets that byte-level text cannot contain: a "⟨"
that a user types is three bytes, and three other symbols. So no text can ever spell one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial, reduce
from hashlib import sha256
from itertools import chain, islice, pairwise
from operator import iadd
from pathlib import Path
from typing import Annotated, Any, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from limelight.config import config_class
from limelight.errors import UserError
from limelight.files import read_bounded

_Kind = Literal["bpe", "word", "char", "uncased"]
SPECIAL = ("pad", "start", "end", "mask", "separator")  # always there, with the ids 0 to 4
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # 256 visible symbols, one for each byte
# GPT-2's: the visible bytes of Latin-1 stand for themselves, the others follow from U+0100 on.
_HIDDEN = iter(byte for byte in range(256) if chr(byte) not in ALPHABET)
BYTE_OF = {symbol: ord(symbol) if ord(symbol) < 256 else next(_HIDDEN) for symbol in ALPHABET}
SMALLEST = len(SPECIAL) + len(ALPHABET)  # no vocabulary can be smaller
LARGEST = 6_000_000  # bytes of a `tokenizer.json`: some 170,000 tokens
LONG = 5000  # characters: a longer text goes to the library in parts, so that time stays linear
AT_ONCE = 300_000  # characters in one call: enough for all cores, little memory


def special(name: str) -> str:
    """The spelling of a special token in the vocabulary."""
    return f"⟨{name}⟩"


@config_class
class TokenizerConfig:
    """The kind and size of the tokenizer that is trained on the training text."""

    kind: _Kind = "bpe"  # subwords, words, characters; lowercased subwords
    vocab: Annotated[int, Field(ge=SMALLEST, le=2**24)] = 8000  # tokens, at most
    file: str = ""  # a tokenizer.json of Limelight's to use, instead of training one


class Tokenizer:
    """Encodes text as ids, decodes ids as text, and can show its merges."""

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        self.core = core
        self.vocabulary: dict[str, int] = core.get_vocab(with_added_tokens=False)
        self.special = {piece[1:-1]: i for piece, i in self.vocabulary.items() if piece[0] == "⟨"}
        missing = [name for name in SPECIAL if self.special.get(name) != SPECIAL.index(name)]
        if missing:
            raise UserError(f"this tokenizer has no token {special(missing[0])}: it is not ours")
        if not _in_order(self.vocabulary, len(self.special)):
            raise UserError("this tokenizer's tokens are not numbered or spelled as ours are")
        self.pad, self.start, self.end, self.mask, self.separator = range(len(SPECIAL))
        self._symbols = {i: piece for piece, i in self.vocabulary.items()}

    def __len__(self) -> int:
        return len(self.vocabulary)

    @classmethod
    def train(
        cls, kind: _Kind, texts: Iterable[str], vocab: int, tags: Sequence[str] = ()
    ) -> "Tokenizer":
        """Learn a vocabulary of at most `vocab` tokens; `tags` become special tokens."""
        names = [*SPECIAL, *tags]
        free = vocab - len(names) - len(ALPHABET)
        if free < 0:
            raise UserError(
                f"vocab={vocab} is too small: {len(ALPHABET)} bytes and {len(names)} special "
                f"tokens need {vocab - free}"
            )
        texts = chain.from_iterable(in_parts(valid_unicode(text)) for text in texts)
        learn = learn_merges if kind in ("bpe", "uncased") else _learn_units
        pieces, merges = learn(kind, texts, free)
        tokens = [*map(special, names), *ALPHABET, *pieces]
        core = _build_tokenizer(kind, {token: i for i, token in enumerate(tokens)}, merges)
        if (size := len(core.to_str().encode())) > LARGEST:
            raise UserError(
                f"vocab={vocab} is too large: such a tokenizer.json of {size:,} bytes would not be "
                f"read again, which is done up to {LARGEST:,}; ask for a smaller tokenizer.vocab"
            )
        return cls(core)

    @classmethod
    def load(cls, path: Path, most: int = LARGEST) -> "Tokenizer":
        """Read a `tokenizer.json`, which anybody may have written, of at most `most` tokens.

        It is rebuilt from its vocabulary and merges, and everything else in the file must be as in
        ours: a pattern or a rule of somebody else's never runs.
        """
        text = read_bounded(path, LARGEST)
        try:
            found = json.loads(text)
            model = found["model"]
            if len(model["vocab"]) > most:
                raise UserError(f"it has {len(model['vocab'])} tokens, but may have only {most}")
            units: _Kind = "char" if found["pre_tokenizer"]["type"] == "Sequence" else "word"
            pieces: _Kind = "uncased" if found["normalizer"] else "bpe"
            kind = units if model["ignore_merges"] else pieces
            core = _build_tokenizer(kind, model["vocab"], [tuple(pair) for pair in model["merges"]])
            if json.loads(core.to_str()) != found:
                raise UserError("it has other parts than ours have")
            return cls(core)
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{path} is not a tokenizer of ours: {error!s:.200}") from error

    def save(self, path: Path) -> None:
        path.write_text(self.core.to_str(), encoding="utf-8")

    @property
    def hash(self) -> str:
        """SHA-256 of `tokenizer.json`: equal tokenizers have equal hashes, on any machine."""
        return sha256(self.core.to_str().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text; a lone surrogate is read as U+FFFD."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores that the library may use."""
        parts: list[str] = []
        counts: list[int] = []
        for text in texts:
            own = in_parts(valid_unicode(text))
            parts += own
            counts.append(len(own))
        encode = partial(self.core.encode_batch_fast, add_special_tokens=False)
        ids = (encoded.ids for batch in _in_batches(parts) for encoded in encode(batch))
        return [reduce(iadd, islice(ids, count)) for count in counts]  # a text's parts as one

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids, special tokens left out; half a character shows as U+FFFD."""
        special = self.special_ids
        text = [i for i in ids if i not in special]
        return self.core.decode(text, skip_special_tokens=False)

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The pieces that were merged, in this order."""
        merges = json.loads(self.core.to_str())["model"]["merges"]
        return [(left, right) for left, right in merges]

    @property
    def uncased(self) -> bool:
        return self.core.normalizer is not None

    def normalize(self, text: str) -> str:
        """The text that `decode` gives back: all of it, or for `uncased` its normal form."""
        text = valid_unicode(text)
        if not self.uncased:
            return text
        small = self.core.normalizer.normalize_str(text)
        return "".join(f" {word}" for word, _ in _APART.pre_tokenize_str(small))

    @property
    def first_text_id(self) -> int:
        """Ours have all special tokens in front; an imported one may not: use `is_text`."""
        return len(self.special)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that stand for no text."""
        return frozenset(self.special.values())

    def is_text(self, i: int) -> bool:
        return 0 <= i < len(self) and i not in self.special_ids

    @cached_property
    def text_ids(self) -> list[int]:
        return [i for i in range(len(self)) if i not in self.special_ids]

    @property
    def text_start(self) -> tuple[int, ...]:
        """What a language model reads before every text."""
        return (self.end,)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        return frozenset((self.end,))

    @property
    def source(self) -> "Tokenizer":
        """What reads the source, where the two sides of a model have different ones."""
        return self

    @property
    def files(self) -> dict[str, bytes]:
        """Everything of it that a run folder keeps."""
        return {"tokenizer.json": self.core.to_str().encode()}

    def spell(self, symbols: str) -> str:
        """A piece as `show_work` writes it, as text."""
        return readable(symbols)

    def tag(self, name: str) -> int:
        if name not in self.special:
            raise UserError(f"this tokenizer has no tag {name!r}: it was learned without")
        return self.special[name]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id in readable form: text, a special name, or bytes of half a character."""
        known = self._pieces
        return [known[i] if i in known else self._new_piece(i) for i in ids]

    @cached_property
    def _pieces(self) -> dict[int, str]:
        """Those that were asked for: a service's answers have the same ones again and again."""
        return {}

    def _new_piece(self, i: int) -> str:
        piece = self._piece(i)
        if 0 <= i < len(self):
            self._pieces[i] = piece
        return piece

    def _piece(self, i: int) -> str:
        symbol = self._symbols.get(i, f"⟨unused {i}⟩")  # a model may have more ids
        return readable(symbol) if self.is_text(i) else symbol

    def token_bytes(self, i: int) -> bytes:
        """The bytes of a token; none for a special one, or one beyond the vocabulary."""
        symbols = self._symbols[i] if self.is_text(i) else ""
        return bytes(BYTE_OF[symbol] for symbol in symbols)

    def show_work(self, text: str) -> list[list[list[str]]]:
        """For each word its pieces after every merge; a test holds the last equal to `encode`."""
        words = [word for part in in_parts(valid_unicode(text)) for word in self.words(part)]
        rank = {pair: i for i, pair in enumerate(self.merges)}
        units = self.vocabulary if self.core.model.ignore_merges else {}
        return [list(merge_steps(word, rank, units)) for word in words]

    def words(self, text: str) -> list[str]:
        """The units that no piece crosses, spelled in byte symbols."""
        if self.uncased:
            text = self.core.normalizer.normalize_str(text)
        return [word for word, _ in self.core.pre_tokenizer.pre_tokenize_str(text)]


def readable(symbols: str) -> str:
    """A piece spelled in byte symbols, as text; half a character as its bytes."""
    return readable_bytes(bytes(BYTE_OF[symbol] for symbol in symbols))


@lru_cache(maxsize=2**16)
def readable_bytes(raw: bytes) -> str:
    """The bytes of a piece as text; half a character as its bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in raw)


def merge_steps(word: str, rank: dict[Any, int], units: dict[str, int]) -> Iterator[list[str]]:
    """The pieces of a word after every merge; `units` are found without any."""
    pieces = list(word)
    yield pieces
    if word in units and len(word) > 1:
        yield [word]
        return
    while pairs := [pair for pair in pairwise(pieces) if pair in rank]:
        left, right = min(pairs, key=lambda pair: rank[pair])
        merged, i = [], 0
        while i < len(pieces):
            both = i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == (left, right)
            merged.append(left + right if both else pieces[i])
            i += 2 if both else 1
        pieces = merged
        yield pieces


def _in_order(vocabulary: dict[str, int], specials: int) -> bool:
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    return (
        [vocabulary[piece] for piece in pieces] == list(range(len(pieces)))
        and all(piece[0] == "⟨" for piece in pieces[:specials])
        and set().union(*pieces[specials:]) <= BYTE_OF.keys() <= vocabulary.keys()
    )


def valid_unicode(text: str) -> str:
    """Replace lone surrogates, which are no characters, by U+FFFD."""
    if not isinstance(text, str):
        raise UserError(f"expected a text, got {text!r:.80}")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# No word reaches out of such a stretch: it may go on from a space to anything, and from a mark to
# letters ("'s"), but not from letters to digits or marks, nor from any of these to a space.
_STRETCHES = pre_tokenizers.Split(Regex(r"\s*[^\s\p{L}\p{N}]*(?:\p{L}+|\p{N}+)?"), "isolated")


def in_parts(text: str, length: int = LONG) -> list[str]:
    """Cut a text into parts of this length or a little more, never inside a word.

    A million words in one call, or a million letters in one word, would leave the processor's cache
    and take more than twice the time of half a million. The end of a stretch is a safe cut: words
    depend on nothing before them, and behind them only on whether spaces follow. So the parts have
    the words of the text, unless a stretch of more than a hundred characters lies in the way.
    """
    parts, start = [], 0
    while len(text) - start > length:
        last = start + length - 1
        _, (_, beyond) = _STRETCHES.pre_tokenize_str(text[last : last + 100])[0]
        parts.append(text[start : last + beyond])
        start = last + beyond
    return [*parts, text[start:]]


def _in_batches(parts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part)
        if size >= AT_ONCE:
            yield batch
            batch, size = [], 0
    yield batch


_EACH = pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")
_APART = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]"), "removed", invert=True)


def _splitter(kind: _Kind) -> Any:
    if kind in ("bpe", "word"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=kind == "uncased", use_regex=False)
    return pre_tokenizers.Sequence([_APART if kind == "uncased" else _EACH, spelled])


def learn_merges(kind: _Kind, texts: Iterable[str], count: int) -> tuple[list[str], list[Any]]:
    """Byte-pair encoding (Sennrich et al. 2016), as the paper uses it (section 5.1)."""
    core = _wrap_model(models.BPE(), kind)
    size = count + len(ALPHABET)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=ALPHABET, show_progress=False)
    core.train_from_iterator(texts, trainer)
    model = json.loads(core.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return [piece for piece in learned if piece not in BYTE_OF], [tuple(m) for m in model["merges"]]


def _learn_units(kind: _Kind, texts: Iterable[str], count: int) -> tuple[list[str], list[Any]]:
    split = _splitter(kind).pre_tokenize_str
    seen = Counter(piece for text in texts for piece, _ in split(text))
    longer = [piece for piece in seen if len(piece) > 1]
    return sorted(longer, key=lambda piece: (-seen[piece], piece))[:count], []


def _build_tokenizer(kind: _Kind, vocab: dict[str, int], merges: list[Any]) -> tokenizers.Tokenizer:
    units = kind in ("word", "char")
    core = _wrap_model(models.BPE(vocab=vocab, merges=merges, ignore_merges=units), kind)
    core.decoder = decoders.ByteLevel()
    return core


def _wrap_model(model: models.BPE, kind: _Kind) -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(model)
    core.pre_tokenizer = _splitter(kind)
    if kind == "uncased":
        core.normalizer = normalizers.Lowercase()
    return core
