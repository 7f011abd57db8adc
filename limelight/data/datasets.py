"""What a model learns from: examples of five kinds, and how some of them become a batch.

`PairExamples` (a source and its target), `PromptExamples` (the same as one text, for a language
model), `BlockExamples` (texts end to end, cut), `MaskedExamples` (the same with blanks) and
`LabelledExamples` (a text and its class). All are read from a store, and made when asked for.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.data.masking import mask_tokens, word_starts
from limelight.data.token_store import TokenStore
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError

Rows = NDArray[np.int64]
Lengths = NDArray[np.int64]


class Seq2SeqBatch(NamedTuple):
    """Sources and targets side by side, padded on the right."""

    position: int  # its place in the epoch's plan
    examples: Tensor  # B: which ones they are, -1 for an empty row that fills up a rounded shape
    source: Tensor  # B S: the tokens and the end
    target: Tensor  # B T + 1: the start, the tokens and the end; read [:, :-1], predict [:, 1:]
    source_real: Tensor | None  # B S, False at padding; None where there is none
    target_real: Tensor  # B T + 1


class LMBatch(NamedTuple):
    """Texts for a language model: read [:, :-1], predict of [:, 1:] what is asked for."""

    position: int
    examples: Tensor  # B
    tokens: Tensor  # B T + 1
    real: Tensor | None  # B T + 1, False at padding; None where there is none
    loss_mask: Tensor  # B T + 1


class MaskedLMBatch(NamedTuple):
    """Texts with blanks for a BERT to fill in."""

    position: int
    examples: Tensor  # B
    tokens: Tensor  # B S: some of them hidden
    loss_mask: Tensor  # B S: where
    labels: Tensor  # B S: what really stands there


class ClassificationBatch(NamedTuple):
    """Texts and the classes they belong to."""

    position: int
    examples: Tensor  # B
    tokens: Tensor  # B S: the start, the tokens and the end
    real: Tensor  # B S, False at padding
    labels: Tensor  # B, -1 for an empty row


Batch = Seq2SeqBatch | LMBatch | MaskedLMBatch | ClassificationBatch


class Examples(Protocol):
    """What batches are made of."""

    lengths: Lengths  # n x sides: how many tokens wide each is
    weights: NDArray[np.float64] | None  # n: how often an epoch has each; None: once

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> Batch:
        """These examples side by side, so wide on each side."""


def _weights_of(store: TokenStore, weights: Sequence[float]) -> NDArray[np.float64] | None:
    """The weight of each example, from those of the corpora that it was read from."""
    if all(weight == 1 for weight in weights):
        return None
    return np.repeat(np.array(weights, np.float64), store.meta["parts"])


class Seq2SeqDataset:
    """A source and its target, for an encoder and a decoder."""

    def __init__(
        self, store: TokenStore, tokenizer: Tokenizer, weights: Sequence[float] = ()
    ) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.lengths = lengths_of(store)
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> Seq2SeqBatch:
        """Sources with their ends, targets with a start and an end."""
        source = _add_end(self.store, 0, rows, int(width[0]), self.tokenizer)
        target = _add_end(self.store, 1, rows, int(width[1]), self.tokenizer)
        start = np.full((len(rows), 1), self.tokenizer.start)
        return Seq2SeqBatch(
            position,
            torch.from_numpy(rows),
            torch.from_numpy(source),
            torch.from_numpy(np.concatenate([start, target], axis=1)),
            _real(self.lengths[rows, 0], int(width[0])),
            _real(self.lengths[rows, 1] + 1, int(width[1]) + 1),
        )


class PromptDataset:
    """A source and its target as one text: start, source, separator, target, end.

    For a language model; it is asked only for what follows the separator.
    """

    def __init__(
        self, store: TokenStore, tokenizer: Tokenizer, weights: Sequence[float] = ()
    ) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.lengths = lengths_of(store).sum(axis=1, keepdims=True)  # as it is read
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> LMBatch:
        """Texts of prompt and answer."""
        tokens = np.full((len(rows), int(width[0]) + 1), self.tokenizer.pad)
        source, target = self.store.columns
        for i, row in enumerate(rows):
            text = [self.tokenizer.start, *source[row], self.tokenizer.separator, *target[row]]
            tokens[i, : len(text) + 1] = [*text, self.tokenizer.end]
        place = np.arange(tokens.shape[1])
        inside = place <= self.lengths[rows]
        asked = inside & (place > source.lengths[rows, None] + 1)
        return LMBatch(
            position,
            torch.from_numpy(rows),
            torch.from_numpy(tokens),
            torch.from_numpy(inside),
            torch.from_numpy(asked),
        )


class PackedBlocks:
    """The texts of a store laid end to end in a ring, an end token after each, and cut.

    Blocks are `length` + 1 tokens wide and share one with the next: it is the last to be predicted
    in the one and the first to be read in the other. Nothing is padded, and less than a block is
    left over; where the cutting begins is drawn anew for every epoch.
    """

    def __init__(self, store: TokenStore, end: int, length: int, seed: int) -> None:
        self.column, self.end, self.seed = store.columns[0], end, seed
        self.stops = self.column.offsets[1:] + np.arange(1, len(store) + 1)  # of text and end token
        self.total = int(self.stops[-1]) if len(self.stops) else 0
        if self.total < 2:
            raise UserError(
                f"{self.total} tokens of text are too few: one is read and the next predicted, so "
                "at least 2 are needed"
            )
        self.length = min(length, self.total - 1)

    def __len__(self) -> int:
        return (self.total - 1) // self.length

    def begin(self, epoch: int) -> int:
        """Where an epoch's first block begins."""
        draw = np.random.default_rng([self.seed, epoch, 1])
        return int(draw.integers(self.total)) if epoch else 0

    def gather(self, epoch: int, rows: Rows) -> NDArray[np.int64]:
        """These blocks side by side, B length + 1."""
        begins = (self.begin(epoch) + rows * self.length) % self.total
        return np.stack([self.read(int(begin)) for begin in begins])

    def read(self, begin: int) -> NDArray[np.int64]:
        """One block from this place of the ring on."""
        stop = begin + self.length + 1
        if stop <= self.total:
            return self.stretch(begin, stop)
        return np.concatenate([self.stretch(begin, self.total), self.stretch(0, stop - self.total)])

    def stretch(self, first: int, stop: int) -> NDArray[np.int64]:
        """The tokens from one place to another, through all the texts between."""
        tokens = np.full(stop - first, self.end)  # what the texts leave open are end tokens
        text = int(np.searchsorted(self.stops, first, "right"))
        reached = first
        while reached < stop:
            end = int(self.stops[text]) - 1  # where this text's end token stands
            start = end - int(self.column.lengths[text])
            here = slice(max(first, start), min(stop, end))
            tokens[here.start - first : here.stop - first] = self.column[text][
                here.start - start : here.stop - start
            ]
            reached, text = end + 1, text + 1
        return tokens

    def texts(self) -> Rows:
        """The text that each block begins in, in the first epoch."""
        return np.searchsorted(self.stops, np.arange(len(self)) * self.length, "right")


class CausalLMDataset:
    """Texts end to end, for a language model: every token but the first is asked for."""

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        length: int,
        seed: int,
        weights: Sequence[float] = (),
    ) -> None:
        self.blocks = PackedBlocks(store, tokenizer.end, length, seed)
        self.lengths = np.full((len(self.blocks), 1), self.blocks.length)
        each = _weights_of(store, weights)
        self.weights = None if each is None else each[self.blocks.texts()]

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> LMBatch:
        """Blocks, none of them padded."""
        tokens = torch.from_numpy(self.blocks.gather(epoch, rows))
        asked = torch.ones_like(tokens, dtype=torch.bool)
        asked[:, 0] = False
        return LMBatch(position, torch.from_numpy(rows), tokens, None, asked)


class MaskedLMDataset:
    """The same blocks behind a start token, some tokens hidden: drawn anew for every epoch."""

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        length: int,
        seed: int,
        rate: float = 0.15,
        whole_words: bool = False,
        weights: Sequence[float] = (),
    ) -> None:
        self.tokenizer, self.rate, self.seed = tokenizer, rate, seed
        self.words = word_starts(tokenizer) if whole_words else None
        self.blocks = PackedBlocks(store, tokenizer.end, length - 1, seed)
        self.lengths = np.full((len(self.blocks), 1), self.blocks.length + 1)
        each = _weights_of(store, weights)
        self.weights = None if each is None else each[self.blocks.texts()]

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> MaskedLMBatch:
        """Blocks with blanks."""
        answers = torch.from_numpy(self.blocks.gather(epoch, rows))[:, :-1]
        start = torch.full((len(rows), 1), self.tokenizer.start)
        answers = torch.cat([start, answers], dim=1)
        state = np.random.SeedSequence([self.seed, epoch, position]).generate_state(1)
        draw = torch.Generator().manual_seed(int(state[0]))
        everywhere = torch.ones_like(answers, dtype=torch.bool)
        tokens, asked = mask_tokens(
            answers, everywhere, self.tokenizer, draw, self.rate, self.words
        )
        return MaskedLMBatch(position, torch.from_numpy(rows), tokens, asked, answers)


class ClassificationDataset:
    """A text and its class; a text that is longer than `longest` tokens is cut."""

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        longest: int,
        weights: Sequence[float] = (),
    ) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.lengths = np.minimum(store.columns[0].lengths + 2, longest)[:, None]
        self.labels = _class_numbers(store.meta["labels"], classes)
        self.weights = _weights_of(store, weights)

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> ClassificationBatch:
        """Start, text, end; and the number of the class."""
        lengths = self.lengths[rows, 0]
        tokens = np.full((len(rows), int(width[0])), self.tokenizer.pad)
        tokens[:, 0] = self.tokenizer.start
        tokens[:, 1:] = self.store.columns[0].gather(rows, int(width[0]) - 1, self.tokenizer.pad)
        tokens[np.arange(len(rows)), lengths - 1] = self.tokenizer.end
        return ClassificationBatch(
            position,
            torch.from_numpy(rows),
            torch.from_numpy(tokens),
            _real(lengths, int(width[0])),
            torch.from_numpy(self.labels[rows]),
        )


def _class_numbers(labels: Sequence[str], classes: Sequence[str]) -> Rows:
    """Which of the classes each label is."""
    numbers = {name: i for i, name in enumerate(classes)}
    for label in labels:
        if label not in numbers:
            raise UserError(f"the label {label!r} is none of the classes {', '.join(classes)}")
    return np.array([numbers[label] for label in labels], np.int64)


def lengths_of(store: TokenStore, rows: Rows | slice = slice(None)) -> Lengths:
    """How long examples are on each side, the end token included: n x sides."""
    return np.stack([column.lengths[rows] + 1 for column in store.columns], axis=1)


def _add_end(
    store: TokenStore, side: int, rows: Rows, width: int, tokenizer: Tokenizer
) -> NDArray[np.int64]:
    """One side of these examples with its end token, B width."""
    column = store.columns[side]
    tokens = column.gather(rows, width, tokenizer.pad)
    tokens[np.arange(len(rows)), column.lengths[rows]] = tokenizer.end
    return tokens


def _real(lengths: NDArray[np.int64], width: int) -> Tensor:
    """True where a row has a token, False where it has padding."""
    return torch.from_numpy(np.arange(width) < lengths[:, None])
