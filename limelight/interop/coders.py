"""Published tokenizers: `tokenizer.json`.

The `tokenizers` library reads it, if every part of it is known to be harmless: no regular
expression from the file runs, and no rule makes a text much longer.
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol

import tokenizers

from limelight.data.tokenizer import BYTE_OF, merge_steps
from limelight.errors import UserError

LARGEST_VOCAB = 2**20
Files = Mapping[str, bytes]  # of a run folder, by name


class Coder(Protocol):
    """Turns text into ids and back, and can be kept in a run folder."""

    kind: ClassVar[str]  # its name in `special_tokens.json`
    lossy: bool  # text does not come back as it was: spaces are dropped, and often case
    files: Files  # what has to be kept
    symbols: Sequence[str | None]  # the spelling of each id; None for an id that has none

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens, even where a text spells one."""

    def encode_template(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are spelled out, if a text can spell them."""
        return self.encode([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids that stand for text."""

    def token_bytes(self, i: int) -> bytes:
        """What this token adds to a text."""
        return (self.symbols[i] or "").encode()

    def spell(self, symbols: str) -> str:
        """A piece as `merge_steps` writes it, as text."""
        return symbols

    def merge_steps(self, text: str) -> list[list[list[str]]]:
        """For each word of a text its pieces, step by step as they are found."""


def parse_json(data: bytes, where: object) -> Any:
    """JSON of a stranger: NaN, infinity and endless nesting are refused."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error!s:.200}") from error


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_Part = Mapping[str, Any]
BYTE_LEVEL: _Part = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_PATTERNS = {
    _GPT2,
    LLAMA3,
    LLAMA3.replace("{1,3}", ""),
    " {2,}",
    r"\s+",
    r"\p{N}",
    r"\p{N}{1,3}",
    *(r"(?m:.)", r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]"),  # of our own kinds char and uncased
}
_PARTS = {  # the kinds of parts that are known, by where they stand
    "normalizer": {
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Strip"),
        *("Replace", "Prepend", "Precompiled", "Sequence", "Nmt"),
    },
    "pre_tokenizer": {
        *("ByteLevel", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "Digits"),
        *("Punctuation", "Split", "Sequence"),
    },
    "post_processor": {
        *("ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "Sequence"),
    },
    "decoder": {
        *("ByteLevel", "WordPiece", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"),
        "Sequence",
    },
    "model": {"BPE", "WordPiece", "Unigram"},
}
_KEYS = {"version", "truncation", "padding", "added_tokens", *_PARTS}


class JsonCoder(Coder):
    """A `tokenizer.json`."""

    kind: ClassVar[str] = "tokenizer.json"

    def __init__(self, files: Files) -> None:
        ((name, data),) = files.items()
        self.files = files
        found = parse_json(data, name)
        try:
            _check_parts(found)
            self.core = _load(found)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        self.core.encode_special_tokens = True  # what a user types never becomes one
        self.ids: dict[str, int] = self.core.get_vocab(with_added_tokens=True)
        added = self.core.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.symbols = by_id(self.ids, name)
        self.model = str(found["model"]["type"])
        self.lossy = self.model == "WordPiece"
        self._byte_level = "ByteLevel" in {part["type"] for _, part in _parts_of(found)}
        self._json = found

    @cached_property
    def _core_of_templates(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.core.to_str())  # recognises special tokens

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that the origin puts before and behind every text."""
        plain = self.core.encode("a", add_special_tokens=False).ids
        full = self.core.encode("a").ids
        for begin in range(len(full) - len(plain) + 1):
            if full[begin : begin + len(plain)] == plain:
                return full[:begin], full[begin + len(plain) :]
        raise UserError("the tokenizer changes a text that it puts special tokens around")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        found = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [each.ids for each in found]

    def encode_template(self, text: str) -> list[int]:
        ids: list[int] = self._core_of_templates.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.core.decode(list(ids), skip_special_tokens=False)
        return text

    def token_bytes(self, i: int) -> bytes:
        symbol = self.symbols[i] or ""
        if self._byte_level and BYTE_OF.keys() >= set(symbol):
            return bytes(BYTE_OF[c] for c in symbol)
        if self.lossy:
            return (symbol[2:] if symbol[:2] == "##" else f" {symbol}").encode()
        return _piece_bytes(symbol)

    def spell(self, symbols: str) -> str:
        if self._byte_level and BYTE_OF.keys() >= set(symbols):
            return bytes(BYTE_OF[c] for c in symbols).decode("utf-8", "replace")
        return symbols.replace("▁", " ")

    def merge_steps(self, text: str) -> list[list[list[str]]]:
        if self.core.normalizer is not None:
            text = self.core.normalizer.normalize_str(text)
        words = [text]
        if self.core.pre_tokenizer is not None:
            words = [word for word, _ in self.core.pre_tokenizer.pre_tokenize_str(text)]
        if self.model == "BPE":
            return [list(merge_steps(word, self._ranks, {})) for word in words]
        return [[[token.value for token in self.core.model.tokenize(word)]] for word in words]

    @cached_property
    def _ranks(self) -> dict[Any, int]:
        merges = self._json["model"]["merges"]
        pairs = (tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in merges)
        return {pair: i for i, pair in enumerate(pairs)}

    @classmethod
    def byte_level(cls, vocab: dict[str, Any], merges: str) -> "JsonCoder":
        """GPT-2's older files: vocab.json and merges.txt."""
        lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
        pairs = [tuple(line.split(" ")) for line in lines]
        if any(len(pair) != 2 for pair in pairs):
            raise UserError("merges.txt has a line that is not two pieces")
        special = [token for token in vocab if token == "<|endoftext|>"]
        model = {"type": "BPE", "vocab": vocab, "merges": [list(pair) for pair in pairs]}
        return cls.made(model, special, BYTE_LEVEL, BYTE_LEVEL)

    @classmethod
    def wordpiece(cls, pieces: str, lowercase: bool) -> "JsonCoder":
        """BERT's older file: vocab.txt, a piece on each line."""
        lines = pieces.split("\n")
        lines = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
        vocab = {line: i for i, line in enumerate(lines)}
        special = [t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if t in vocab]
        model = {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        }
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        }
        decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
        return cls.made(model, special, {"type": "BertPreTokenizer"}, decoder, normalizer)

    @classmethod
    def made(
        cls,
        model: _Part,
        special: Sequence[str],
        pre: _Part,
        decoder: _Part,
        normalizer: Any = None,
    ) -> "JsonCoder":
        """A tokenizer of these parts."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        ids = {token: model["vocab"][token] for token in special}
        added = [{"id": i, "content": token, **flags, "special": True} for token, i in ids.items()]
        facts = {
            "version": "1.0",
            "added_tokens": sorted(added, key=lambda one: one["id"]),
            "normalizer": normalizer,
            "pre_tokenizer": pre,
            "decoder": decoder,
            "model": model,
        }
        return cls({"tokenizer.json": json.dumps(facts, ensure_ascii=False).encode()})


def _load(found: dict[str, Any]) -> tokenizers.Tokenizer:
    """The library's tokenizer, without what would cut or pad texts."""
    text = json.dumps({**found, "truncation": None, "padding": None})
    try:
        return tokenizers.Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics on some files, past Exception
        raise UserError(f"it cannot be read: {error!s:.200}") from error


def _check_parts(found: Any) -> None:
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise UserError("it is no tokenizer: it has no model")
    for key in found.keys() - _KEYS:
        raise UserError(f"its part {key!a:.80} is unknown")
    for where, part in _parts_of(found):
        kind = part.get("type")
        if kind not in _PARTS[where]:
            raise UserError(f"the {where} {kind!a:.80} is not supported")
        _check_pattern(part)
    model = found["model"]
    if model.get("dropout"):
        raise UserError("its merges are dropped at random")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict | list) or not 0 < len(vocab) <= LARGEST_VOCAB:
        raise UserError(f"it has no vocabulary of 1 to {LARGEST_VOCAB} tokens")
    if not 0 < model.get("max_input_chars_per_word", 100) <= 1000:
        raise UserError("its words are too long")
    if not isinstance(found.get("added_tokens", []), list):
        raise UserError("its added tokens are no list")


def _parts_of(found: Mapping[str, Any], deep: int = 4) -> Iterator[tuple[str, dict[str, Any]]]:
    """All parts, with those inside of sequences, and where they stand."""
    for where in _PARTS:
        pending = [(found.get(where), deep)]
        while pending:
            part, left = pending.pop()
            if part is None:
                continue
            if not isinstance(part, dict) or not left:
                raise UserError(f"its {where} is not what it should be")
            yield where, part
            inside = [
                part.get(k) for k in ("normalizers", "pretokenizers", "processors", "decoders")
            ]
            for each in inside:
                pending += [(one, left - 1) for one in each or ()]


def _check_pattern(part: Mapping[str, Any]) -> None:
    """Patterns are known ones, what replaces them is short, and a table of characters is small."""
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and "Regex" in pattern:
        if pattern["Regex"] not in _PATTERNS:
            raise UserError(f"the pattern {pattern['Regex']!a:.120} is unknown, and is not run")
    elif pattern is not None and not (
        isinstance(pattern, dict) and 0 < len(str(pattern.get("String", ""))) <= 16
    ):
        raise UserError(f"the pattern {pattern!s:.80} is not supported")
    for name in ("content", "prepend", "replacement", "str_rep"):
        if len(str(part.get(name) or "")) > 16:
            raise UserError(f"a text of {len(str(part[name]))} characters is put into every text")
    charsmap = part.get("precompiled_charsmap")
    if charsmap is not None and (not isinstance(charsmap, str) or len(charsmap) > 2**21):
        raise UserError("its table of characters is too large")
    if charsmap is not None:
        _check_charsmap(charsmap)


def _check_charsmap(text: str) -> None:
    """A trie of 4-byte cells with its own length in front; the library trusts that length."""
    try:
        raw = b64decode(text, validate=True)
    except ValueError as error:
        raise UserError("its table of characters cannot be read") from error
    if raw and not 0 < int.from_bytes(raw[:4], "little") <= len(raw) - 4:
        raise UserError("its table of characters is damaged")


def by_id(ids: Mapping[str, int], where: str) -> list[str | None]:
    """The symbols in the order of their ids; None where there is none."""
    most = max(ids.values(), default=-1) + 1
    if not 0 < most <= LARGEST_VOCAB:
        raise UserError(f"{where}: its ids reach {most}, and {LARGEST_VOCAB} are the most")
    symbols: list[str | None] = [None] * most
    for symbol, i in ids.items():
        if symbols[i] is not None:
            raise UserError(f"{where}: two tokens have the id {i}")
        symbols[i] = symbol
    return symbols


_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _piece_bytes(piece: str) -> bytes:
    """A piece of SentencePiece: ▁ is a space, and <0x0A> a byte."""
    if match := _BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode()
