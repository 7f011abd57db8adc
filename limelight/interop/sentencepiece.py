"""SentencePiece models (.spm, .model): a protocol buffer becomes a tokenizer of `tokenizers`.

https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto has the fields.
"""

import codecs
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import tokenizers

from limelight.errors import UserError
from limelight.interop.charsmap import Charsmap
from limelight.interop.coders import LARGEST_VOCAB, Coder, Files, by_id, parse_json

_LARGEST = 2**25  # bytes of a model; one of 256,000 pieces has 6 million
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type
_SPACE = "▁"
_UNKNOWN_TEXT = " \u2047 ".encode()
_EACH_BYTE = "limelight.each_byte"  # every byte that is no part of a character becomes U+FFFD


def _replace_byte(error: UnicodeError) -> tuple[str, int]:
    return "\ufffd", cast(UnicodeDecodeError, error).start + 1


codecs.register_error(_EACH_BYTE, _replace_byte)
_LANGUAGE = re.compile(">>.+<<")
_LONGEST_PIECE = 256  # characters
_SPECIAL_FIELDS = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, 2**64 - 1)}


@dataclass
class SentencePieceModel:
    """What a model says, with the defaults of its format."""

    pieces: list[tuple[str, float, int]]  # text, score, type
    kind: int = UNIGRAM
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    whitespace_suffix: bool = False
    byte_fallback: bool = False
    special: dict[str, int] = field(default_factory=dict)  # unk, bos, eos, pad


def parse_sentencepiece(data: bytes) -> SentencePieceModel:
    """Read a model, and refuse what no published one has."""
    try:
        return _parse(data)
    except (struct.error, ValueError) as error:  # a text that is no UTF-8 is a ValueError too
        raise UserError(f"this is not a model of SentencePiece: {error!s:.120}") from error


def _parse(data: bytes) -> SentencePieceModel:
    if len(data) > _LARGEST:
        raise UserError(f"it has more than {_LARGEST:,} bytes")
    model = SentencePieceModel([])
    for number, value in _fields(data):
        if number == 1:
            model.pieces.append(_piece(_bytes(value)))
            if len(model.pieces) > LARGEST_VOCAB:
                raise UserError(f"it has more than {LARGEST_VOCAB} pieces")
        elif number == 2:
            _read_trainer(model, dict(_fields(_bytes(value))))
        elif number == 3:
            _read_normalizer(model, dict(_fields(_bytes(value))))
        elif number == 5 and dict(_fields(_bytes(value))).get(2):
            raise UserError("it changes texts again when it decodes, which is not supported")
    if not model.pieces:
        raise UserError("it has no pieces")
    if model.kind not in (UNIGRAM, BPE):
        raise UserError("it splits into words or characters: only unigram and BPE are supported")
    if model.whitespace_suffix or not model.escape_whitespaces:
        raise UserError("it has spaces behind words, or none, which is not supported")
    if not sum(kind == UNKNOWN for _, _, kind in model.pieces) == 1:
        raise UserError("it has no piece, or several, for what is unknown")
    spelled = [text for text, _, kind in model.pieces if kind == BYTE]
    if (spelled or model.byte_fallback) and spelled != [f"<0x{i:02X}>" for i in range(256)]:
        raise UserError("its pieces for bytes are not the 256 that there are")
    return model


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, with integers, or bytes for everything else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise UserError(f"a field has the unknown kind {wire}")
        if size > len(data) - at:
            raise UserError(f"a field of {size} bytes is longer than the file")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise UserError("it ends within a number")
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise UserError("a number has no end")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise UserError("a number stands where a message is expected")
    return value


def _piece(message: bytes) -> tuple[str, float, int]:
    found = dict(_fields(message))
    score = struct.unpack("<f", _bytes(found.get(2, b"\0" * 4)))[0]
    kind = found.get(3, NORMAL)
    if not math.isfinite(score):
        raise UserError("a piece has no number as its score")
    if not isinstance(kind, int) or not NORMAL <= kind <= BYTE:
        raise UserError(f"a piece has the unknown type {kind!r:.20}")
    return _bytes(found.get(1, b"")).decode(), score, kind


def _read_trainer(model: SentencePieceModel, found: dict[int, Any]) -> None:
    model.kind = found.get(3, UNIGRAM)
    model.whitespace_suffix = bool(found.get(24, 0))
    model.byte_fallback = bool(found.get(35, 0))
    for name, (number, default) in _SPECIAL_FIELDS.items():
        value = found.get(number, default)
        if isinstance(value, int) and value < 2**31:  # -1 says that there is none
            model.special[name] = value


def _read_normalizer(model: SentencePieceModel, found: dict[int, Any]) -> None:
    model.charsmap = _bytes(found.get(2, b""))
    model.add_dummy_prefix = bool(found.get(3, 1))
    model.remove_extra_whitespaces = bool(found.get(4, 1))
    model.escape_whitespaces = bool(found.get(5, 1))


def to_bytes(model: SentencePieceModel) -> bytes:
    """A file of SentencePiece, for a tokenizer that came in another one."""
    pieces = (
        _message(1, text.encode()) + _tag(2, 5) + struct.pack("<f", score) + _number(3, kind)
        for text, score, kind in model.pieces
    )
    special = {name: model.special.get(name, -1) for name in _SPECIAL_FIELDS}
    ids = b"".join(_number(_SPECIAL_FIELDS[name][0], i) for name, i in special.items())
    trainer = _number(3, model.kind) + _number(35, model.byte_fallback) + ids
    flags = (model.add_dummy_prefix, model.remove_extra_whitespaces, model.escape_whitespaces)
    normalizer = _message(2, model.charsmap) + b"".join(
        _number(3 + i, flag) for i, flag in enumerate(flags)
    )
    every = b"".join(_message(1, piece) for piece in pieces)
    return every + _message(2, trainer) + _message(3, normalizer)


def with_start(data: bytes, name: str) -> bytes:
    """A model with one more piece at its end, which no text can spell."""
    return data + _message(1, _message(1, name.encode()) + _number(3, CONTROL))


def _number(field_: int, value: int) -> bytes:
    return _tag(field_, 0) + _as_varint(value % 2**64)


def _message(field_: int, data: bytes) -> bytes:
    return _tag(field_, 2) + _as_varint(len(data)) + data


def _tag(field_: int, wire: int) -> bytes:
    return _as_varint(field_ << 3 | wire)


def _as_varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _build_core(model: SentencePieceModel) -> tokenizers.Tokenizer:
    """The search for pieces, of a text that is normalized already.

    A text can spell no control piece and no byte: these are named with spaces, and it has none.
    """
    names = [text if kind in _SPELLED else f" {text} " for text, _, kind in model.pieces]
    if len({*names}) < len(names):
        raise UserError("two pieces of the tokenizer are the same")
    return tokenizers.Tokenizer(
        _unigram(model, names) if model.kind == UNIGRAM else _bpe(model, names)
    )


_SPELLED = (NORMAL, USER_DEFINED)


def _unigram(model: SentencePieceModel, names: Sequence[str]) -> tokenizers.models.Unigram:
    highest = max((score for _, score, kind in model.pieces if kind == NORMAL), default=0.0)
    # The score of a user's symbol is such that no other pieces of the same text can win.
    scores = [
        len(text.encode()) * highest - 0.1 if kind == USER_DEFINED else score
        for text, score, kind in model.pieces
    ]
    vocab = [*zip(names, scores, strict=True)]
    return tokenizers.models.Unigram(vocab, _unknown(model), byte_fallback=False)


def _bpe(model: SentencePieceModel, names: Sequence[str]) -> tokenizers.models.BPE:
    """Its pairs are merged by the score of the piece that they make, so merges follow from it."""
    if any(kind in (USER_DEFINED, UNUSED) for _, _, kind in model.pieces):
        raise UserError("the tokenizer is BPE with symbols of its users, which is not supported")
    normal = {text: score for text, score, kind in model.pieces if kind == NORMAL}
    made = sorted(
        (-score, i, text[:cut], text[cut:])
        for i, (text, score) in enumerate(normal.items())
        for cut in range(1, min(len(text), _LONGEST_PIECE))
        if text[:cut] in normal and text[cut:] in normal
    )
    return tokenizers.models.BPE(
        vocab={name: i for i, name in enumerate(names)},
        merges=[(left, right) for _, _, left, right in made],
        unk_token=names[_unknown(model)],
        fuse_unk=True,
    )


def _unknown(model: SentencePieceModel) -> int:
    return next(i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN)


class SentencePieceCoder(Coder):
    """Text to ids and back, as package `sentencepiece` does it.

    The ids are the positions of the pieces, unless a second file, `vocab.json`, has others: those
    of Marian's and fairseq's models. A text may then begin with the language to write: >>fra<<.
    """

    kind: ClassVar[str] = "sentencepiece"
    lossy = True  # it may merge spaces, and normalize characters

    def __init__(self, files: Files) -> None:
        self.files = files
        (data,) = (data for name, data in files.items() if name.endswith(".spm"))
        self.model = parse_sentencepiece(data)
        self.core, self._unknown = _build_core(self.model), _unknown(self.model)
        pieces = [text for text, _, _ in self.model.pieces]
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        tables = [name for name in files if name.endswith(".json")]
        if tables:
            self.ids = _read_table(files[tables[0]], tables[0])
        self.symbols = by_id(self.ids, "the tokenizer")
        unknown = pieces[self._unknown]
        self.unknown = self.ids.get(unknown, self.ids.get("<unk>", 0))
        self._codes = _LANGUAGE if tables else None
        # From the position of a piece to its id, and back.
        self._id_of = [self.ids.get(piece, self.unknown) for piece in pieces]
        self._piece_of = {self.ids[piece]: i for i, piece in enumerate(pieces) if piece in self.ids}
        kinds = enumerate(kind for _, _, kind in self.model.pieces)
        self._bytes = [i for i, kind in kinds if kind == BYTE] if self.model.byte_fallback else []
        charsmap = self.model.charsmap
        self._apply_rules = Charsmap(charsmap).normalize if charsmap else str
        self._fixed = self._alternatives(USER_DEFINED)
        self._controls = self._alternatives(CONTROL)

    def _alternatives(self, wanted: int) -> re.Pattern[str] | None:
        texts = sorted((t for t, _, kind in self.model.pieces if kind == wanted and t), key=len)
        return re.compile(f"({'|'.join(map(re.escape, texts[::-1]))})") if texts else None

    def normalize(self, text: str) -> str:
        """What the pieces spell: SentencePiece's `Normalizer::Normalize`."""
        parts = self._fixed.split(text) if self._fixed else [text]
        parts[::2] = map(self._apply_rules, parts[::2])
        text = "".join(parts)
        if self.model.remove_extra_whitespaces:
            text = re.sub(" +", " ", text).lstrip(" ")
        if text and self.model.add_dummy_prefix:
            text = _SPACE + text
        text = text.replace(" ", _SPACE)
        return text.rstrip(_SPACE) if self.model.remove_extra_whitespaces else text

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        codes = [self._codes.match(text) if self._codes else None for text in texts]
        rests = (t[code.end() :] if code else t for t, code in zip(texts, codes, strict=True))
        spelled = [self.normalize(rest) for rest in rests]
        found = self.core.encode_batch_fast(spelled, add_special_tokens=False)
        rows = []
        for text, encoding, code in zip(spelled, found, codes, strict=True):
            unknown = self._bytes and self._unknown in encoding.ids
            pieces = self._with_bytes(text) if unknown else encoding.ids
            first = [self.ids.get(code[0].strip(), self.unknown)] if code else []
            rows.append(first + [self._id_of[i] for i in pieces])
        return rows

    def _with_bytes(self, text: str) -> list[int]:
        """What no piece spells becomes its bytes, a piece each."""
        pieces: list[int] = []
        encoding = self.core.encode(text, add_special_tokens=False)
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            raw = text[start:end].encode() if i == self._unknown else None
            pieces += [i] if raw is None else [self._bytes[byte] for byte in raw]
        return pieces

    def encode_template(self, text: str) -> list[int]:
        """Each text between control pieces on its own, as llama.cpp reads it."""
        parts = self._controls.split(text) if self._controls else [text]
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self.ids.get(part, self.unknown)] if i % 2 else self.encode([part])[0]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        model, parts = self.model, list[bytes]()
        begins = model.add_dummy_prefix or model.remove_extra_whitespaces
        for i in ids:
            raw = self.token_bytes(i)
            # A space that `normalize` has added is left out.
            if begins and (self.symbols[i] or "").startswith(_SPACE):
                raw, begins = raw[1:], model.remove_extra_whitespaces
            begins &= not raw
            parts.append(raw)
        return b"".join(parts).decode(errors=_EACH_BYTE)

    def token_bytes(self, i: int) -> bytes:
        if i not in self._piece_of:  # a piece of the other side
            return (self.symbols[i] or "").replace(_SPACE, " ").encode()
        text, _, kind = self.model.pieces[self._piece_of[i]]
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        return _UNKNOWN_TEXT if kind == UNKNOWN else text.replace(_SPACE, " ").encode()

    def spell(self, symbols: str) -> str:
        return symbols.replace(_SPACE, " ")

    def merge_steps(self, text: str) -> list[list[list[str]]]:
        """For each word its characters, then its pieces: a search, not a series of merges."""
        words: list[list[str]] = []
        for piece in self.core.encode(self.normalize(text), add_special_tokens=False).tokens:
            if piece.startswith(_SPACE) or not words:
                words.append([])
            words[-1].append(piece)
        return [[list("".join(pieces)), pieces] for pieces in words]


def _read_table(data: bytes, name: str) -> dict[str, int]:
    table = parse_json(data, name)
    if not isinstance(table, dict) or not all(type(i) is int and i >= 0 for i in table.values()):
        raise UserError(f"{name} is no table of pieces and their ids")
    return table
