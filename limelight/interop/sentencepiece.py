"""SentencePiece models (.spm, .model): a protocol buffer becomes a tokenizer of `tokenizers`.

https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto has the fields.
"""

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limelight.errors import UserError
from limelight.interop.binary import BinaryReader

_LARGEST = 2**25  # bytes of a model; one of 256,000 pieces has 6 million
_MOST_PIECES = 2**20
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type
SPACE = "▁"
_LONGEST_PIECE = 256  # characters


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


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a model and refuse what no published one has."""
    file = BinaryReader(path, _LARGEST)
    try:
        return _parse(file.bytes(len(file)))
    except (struct.error, ValueError) as error:  # a text that is no UTF-8 is a ValueError too
        raise UserError(f"{path} is not a model of SentencePiece: {error!s:.120}") from error


def _parse(data: bytes) -> SentencePieceModel:
    model = SentencePieceModel([])
    for number, value in _fields(data):
        if number == 1:
            model.pieces.append(_piece(_bytes(value)))
            if len(model.pieces) > _MOST_PIECES:
                raise UserError(f"it has more than {_MOST_PIECES} pieces")
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
    if score != score or abs(score) == float("inf"):
        raise UserError("a piece has no number as its score")
    if not isinstance(kind, int) or not NORMAL <= kind <= BYTE:
        raise UserError(f"a piece has the unknown type {kind!r:.20}")
    return _bytes(found.get(1, b"")).decode(), score, kind


def _read_trainer(model: SentencePieceModel, found: dict[int, Any]) -> None:
    model.kind = found.get(3, UNIGRAM)
    model.whitespace_suffix = bool(found.get(24, 0))
    model.byte_fallback = bool(found.get(35, 0))
    defaults = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, 2**64 - 1)}
    for name, (number, default) in defaults.items():
        value = found.get(number, default)
        if isinstance(value, int) and value < 2**31:  # -1 says that there is none
            model.special[name] = value


def _read_normalizer(model: SentencePieceModel, found: dict[int, Any]) -> None:
    model.charsmap = _bytes(found.get(2, b""))
    model.add_dummy_prefix = bool(found.get(3, 1))
    model.remove_extra_whitespaces = bool(found.get(4, 1))
    model.escape_whitespaces = bool(found.get(5, 1))


def to_tokenizer(model: SentencePieceModel) -> dict[str, Any]:
    """The content of a `tokenizer.json` with the same ids.

    A text can spell no control piece, which is named with a space, and spaces become "▁" first.
    """
    names = [_NAMES.get(kind, "{}").format(text) for text, _, kind in model.pieces]
    if len({*names}) < len(names):
        raise UserError("two pieces of the tokenizer are the same")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(model)},
        "model": _unigram(model, names) if model.kind == UNIGRAM else _bpe(model, names),
    }


_NAMES = {UNKNOWN: " \u2047 ", CONTROL: " {} ", UNUSED: " {} "}  # unknown: as it is decoded


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        rules = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]


def _decoders(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    first = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return [*steps, first] if model.add_dummy_prefix else steps


def _unigram(model: SentencePieceModel, names: Sequence[str]) -> dict[str, Any]:
    normal = [score for _, score, kind in model.pieces if kind == NORMAL] or [0.0]
    lowest, highest = min(normal), max(normal)

    def score_of(text: str, score: float, kind: int) -> float:
        if kind == USER_DEFINED:  # such that no other pieces of the same text can win
            return len(text.encode()) * highest - 0.1
        # A byte that the text spells, "<0x41>", must lose against its letters, even unknown ones.
        return 6 * (lowest - 10) - 1 if kind == BYTE else score

    scores = [score_of(*piece) for piece in model.pieces]
    return {
        "type": "Unigram",
        "unk_id": _unknown(model),
        "vocab": [list(pair) for pair in zip(names, scores, strict=True)],
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: SentencePieceModel, names: Sequence[str]) -> dict[str, Any]:
    """Its pairs are merged by the score of the piece that they make, so merges follow from it."""
    if any(kind in (USER_DEFINED, UNUSED) for _, _, kind in model.pieces):
        raise UserError("the tokenizer is BPE with symbols of its users, which is not supported")
    normal = {text: score for text, score, kind in model.pieces if kind == NORMAL}
    made = [
        (-score, i, text[:cut], text[cut:])
        for i, (text, score) in enumerate(normal.items())
        for cut in range(1, min(len(text), _LONGEST_PIECE))
        if text[:cut] in normal and text[cut:] in normal
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": names[_unknown(model)],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": [[left, right] for _, _, left, right in sorted(made)],
    }


def _unknown(model: SentencePieceModel) -> int:
    return next(i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN)
