"""Examples of like length go together, so that little of a batch is padding.

One seed gives one order of batches for every epoch, whatever the number of processes or workers:
the plan of an epoch is a list that everybody can compute, process r of R takes the batches r, r +
R, r + 2R, ..., and to go on after an interruption is to begin the list further down.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from limelight.text.store import Store
from limelight.text.tokenizer import Tokenizer

Rows = NDArray[np.int64]


class Batch(NamedTuple):
    """Some examples side by side, padded on the right. Empty rows may fill up a rounded shape."""

    position: int  # its place in the epoch's plan
    examples: Tensor  # B: which ones they are, -1 for an empty row
    source: Tensor  # B S: the tokens and the end
    target: Tensor  # B T + 1: the start, the tokens and the end; read [:, :-1], predict [:, 1:]
    source_real: Tensor  # B S, False at padding
    target_real: Tensor  # B T + 1


def lengths_of(store: Store, rows: Rows | slice = slice(None)) -> NDArray[np.int64]:
    """How long examples are on each side, the end token included: n x 2."""
    return np.stack([column.lengths[rows] + 1 for column in store.columns], axis=1)


def plan_epoch(
    lengths: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int, rounded: bool = False
) -> list[Rows]:
    """The batches of an epoch: each example once, at most `batch_tokens` padded tokens on a side.

    Within the same length, which examples meet is drawn anew for every epoch, and so is the order
    of the batches. With `rounded` shapes there are few of them, for a compiler's sake.
    """
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(len(lengths))
    widths = round_up(lengths) if rounded else lengths
    first = widths[order, -1] if rounded else widths[order].max(axis=1)
    order = order[np.lexsort((lengths[order, 0], first))]
    batches = cut(order, widths, batch_tokens, buckets=widths[order, -1] if rounded else None)
    return [batches[i] for i in draw.permutation(len(batches))]


def round_up(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """To a multiple of 4 up to 32, of 8 up to 64, of 16 beyond."""
    step = np.where(lengths <= 32, 4, np.where(lengths <= 64, 8, 16))
    return -(-lengths // step) * step


def cut(
    order: Rows, widths: NDArray[np.int64], budget: int, buckets: Rows | None = None
) -> list[Rows]:
    """Take examples in this order until rows x longest would exceed the budget, or a bucket ends.

    An example that exceeds it alone gets a batch of its own.
    """
    longest = widths[order].max(axis=1)
    batches, begin = [], 0
    while begin < len(order):
        most = max(1, budget // int(longest[begin]))
        reach = np.maximum.accumulate(longest[begin : begin + most])
        fits = np.arange(1, len(reach) + 1) * reach <= budget
        if buckets is not None:
            fits &= buckets[begin : begin + most] == buckets[begin]
        count = max(1, int(np.argmin(fits)) if not fits.all() else len(fits))
        batches.append(order[begin : begin + count])
        begin += count
    return batches


class EpochPlan(Dataset[Batch]):
    """The batches of one epoch, made when asked for."""

    def __init__(
        self, store: Store, tokenizer: Tokenizer, plan: list[Rows], batch_tokens: int, rounded: bool
    ) -> None:
        self.store, self.tokenizer, self.plan = store, tokenizer, plan
        self.batch_tokens, self.rounded = batch_tokens, rounded

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, position: int) -> Batch:
        rows = self.plan[position]
        lengths = lengths_of(self.store, rows)
        width = (round_up(lengths) if self.rounded else lengths).max(axis=0)
        source = add_end(self.store, 0, rows, int(width[0]), self.tokenizer)
        target = add_end(self.store, 1, rows, int(width[1]), self.tokenizer)
        start = np.full((len(rows), 1), self.tokenizer.start)
        batch = Batch(
            position,
            torch.from_numpy(rows),
            torch.from_numpy(source),
            torch.from_numpy(np.concatenate([start, target], axis=1)),
            real(lengths[:, 0], int(width[0])),
            real(lengths[:, 1] + 1, int(width[1]) + 1),
        )
        return fill_up(batch, self.batch_tokens, self.tokenizer.pad) if self.rounded else batch


def add_end(
    store: Store, side: int, rows: Rows, width: int, tokenizer: Tokenizer
) -> NDArray[np.int64]:
    """One side of these examples with its end token, B width."""
    column = store.columns[side]
    tokens = column.gather(rows, width, tokenizer.pad)
    tokens[np.arange(len(rows)), column.lengths[rows]] = tokenizer.end
    return tokens


def real(lengths: NDArray[np.int64], width: int) -> Tensor:
    """True where a row has a token, False where it has padding."""
    return torch.from_numpy(np.arange(width) < lengths[:, None])


def fill_up(batch: Batch, batch_tokens: int, pad: int) -> Batch:
    """Add empty rows up to the next quarter of a full batch, so that few numbers of rows occur."""
    rows, longest = batch.source.size(0), max(batch.source.size(1), batch.target.size(1) - 1)
    quarter = max(1, batch_tokens // longest // 4)
    full = max(rows, min(-(-rows // quarter) * quarter, batch_tokens // longest))

    def more(values: Tensor, filler: int) -> Tensor:
        return torch.cat([values, values.new_full((full - rows, *values.shape[1:]), filler)])

    return Batch(
        batch.position,
        more(batch.examples, -1),
        more(batch.source, pad),
        more(batch.target, pad),
        more(batch.source_real, 0),
        more(batch.target_real, 0),
    )


@dataclass(frozen=True)
class Batches:
    """A corpus of pairs as batches, epoch after epoch, for one process of `ranks`."""

    store: Store
    tokenizer: Tokenizer
    batch_tokens: int
    seed: int
    rounded: bool = False
    rank: int = 0
    ranks: int = 1
    workers: int = 0
    pinned: bool = False  # memory that a GPU can copy from while it computes

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Batch | None]:
        """This process's batches from a position of the plan on; None where it has nothing to do.

        Every process gets equally many turns, so that none waits for another. A turn takes `ranks`
        batches of the plan; go on with the position after the last of them.
        """
        plan = plan_epoch(lengths_of(self.store), self.batch_tokens, self.seed, epoch, self.rounded)
        dataset = EpochPlan(self.store, self.tokenizer, plan, self.batch_tokens, self.rounded)
        mine = range(position + self.rank, len(plan), self.ranks)
        yield from DataLoader(
            dataset,
            batch_size=None,
            sampler=mine,
            num_workers=self.workers,
            pin_memory=self.pinned,
            generator=torch.Generator(),  # or it would draw from torch's own, and dropout with it
        )
        turns = -(-(len(plan) - position) // self.ranks)
        yield from [None] * (turns - len(mine))


class Blocks(Dataset[Tensor]):
    """The texts of a store laid end to end, an end token after each, and cut: length + 1 each.

    Neighbouring blocks share one token: it is the last to be predicted in the one and the first to
    be read in the other. For language models; nothing is padded, and less than a block is left
    over.
    """

    def __init__(self, store: Store, end: int, length: int) -> None:
        self.column, self.end, self.length = store.columns[0], end, length
        self.stops = self.column.offsets[1:] + np.arange(1, len(store) + 1)  # of text and end token

    def __len__(self) -> int:
        return max(0, (int(self.stops[-1]) - 1) // self.length) if len(self.stops) else 0

    def __getitem__(self, block: int) -> Tensor:
        first, stop = block * self.length, block * self.length + self.length + 1
        tokens = np.full(stop - first, self.end)  # what the texts leave open are end tokens
        text = int(np.searchsorted(self.stops, first, "right"))
        begin = first
        while begin < stop:
            end = int(self.stops[text]) - 1  # where this text's end token stands
            start = end - int(self.column.lengths[text])
            here = slice(max(first, start), min(stop, end))
            tokens[here.start - first : here.stop - first] = self.column[text][
                here.start - start : here.stop - start
            ]
            begin, text = end + 1, text + 1
        return torch.from_numpy(tokens)
