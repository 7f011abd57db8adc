"""Examples of similar length are batched together, so that little of a batch is padding.

One seed gives one order of batches for every epoch, whatever the number of processes or workers:
the plan of an epoch is a list that every process computes, process r of R gets the batches r, r +
R, r + 2R, ..., and a resumed run begins the list further down.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from limelight.data.datasets import Batch, Examples, Lengths, Rows
from limelight.data.packing import pack_pairs, row_starts
from limelight.errors import END_SIGNALS

_EMPTY = {"examples": -1, "labels": -1}  # what an empty row holds, where that is not padding


def plan_epoch(
    lengths: Lengths,
    batch_tokens: int,
    seed: int,
    epoch: int,
    bucketed: bool = False,
    weights: NDArray[np.float64] | None = None,
    longest: int | None = None,
    packed: int = 0,
) -> list[Rows]:
    """The batches of an epoch: each example once, at most `batch_tokens` padded tokens on a side.

    Examples of equal length are shuffled anew for every epoch, and so are the batches. `bucketed`
    rounds shapes, so that there are few of them to compile; `packed` fills rows of that many tokens
    with pairs. Examples longer than `longest` are left out; with `weights` some come more often.
    """
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(len(lengths))
    if weights is not None:  # 2.3: twice, and with a chance of 0.3 once more
        order = np.repeat(order, (weights[order] + draw.random(len(order))).astype(np.int64))
    if longest is not None:
        order = order[(lengths[order] <= longest).all(axis=1)]
    if packed:
        starts = row_starts(lengths[order], packed)[:: max(1, batch_tokens // packed)]
        batches = np.split(order, starts[1:] if starts[-1] < len(order) else starts[1:-1])
        return [batches[i] for i in draw.permutation(len(batches))]
    widths = round_up(lengths, longest) if bucketed else lengths
    first = widths[order, -1] if bucketed else widths[order].max(axis=1)
    order = order[np.lexsort((lengths[order, 0], first))]
    batches = _fill_batches(order, widths, batch_tokens, widths[order, -1] if bucketed else None)
    return [batches[i] for i in draw.permutation(len(batches))]


def round_up(lengths: Lengths, longest: int | None = None) -> Lengths:
    """To a multiple of 4 up to 32, of 8 up to 64, of 16 beyond; but not beyond the longest."""
    step = np.where(lengths <= 32, 4, np.where(lengths <= 64, 8, 16))
    rounded = -(-lengths // step) * step
    return rounded if longest is None else np.maximum(lengths, np.minimum(rounded, longest))


def _fill_batches(order: Rows, widths: Lengths, budget: int, buckets: Rows | None) -> list[Rows]:
    """Fill batches in this order until rows x longest exceeds the budget, or a bucket ends."""
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


@dataclass(frozen=True)
class BatchPlan:
    """A corpus as batches, epoch after epoch, for one process of `ranks`."""

    examples: Examples
    batch_tokens: int
    seed: int
    pad: int = 0
    longest: int | None = None  # tokens on a side; longer examples are left out
    bucketed: bool = False
    packed: int = 0  # tokens of a row that several pairs share; 0: one pair a row
    rank: int = 0
    ranks: int = 1
    workers: int = 0
    pinned: bool = False  # memory that a GPU can copy from while it computes
    redrawn: Callable[[int], Examples] | None = None  # the examples of an epoch, if they differ

    @property
    def usable(self) -> Rows:
        return np.flatnonzero((self.examples.lengths <= (self.longest or np.inf)).all(axis=1))

    @property
    def too_long(self) -> int:
        """How many examples are left out because the model could not read them."""
        return len(self.examples.lengths) - len(self.usable)

    @property
    def truncated(self) -> int:
        """How many examples are cut to what the model can read."""
        return int(getattr(self.examples, "truncated", 0))

    @property
    def length_range(self) -> tuple[int, int]:
        """Tokens of the shortest row and of the longest that there may be in any epoch."""
        if self.packed:
            return self.packed, self.packed
        lengths = self.examples.lengths
        most = int(lengths.max())
        longest = self.longest if self.redrawn is not None else None
        return int(lengths.min()), max(most, longest or most)

    def any(self) -> Batch:
        """Any batch, for a process that has none left."""
        return EpochPlan(self, 0, self.plan(0))[0]

    def in_epoch(self, epoch: int) -> "BatchPlan":
        """The plan with the examples as they are in this epoch."""
        if self.redrawn is None:
            return self
        return replace(self, examples=self.redrawn(epoch), redrawn=None)

    def plan(self, epoch: int) -> list[Rows]:
        """All batches of an epoch, for all processes, as lists of examples."""
        if self.redrawn is not None:
            return self.in_epoch(epoch).plan(epoch)
        lengths, limits = self.examples.lengths, (self.examples.weights, self.longest)
        how = self.bucketed, *limits, self.packed
        return plan_epoch(lengths, self.batch_tokens, self.seed, epoch, *how)

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Any]:
        """This process's batches from a position of the plan on; None where it has nothing to do.

        Every process gets equally many turns, so that none waits for another. A turn uses `ranks`
        batches of the plan; continue with the position after the last of them.
        """
        plan = self.plan(epoch)
        mine = range(position + self.rank, len(plan), self.ranks)
        loader = DataLoader(
            EpochPlan(self, epoch, plan),
            batch_size=None,
            sampler=mine,
            num_workers=self.workers,
            pin_memory=self.pinned,
            generator=torch.Generator(),  # or it would draw from torch's own, and dropout with it
            worker_init_fn=leave_signals_to_the_trainer,
        )
        with _signals_held_back():
            made = iter(loader)
        yield from made
        yield from [None] * (-(-(len(plan) - position) // self.ranks) - len(mine))


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Delay signals until the block ends; processes started in it never get them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_trainer(_: int) -> None:
    """Ctrl-C, `timeout` and Slurm signal all processes: the trainer saves, and ends the others."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class EpochPlan(Dataset[Batch]):
    """The batches of one epoch, built on demand."""

    def __init__(self, batches: BatchPlan, epoch: int, plan: list[Rows]) -> None:
        self.batches, self.epoch, self.plan = batches.in_epoch(epoch), epoch, plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, position: int) -> Batch:
        batches, rows = self.batches, self.plan[position]
        lengths = batches.examples.lengths[rows]
        if batches.packed:
            pairs: Any = batches.examples.batch(self.epoch, position, rows, lengths.max(axis=0))
            full = max(1, batches.batch_tokens // batches.packed)
            return pack_pairs(pairs, batches.packed, full)
        width = round_up(lengths, batches.longest) if batches.bucketed else lengths
        batch = batches.examples.batch(self.epoch, position, rows, width.max(axis=0))
        full = _full_rows(len(rows), int(width.max()), batches.batch_tokens)
        return _pad_rows(batch, full - len(rows), batches.pad) if batches.bucketed else batch


def _full_rows(rows: int, longest: int, batch_tokens: int) -> int:
    """Round rows up to the next quarter of a full batch, so that few shapes occur."""
    most = batch_tokens // longest
    quarter = max(1, most // 4)
    return max(rows, min(-(-rows // quarter) * quarter, most))


def _pad_rows(batch: Batch, more: int, pad: int) -> Batch:
    def longer(name: str, values: Any) -> Any:
        if not isinstance(values, Tensor):
            return values
        filler = _EMPTY.get(name, False if values.dtype == torch.bool else pad)
        return torch.cat([values, values.new_full((more, *values.shape[1:]), filler)])

    return type(batch)(*(longer(n, v) for n, v in zip(batch._fields, batch, strict=True)))
