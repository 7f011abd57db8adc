"""A GPU that is told a step once, and afterwards repeats it by itself.

A step launches a thousand small kernels, and for a small model launching takes longer than
computing. So a step is recorded as a CUDA graph, one for each shape of batch, and replayed with one
launch: forward, backward and optimizer. A recording reads and writes fixed places in memory, and
nothing in it may ask the GPU for a number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from limelight.text.examples import Batch, Masked

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class Recording:
    """A step on batches of one shape."""

    graph: torch.cuda.CUDAGraph
    batch: Batch  # where it reads
    result: Tensor  # where it writes


class Repeater:
    """Takes steps, and records those that come again."""

    def __init__(self, step: Callable[[Batch], Tensor], device: torch.device) -> None:
        self.step, self.device = step, device
        self.recordings: dict[Shape, Recording | None] = {}
        self.pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> Tensor:
        """Take a step; what it gives is to be read before the next one."""
        shape = shape_of(batch)
        if isinstance(batch, Masked) or shape not in self.recordings:
            # How many blanks there are differs from batch to batch, so those cannot be recorded.
            # Others are seen once before: that compiles, and chooses and loads the kernels.
            self.recordings[shape] = None
            return self.step(batch)
        recording = self.recordings[shape] or self.record(shape, batch)
        for place, value in zip(recording.batch, batch, strict=True):
            if isinstance(place, Tensor) and isinstance(value, Tensor):
                place.copy_(value, non_blocking=True)
        recording.graph.replay()
        return recording.result

    def record(self, shape: Shape, batch: Batch) -> Recording:
        """Watch a step without taking it. Steps follow each other, so all use the same memory."""
        kind: Any = type(batch)
        copies = (x.to(self.device, copy=True) if isinstance(x, Tensor) else x for x in batch)
        place = cast(Batch, kind(*copies))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
            result = self.step(place)
        recording = Recording(graph, place, result)
        self.recordings[shape] = recording
        return recording


def shape_of(batch: Batch) -> Shape:
    """What batches must have in common for one recording."""
    return (type(batch), *(tuple(x.shape) if isinstance(x, Tensor) else None for x in batch))
