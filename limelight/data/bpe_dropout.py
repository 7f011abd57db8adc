"""BPE-dropout: tokens fall apart into the pieces they were merged from, in every epoch others.

A model then sees rare words spelled in several ways, and learns what their pieces mean (Provilkov
et al. 2020, who leave merges out while they encode; here merges are undone in what is stored, so
that nothing is tokenised again). Whether a merge is undone depends on seed, epoch and position
alone: every process and every resumed run finds the same pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.data.token_store import Column, TokenStore
from limelight.data.tokenizer import Tokenizer

_Tokens = NDArray[np.int64]
_Keys = NDArray[np.uint64]
_AT_ONCE = 2**20  # tokens: little memory
_NEXT = np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele et al. 2014)


def merged_from(tokenizer: Tokenizer) -> _Tokens:
    """The two pieces that each token was merged from; -1 for one that was not merged."""
    pairs, ids = np.full((len(tokenizer), 2), -1), tokenizer.vocabulary
    for left, right in tokenizer.merges:
        if (whole := ids.get(left + right)) is not None and pairs[whole, 0] < 0:
            pairs[whole] = ids[left], ids[right]
    return pairs


@dataclass(frozen=True)
class BpeDropout:
    """How often merges are undone, and which they are."""

    pairs: _Tokens  # V x 2, of `merged_from`
    rate: float

    def split(self, tokens: _Tokens, keys: _Keys) -> tuple[_Tokens, NDArray[np.int64]]:
        """The pieces of these tokens, and which token each is of; a key decides for its token."""
        owners: NDArray[np.int64] = np.arange(len(tokens))
        threshold = np.uint64(self.rate * 2**64)
        while (undone := (self.pairs[tokens, 0] >= 0) & (_mix(keys) < threshold)).any():
            parts = self.pairs[tokens[undone]]
            counts = 1 + undone
            first = (np.cumsum(counts) - counts)[undone]
            tokens, keys = np.repeat(tokens, counts), np.repeat(keys, counts)
            owners = np.repeat(owners, counts)
            tokens[first], tokens[first + 1] = parts.T
            keys[first] = _mix(keys[first] + _NEXT)  # a piece may fall apart in turn
            keys[first + 1] = _mix(keys[first] + _NEXT)
        return tokens, owners


def _mix(keys: _Keys) -> _Keys:
    """Numbers that look random, of numbers that need not."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


class _SplitColumn(Column):
    """A column of a store as one epoch sees it."""

    def __init__(self, whole: Column, dropout: BpeDropout, key: np.uint64) -> None:
        self.whole, self.dropout, self.key = whole, dropout, key
        self.tokens, self.offsets = whole.tokens, whole.offsets

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        ends = np.zeros(len(self.offsets), np.int64)  # no array holds a number for every token
        text = total = 0
        for begin in range(0, len(self.tokens), _AT_ONCE):
            stop = min(begin + _AT_ONCE, len(self.tokens))
            _, owners = self.pieces(np.arange(begin, stop))
            after = int(np.searchsorted(self.offsets, stop, "right"))
            ends[text:after] = total + np.searchsorted(owners, self.offsets[text:after] - begin)
            text, total = after, total + len(owners)
        return np.diff(ends).astype(np.int32)

    def pieces(self, positions: _Tokens) -> tuple[_Tokens, NDArray[np.int64]]:
        keys = _mix((positions.astype(np.uint64) + np.uint64(1)) * _NEXT ^ self.key)
        return self.dropout.split(self.tokens[positions].astype(np.int64), keys)

    def __getitem__(self, i: int) -> NDArray[Any]:
        return self.pieces(np.arange(self.offsets[i], self.offsets[i + 1]))[0]

    def gather(self, rows: NDArray[np.int64], width: int, pad: int) -> NDArray[np.int64]:
        lengths = self.whole.lengths[rows].astype(np.int64)
        row = np.repeat(np.arange(len(rows)), lengths)
        within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        pieces, owners = self.pieces(self.offsets[rows][row] + within)
        row = row[owners]
        sizes = np.bincount(row, minlength=len(rows))
        place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        filled = np.full((len(rows), width), pad)
        kept = place < width
        filled[row[kept], place[kept]] = pieces[kept]
        return filled


class _SplitStore(TokenStore):
    """A store as one epoch sees it."""

    def __init__(
        self, whole: TokenStore, dropout: BpeDropout, keys: _Keys, lengths: Sequence[Any] = ()
    ) -> None:
        self.folder, self.meta = whole.folder, whole.meta
        self.made_of = whole, dropout, keys
        self.columns = [
            _SplitColumn(c, dropout, key) for c, key in zip(whole.columns, keys, strict=True)
        ]
        for column, known in zip(self.columns, lengths, strict=False):
            column.lengths = known

    def __reduce__(self) -> Any:
        # Another process opens the files itself, and need not count the pieces again.
        return _SplitStore, (*self.made_of, [column.lengths for column in self.columns])


def split_store(store: TokenStore, dropout: BpeDropout, seed: int, epoch: int) -> TokenStore:
    """The store as this epoch sees it."""
    keys: Any = np.random.SeedSequence([seed, epoch, 2]).generate_state(
        len(store.columns), np.uint64
    )
    return _SplitStore(store, dropout, keys)
