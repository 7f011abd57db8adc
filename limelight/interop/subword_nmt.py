"""fairseq's dictionaries, and the subwords of subword-nmt that they give ids to."""

import re
from collections.abc import Sequence
from typing import ClassVar

import tokenizers
from tokenizers import models, pre_tokenizers

from limelight.errors import UserError
from limelight.interop.coders import LARGEST_VOCAB, Coder, Files

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first ids of every dictionary
START, PAD, END, UNKNOWN = range(4)
DICTIONARY, CODES = "dict.txt", "bpe.codes"  # how the names of files in a run folder end
_GOES_ON, _WORD_END = "@@", "</w>"


def parse_dictionary(text: str) -> list[str]:
    """The symbols of a `dict.*.txt`, in the order of their ids."""
    symbols = list(SPECIAL)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        symbol, _, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not count.isdecimal():
            raise UserError(f"line {number} of the dictionary is not a symbol and its count")
        symbols.append(symbol)
    if len(symbols) > LARGEST_VOCAB:
        raise UserError(f"the dictionary has more than {LARGEST_VOCAB} symbols")
    if len({*symbols}) < len(symbols):
        raise UserError("the dictionary has the same symbol twice")
    return symbols


def _parse_codes(text: str) -> list[tuple[str, str]]:
    """The merges of subword-nmt, of its version 0.2."""
    first, *lines = text.split("\n")
    if first.strip() != "#version: 0.2":
        raise UserError("the codes of subword-nmt must begin with '#version: 0.2'")
    pairs = [line.strip("\r\n ").split(" ") for line in lines if line.strip()]
    for pair in pairs:
        if len(pair) != 2:
            raise UserError(f"the codes have {' '.join(pair)!r:.80}, which are not two symbols")
    return [(left, right) for left, right in pairs]


class SubwordCoder(Coder):
    """Words cut by subword-nmt. fairseq writes "mu@@" for a piece that goes on, "sa" for an end."""

    kind: ClassVar[str] = "subword-nmt"
    lossy = True  # it merges spaces
    symbols: list[str]

    def __init__(self, files: Files) -> None:
        self.files = files
        dictionary, codes = (_ending(files, ending) for ending in (DICTIONARY, CODES))
        self.symbols, merges = parse_dictionary(dictionary), _parse_codes(codes)
        vocab = {_library_name(symbol, i): i for i, symbol in enumerate(self.symbols)}
        for piece in (piece for pair in merges for piece in (*pair, "".join(pair))):
            vocab.setdefault(piece, len(vocab))  # unknown to the dictionary, but needed on the way
        # A strange space at the end of a word is a piece that fairseq loses.
        lost = [f"{c}{_WORD_END}" for c in map(chr, range(0x3001)) if c.isspace()]
        for piece in lost:
            vocab.setdefault(piece, len(vocab))
        self._lost = {vocab[piece] for piece in lost if vocab[piece] >= len(self.symbols)}
        unknown = _library_name(SPECIAL[UNKNOWN], UNKNOWN)
        model = models.BPE(vocab, merges, unk_token=unknown, end_of_word_suffix=_WORD_END)
        self.core = tokenizers.Tokenizer(model)
        self.core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(" +"), "removed")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        lines = [text.strip("\r\n ") for text in texts]
        found = self.core.encode_batch_fast(lines, add_special_tokens=False)
        most = len(self.symbols)
        return [
            [i if i < most else UNKNOWN for i in encoding.ids if i not in self._lost]
            for encoding in found
        ]

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(self.symbols[i] for i in ids)
        return f"{text} ".replace(f"{_GOES_ON} ", "").rstrip(" ")

    def token_bytes(self, i: int) -> bytes:
        return self.spell(self.symbols[i]).encode()

    def spell(self, symbols: str) -> str:
        goes_on = symbols.endswith(_GOES_ON)
        return symbols.removesuffix(_GOES_ON) if goes_on else f"{symbols} "

    def merge_steps(self, text: str) -> list[list[list[str]]]:
        """For each word its letters, then its pieces."""
        words = [word for word in re.split(" +", text) if word]
        pieces = [[self.symbols[i] for i in ids] for ids in self.encode(words)]
        letters = ([f"{letter}{_GOES_ON}" for letter in word[:-1]] + [word[-1]] for word in words)
        return [[spelled, found] for spelled, found in zip(letters, pieces, strict=True)]


def _library_name(symbol: str, i: int) -> str:
    """The library has "mu" and "sa</w>"; a space keeps texts from spelling special tokens."""
    if i < len(SPECIAL):
        return f" {symbol} "
    goes_on = symbol.endswith(_GOES_ON)
    return symbol.removesuffix(_GOES_ON) if goes_on else f"{symbol}{_WORD_END}"


def _ending(files: Files, ending: str) -> str:
    found = [data for name, data in files.items() if name.endswith(ending)]
    if len(found) != 1:
        raise UserError(f"this tokenizer has {len(found)} files {ending}, and needs one")
    try:
        return found[0].decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{ending} is not text in UTF-8 (byte {error.start})") from error
