"""Other people's tokenizers, with the ids that they give; a run folder keeps their own files.

A coder turns text into ids and back; an `ImportedTokenizer` adds the special tokens and is what the
rest of the package knows as a tokenizer. A text never spells a special token: "<|im_end|>" typed by
a user is read as ordinary characters.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from limelight.config import config_class
from limelight.data.tokenizer import Tokenizer, readable_bytes, valid_unicode
from limelight.errors import UserError, unknown_name
from limelight.files import read_bounded_bytes
from limelight.interop.characters import CharacterCoder
from limelight.interop.coders import LARGEST_VOCAB, Coder, Files, JsonCoder, parse_json
from limelight.interop.sentencepiece import SentencePieceCoder
from limelight.interop.subword_nmt import SubwordCoder

_Id = Annotated[int, Field(ge=0, lt=LARGEST_VOCAB)]
_MaybeId = Annotated[int, Field(ge=-1, lt=LARGEST_VOCAB)]
_CODERS: dict[str, Callable[[Files], Coder]] = {  # by their kind in a run folder
    JsonCoder.kind: JsonCoder,
    SentencePieceCoder.kind: SentencePieceCoder,
    SubwordCoder.kind: SubwordCoder,
    CharacterCoder.kind: CharacterCoder,
}
_DESCRIPTION = "special_tokens.json"
_FORMAT = 1
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@config_class
class SpecialTokens:
    """The ids that stand for no text; -1 where a model has none."""

    pad: _Id  # any id, where the model has none: padding is always masked
    start: _Id  # what a decoder starts from, or BERT's first token
    end: _Id
    mask: _MaybeId = -1  # a blank of BERT's
    separator: _MaybeId = -1  # between two texts
    text_start: tuple[_Id, ...] = ()  # what a language model reads before every text
    ends: tuple[_Id, ...] = ()  # others that end a text, besides `end`
    others: tuple[_Id, ...] = ()  # all other tokens that stand for no text
    shared: tuple[_Id, ...] = ()  # of all these, what is text too: it ends nothing, and is shown


class ImportedTokenizer(Tokenizer):
    """A tokenizer of somebody else's; `source` is another one where the two sides differ."""

    def __init__(
        self, coder: Coder, tokens: SpecialTokens, source: "ImportedTokenizer | None" = None
    ) -> None:
        self.coder, self.tokens, self._source = coder, tokens, source
        self.pad, self.start, self.end = tokens.pad, tokens.start, tokens.end
        self.mask, self.separator = tokens.mask, tokens.separator
        named = [
            (name, getattr(self, name)) for name in ("pad", "start", "end", "mask", "separator")
        ]
        for name, i in (*named, *(("a special token", i) for i in tokens.others)):
            if i >= len(self):
                raise UserError(f"the tokenizer has {len(self)} tokens, and no id {i}: {name}")
        self.special = {self.pieces([i])[0].strip("⟨⟩"): i for i in sorted(self.special_ids)}

    def __len__(self) -> int:
        return len(self.coder.symbols)

    @property
    def source(self) -> Tokenizer:
        """What reads the source, where the two sides have different ones."""
        return self._source or self

    @cached_property
    def special_ids(self) -> frozenset[int]:
        t, unused = self.tokens, (i for i, s in enumerate(self.coder.symbols) if s is None)
        every = {t.pad, t.start, t.end, t.mask, t.separator, *t.text_start, *t.ends, *t.others}
        return frozenset({*every, *unused} - {-1, *t.shared})

    @property
    def text_start(self) -> tuple[int, ...]:
        return self.tokens.text_start

    @cached_property
    def ends(self) -> frozenset[int]:
        return frozenset({self.end, *self.tokens.ends} - {*self.tokens.shared})

    @cached_property
    def hash(self) -> str:
        parts = [asdict(self.tokens), *({n: sha256(f).hexdigest()} for n, f in self.files.items())]
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return self.coder.encode([valid_unicode(text) for text in texts])

    def encode_template(self, text: str) -> list[int]:
        """The ids of a chat that was laid out with special tokens."""
        return self.coder.encode_template(valid_unicode(text))

    def decode(self, ids: Iterable[int]) -> str:
        return self.coder.decode([i for i in ids if self.is_text(i)])

    @property
    def merges(self) -> list[tuple[str, str]]:
        """None that are known here: coders have their own ways."""
        return []

    @property
    def uncased(self) -> bool:
        """Whether text does not come back as it was."""
        return self.coder.lossy

    def normalize(self, text: str) -> str:
        """What `decode` gives back: known only by doing it."""
        return self.decode(self.encode(text))

    def tag(self, name: str) -> int:
        raise UserError(f"an imported tokenizer has no tags, so there is no {name!r}")

    def _piece(self, i: int) -> str:
        symbol = self.coder.symbols[i] if i < len(self) else None
        if symbol is None:
            return f"⟨unused {i}⟩"
        if i in self.special_ids:
            return f"⟨{symbol.strip('<>[]|') or symbol}⟩"
        return readable_bytes(self.coder.token_bytes(i))

    def token_bytes(self, i: int) -> bytes:
        return self.coder.token_bytes(i) if self.is_text(i) else b""

    def show_work(self, text: str) -> list[list[list[str]]]:
        return self.coder.merge_steps(valid_unicode(text))

    def spell(self, symbols: str) -> str:
        return self.coder.spell(symbols)

    @property
    def files(self) -> dict[str, bytes]:
        """Everything of it that a run folder keeps."""
        facts, kept = dict[str, Any](format=_FORMAT), dict[str, bytes]()
        for side, own in {"target": self, "source": self._source}.items():
            if own is not None:
                files = own.coder.files
                hashes = {name: sha256(data).hexdigest() for name, data in files.items()}
                tokens = asdict(own.tokens)
                facts[side] = {"kind": own.coder.kind, "files": hashes, "tokens": tokens}
                kept |= files
        return {**kept, _DESCRIPTION: json.dumps(facts, indent=1).encode()}


def load_tokenizer(folder: Path, vocab: int, source_vocab: int) -> ImportedTokenizer:
    """The tokenizer of a run folder; a file that has changed is rejected."""
    facts = parse_json(read_bounded_bytes(folder / _DESCRIPTION, 2**20), folder / _DESCRIPTION)
    try:
        if facts["format"] != _FORMAT:
            raise UserError(f"it is of another format than {_FORMAT}")
        target = _side(folder, facts["target"], vocab)
        if "source" not in facts:
            return ImportedTokenizer(*target)
        source = ImportedTokenizer(*_side(folder, facts["source"], source_vocab))
        return ImportedTokenizer(*target, source)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise UserError(f"{folder / _DESCRIPTION}: {error}") from error
        raise UserError(f"{folder / _DESCRIPTION} is not what an import writes") from error


def _side(folder: Path, facts: Any, most: int) -> tuple[Coder, SpecialTokens]:
    files = {}
    for name, known in facts["files"].items():
        if not _FILE_NAME.fullmatch(name):
            raise UserError(f"{name!a:.80} is no name of a tokenizer's file")
        files[name] = read_bounded_bytes(folder / name)
        if sha256(files[name]).hexdigest() != known:
            raise UserError(f"{name} has changed since the import")
    if facts["kind"] not in _CODERS:
        raise unknown_name("kind of tokenizer", facts["kind"], _CODERS)
    coder = _CODERS[facts["kind"]](files)
    if len(coder.symbols) > most:
        raise UserError(f"it has {len(coder.symbols)} tokens, and the model {most}")
    tokens: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in facts["tokens"].items()
    }
    return coder, SpecialTokens(**tokens)
