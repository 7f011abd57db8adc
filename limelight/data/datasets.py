"""Training examples of several kinds, read from a store, and how some of them become a batch."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from limelight.data.masking import mask_tokens, word_starts
from limelight.data.token_store import Column, TokenStore
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError

Rows = NDArray[np.int64]
Lengths = NDArray[np.integer[Any]]
_Floats = Sequence[float]  # weights of the corpora that a store was read from


class Seq2SeqBatch(NamedTuple):
    """Sources and targets side by side, padded on the right."""

    position: int  # its place in the epoch's plan
    examples: Tensor  # B: which ones they are, -1 for an empty row that fills up a rounded shape
    source: Tensor  # B S: the tokens and the end
    target: Tensor  # B T + 1: the start, the tokens and the end; read [:, :-1], predict [:, 1:]
    source_real: Tensor | None  # B S, False at padding; None where there is none
    target_real: Tensor  # B T + 1


class PackedSeq2SeqBatch(NamedTuple):
    """Several pairs in each row, one after the other: `limelight.data.packing`."""

    position: int
    examples: Tensor  # as many as there could be, and then -1
    source: Tensor  # B S
    target: Tensor  # B S: what is read
    labels: Tensor  # B S: what follows, or IGNORED
    source_texts: Tensor  # B S: the number of the pair in the batch from 1 on, 0 at padding
    source_positions: Tensor  # B S: within the text
    target_texts: Tensor
    target_positions: Tensor


class LMBatch(NamedTuple):
    """Texts for a language model: read [:, :-1], predict [:, 1:] where `loss_mask` is set."""

    position: int
    examples: Tensor  # B
    tokens: Tensor  # B T + 1
    real: Tensor | None  # B T + 1, False at padding; None where there is none
    loss_mask: Tensor  # B T + 1


class MaskedLMBatch(NamedTuple):
    """Texts with masked tokens for a BERT to fill in."""

    position: int
    examples: Tensor  # B
    tokens: Tensor  # B S: some of them hidden
    loss_mask: Tensor  # B S: where
    labels: Tensor  # B S: what really stands there
    places: Tensor | None = None  # where, as numbers from 0 to B S - 1, and then -1


class ClassificationBatch(NamedTuple):
    """Texts and their classes."""

    position: int
    examples: Tensor  # B
    tokens: Tensor  # B S: the start, the tokens and the end
    real: Tensor  # B S, False at padding
    labels: Tensor  # B, -1 for an empty row


class ContrastiveBatch(NamedTuple):
    """Texts and their partners, which mean the same."""

    position: int
    examples: Tensor  # B, -1 for an empty row
    source: Tensor  # B S: the start, the tokens and the end
    target: Tensor  # B T
    source_real: Tensor  # B S, False at padding
    target_real: Tensor  # B T


class PictureBatch(NamedTuple):
    """Pictures for an image tokenizer."""

    position: int
    examples: Tensor  # B
    pictures: Tensor  # B 3 S S, from 0 to 1


Batch = (
    Seq2SeqBatch
    | PackedSeq2SeqBatch
    | LMBatch
    | MaskedLMBatch
    | ClassificationBatch
    | ContrastiveBatch
    | PictureBatch
)


class Examples(Protocol):
    """Examples of one kind, from which batches are built on demand."""

    lengths: Lengths  # n x sides: how many tokens wide each is
    weights: NDArray[np.float64] | None  # n: how often an epoch has each; None: once

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> Batch:
        """These examples side by side, `width` tokens wide on each side."""


def _weights_of(store: TokenStore, weights: _Floats) -> NDArray[np.float64] | None:
    if all(weight == 1 for weight in weights):
        return None
    return np.repeat(np.array(weights, np.float64), store.meta["parts"])


class Seq2SeqDataset:
    """A source and its target, for an encoder and a decoder."""

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, weights: _Floats = ()) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.lengths = lengths_of(store)
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> Seq2SeqBatch:
        sides = (self.tokenizer.source, self.tokenizer)
        source, target = (
            _add_end(column, rows, int(wide), own)
            for column, wide, own in zip(self.store.columns, width, sides, strict=True)
        )
        target = np.insert(target, 0, self.tokenizer.start, axis=1)
        source_real = _real(self.lengths[rows, 0], source.shape[1])
        target_real = _real(self.lengths[rows, 1] + 1, target.shape[1])
        tensors = (from_numpy(x) for x in (rows, source, target, source_real, target_real))
        return Seq2SeqBatch(position, *tensors)


class PromptDataset:
    """Start, source, separator, target, end as one text; a language model learns the target."""

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, weights: _Floats = ()) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.lengths = lengths_of(store).sum(axis=1, keepdims=True)  # as it is read
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> LMBatch:
        tokens = np.full((len(rows), int(width[0]) + 1), self.tokenizer.pad)
        source, target = self.store.columns
        for i, row in enumerate(rows):
            text = [self.tokenizer.start, *source[row], self.tokenizer.separator, *target[row]]
            tokens[i, : len(text) + 1] = [*text, self.tokenizer.end]
        column = np.arange(tokens.shape[1])
        real = column <= self.lengths[rows]
        loss_mask = real & (column > source.lengths[rows, None] + 1)
        return LMBatch(position, *(from_numpy(x) for x in (rows, tokens, real, loss_mask)))


class PackedBlocks:
    """The texts of a store end to end in a ring, an end token after each, cut into blocks.

    Blocks are `length` + 1 tokens wide and share one with the next: it is the last to be predicted
    in the one and the first to be read in the other. Nothing is padded, and less than a block is
    left over; the first cut is drawn anew for every epoch.
    """

    def __init__(self, store: TokenStore, end: int, length: int, seed: int) -> None:
        self.column, self.end, self.seed = store.columns[0], end, seed
        self.texts = len(store)
        self.total = self.stop(self.texts - 1) if self.texts else 0
        if self.total < 2:
            raise UserError(
                f"{self.total} tokens of text are too few: one is read and the next predicted, so "
                "at least 2 are needed"
            )
        self.length = min(length, self.total - 1)

    def __len__(self) -> int:
        return (self.total - 1) // self.length

    def stop(self, text: int) -> int:
        """Where this text and its end token stop in the ring; no array holds it for every text."""
        return int(self.column.offsets[text + 1]) + text + 1

    def begin(self, epoch: int) -> int:
        draw = np.random.default_rng([self.seed, epoch, 1])
        return int(draw.integers(self.total)) if epoch else 0

    def gather(self, epoch: int, rows: Rows) -> NDArray[np.int64]:
        """These blocks side by side, B length + 1."""
        begins = (self.begin(epoch) + rows * self.length) % self.total
        return np.stack([self.read(int(begin)) for begin in begins])

    def read(self, begin: int) -> NDArray[np.int64]:
        stop = begin + self.length + 1
        if stop <= self.total:
            return self.stretch(begin, stop)
        return np.concatenate([self.stretch(begin, self.total), self.stretch(0, stop - self.total)])

    def stretch(self, first: int, stop: int) -> NDArray[np.int64]:
        """The tokens between two offsets of the ring, across all texts between them."""
        tokens = np.full(stop - first, self.end)  # what the texts leave open are end tokens
        text = bisect_right(range(self.texts), first, key=self.stop)
        reached = first
        while reached < stop:
            own, end = self.column[text], self.stop(text) - 1  # where its end token stands
            start = end - len(own)
            begin, until = max(first, start), min(stop, end)
            tokens[begin - first : until - first] = own[begin - start : until - start]
            reached, text = end + 1, text + 1
        return tokens

    def weights(self, of_texts: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Each block weighs as much as the text that it begins in, in the first epoch."""
        if of_texts is None:
            return None
        stops = self.column.offsets[1:] + np.arange(1, self.texts + 1)
        return of_texts[np.searchsorted(stops, np.arange(len(self)) * self.length, "right")]


class CausalLMDataset:
    """Texts end to end, for a language model: every token but the first is predicted."""

    def __init__(
        self, store: TokenStore, tokenizer: Tokenizer, length: int, seed: int, weights: _Floats = ()
    ) -> None:
        self.blocks = PackedBlocks(store, tokenizer.end, length, seed)
        self.lengths = np.full((len(self.blocks), 1), self.blocks.length)
        self.weights = self.blocks.weights(_weights_of(store, weights))

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> LMBatch:
        tokens = from_numpy(self.blocks.gather(epoch, rows))
        loss_mask = torch.ones_like(tokens, dtype=torch.bool)
        loss_mask[:, 0] = False
        return LMBatch(position, from_numpy(rows), tokens, None, loss_mask)


class MaskedLMDataset:
    """Blocks of text behind a start token, masked anew in every epoch."""

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        length: int,
        seed: int,
        rate: float = 0.15,
        whole_word_masking: bool = False,
        weights: _Floats = (),
    ) -> None:
        self.tokenizer, self.rate, self.seed = tokenizer, rate, seed
        self.words = word_starts(tokenizer) if whole_word_masking else None
        self.blocks = PackedBlocks(store, tokenizer.end, length - 1, seed)
        self.lengths = np.full((len(self.blocks), 1), self.blocks.length + 1)
        self.weights = self.blocks.weights(_weights_of(store, weights))

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> MaskedLMBatch:
        start = torch.full((len(rows), 1), self.tokenizer.start)
        labels = torch.cat([start, from_numpy(self.blocks.gather(epoch, rows))[:, :-1]], dim=1)
        state = np.random.SeedSequence([self.seed, epoch, position]).generate_state(1)
        draw = torch.Generator().manual_seed(int(state[0]))
        real = torch.ones_like(labels, dtype=torch.bool)
        masked = mask_tokens(labels, real, self.tokenizer, draw, self.rate, self.words)
        return MaskedLMBatch(position, from_numpy(rows), *masked, labels)


class ClassificationDataset:
    """A text and its class; texts longer than `longest` tokens are cut."""

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        longest: int,
        weights: _Floats = (),
    ) -> None:
        self.store, self.tokenizer = store, tokenizer
        lengths = store.columns[0].lengths + 2
        self.lengths = np.minimum(lengths, longest)[:, None]
        self.truncated = int((lengths > longest).sum())
        self.labels = _class_numbers(store.meta["labels"], classes)
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> ClassificationBatch:
        lengths = self.lengths[rows, 0]
        tokens = _add_start_and_end(
            self.store.columns[0], rows, lengths, int(width[0]), self.tokenizer
        )
        real = _real(lengths, tokens.shape[1])
        tensors = (from_numpy(x) for x in (rows, tokens, real, self.labels[rows]))
        return ClassificationBatch(position, *tensors)


class ContrastiveDataset:
    """Two texts that mean the same, for an encoder of texts."""

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, weights: _Floats = ()) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.lengths = lengths_of(store) + 1  # with the start token
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> ContrastiveBatch:
        lengths, sides = self.lengths[rows].T, self.store.columns
        tokens = (
            _add_start_and_end(*side, self.tokenizer)
            for side in zip(sides, (rows, rows), lengths, map(int, width), strict=True)
        )
        real = (_real(own, int(wide)) for own, wide in zip(lengths, width, strict=True))
        return ContrastiveBatch(position, *(from_numpy(x) for x in (rows, *tokens, *real)))


def _class_numbers(labels: Sequence[str], classes: Sequence[str]) -> Rows:
    numbers = {name: i for i, name in enumerate(classes)}
    for label in labels:
        if label not in numbers:
            raise UserError(f"the label {label!r} is none of the classes {', '.join(classes)}")
    return np.array([numbers[label] for label in labels], np.int64)


def lengths_of(store: TokenStore) -> Lengths:
    """Tokens of the examples on each side, the end token included: n x sides."""
    return np.stack([column.lengths + 1 for column in store.columns], axis=1)


def _add_end(column: Column, rows: Rows, width: int, tokenizer: Tokenizer) -> NDArray[np.int64]:
    tokens = column.gather(rows, width, tokenizer.pad)
    tokens[np.arange(len(rows)), column.lengths[rows]] = tokenizer.end
    return tokens


def _add_start_and_end(
    column: Column, rows: Rows, lengths: Rows, width: int, tokenizer: Tokenizer
) -> NDArray[np.int64]:
    """Texts as an encoder reads them, each cut to its length."""
    tokens = np.full((len(rows), width), tokenizer.pad)
    tokens[:, 0] = tokenizer.start
    tokens[:, 1:] = column.gather(rows, width - 1, tokenizer.pad)
    tokens[np.arange(len(rows)), lengths - 1] = tokenizer.end
    return tokens


def _real(lengths: Rows, width: int) -> NDArray[np.bool_]:
    return np.arange(width) < lengths[:, None]
