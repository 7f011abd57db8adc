"""Several pairs in a row, so that batches of texts of many lengths have one shape and no padding.

A row has a fixed width on each side, and holds pairs one after the other; a token attends to
those of its own text alone, and positions begin anew with each. What is learned is the same as from
one pair a row; a GPU computes and captures one shape, and little in it is padding.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.data.datasets import PackedSeq2SeqBatch, Seq2SeqBatch

IGNORED = -100  # the label of a position that does not count
_Numbers = NDArray[np.integer[Any]]


def row_starts(lengths: _Numbers, width: int) -> list[int]:
    """Where rows begin if pairs (n x 2) fill them in this order; the last number is n."""
    ends = np.concatenate([np.zeros((1, 2), np.int64), lengths.cumsum(axis=0)])
    reach = [np.searchsorted(side, side[:-1] + width, "right") - 1 for side in ends.T]
    following = np.minimum(*reach).tolist()
    starts = [0]
    while starts[-1] < len(lengths):
        starts.append(following[starts[-1]])
    return starts


def pack_pairs(batch: Seq2SeqBatch, width: int, rows: int) -> PackedSeq2SeqBatch:
    """The pairs of a batch in rows of this width."""
    real = batch.source_real
    if real is None:  # no padding
        real = torch.ones_like(batch.source, dtype=torch.bool)
    target_real = batch.target_real[:, 1:]
    lengths = torch.stack([real.sum(dim=1), target_real.sum(dim=1)], dim=1).numpy()
    starts = row_starts(lengths, width)
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    before = lengths.cumsum(axis=0) - lengths  # tokens before each pair, and before its row
    begins = row[:, None] * width + before - before[np.array(starts[:-1])][row]
    places = [_Places(begins[:, i], lengths[:, i], rows * width) for i in (0, 1)]
    source, target = places
    fields = [
        source.fill(batch.source[real]),
        target.fill(batch.target[:, :-1][target_real]),
        target.fill(batch.target[:, 1:][target_real], IGNORED),
        *(x for place in places for x in (place.fill(place.texts), place.fill(place.positions))),
    ]
    examples = torch.full((rows * width // 2,), -1)
    examples[: len(lengths)] = batch.examples
    return PackedSeq2SeqBatch(batch.position, examples, *(x.view(rows, width) for x in fields))


class _Places:
    """Where the tokens of one side go."""

    def __init__(self, begins: Any, lengths: Any, size: int) -> None:
        total, self.size = int(lengths.sum()), size
        first = np.repeat(lengths.cumsum() - lengths, lengths)
        within = np.arange(total) - first
        self.where = torch.from_numpy(np.repeat(begins, lengths) + within)
        self.positions = torch.from_numpy(within)
        self.texts = torch.from_numpy(np.repeat(np.arange(1, len(lengths) + 1), lengths))

    def fill(self, values: Tensor, empty: int = 0) -> Tensor:
        flat = torch.full((self.size,), empty)
        flat[self.where] = values.to(torch.int64)
        return flat
