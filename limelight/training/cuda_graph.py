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

from limelight.data.datasets import Batch, MaskedLMBatch

_Shape = tuple[Any, ...]


@dataclass(frozen=True)
class CapturedStep:
    """A step on batches of one shape."""

    graph: torch.cuda.CUDAGraph
    result: Tensor  # where it writes


class CudaGraphStep:
    """Takes steps, and records those that come again."""

    def __init__(self, step: Callable[[Batch], Tensor], device: torch.device) -> None:
        self.step, self.device = step, device
        self.places: dict[_Shape, Batch] = {}  # where recordings read
        self.recordings: dict[_Shape, CapturedStep] = {}
        self.pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> Tensor:
        """Take a step; what it gives is to be read before the next one."""
        if isinstance(batch, MaskedLMBatch):
            return self.step(batch)  # how many blanks there are differs from batch to batch
        shape = shape_of(batch)
        if shape not in self.places:
            # Once it is taken as it is: that compiles, and chooses and loads the kernels; for a
            # batch that lies in memory like the one which the recording will read.
            self.places[shape] = _static_copy(batch, self.device)
            return self.step(self.places[shape])
        for place, value in zip(self.places[shape], batch, strict=True):
            if isinstance(place, Tensor) and isinstance(value, Tensor):
                place.copy_(value, non_blocking=True)
        if shape not in self.recordings:
            self.recordings[shape] = self.capture(self.places[shape])
        self.recordings[shape].graph.replay()
        return self.recordings[shape].result

    def capture(self, place: Batch) -> CapturedStep:
        """Watch a step without taking it. Steps follow each other, so all use the same memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
            result = self.step(place)
        return CapturedStep(graph, result)


def _static_copy(batch: Batch, device: torch.device) -> Batch:
    """The same numbers in memory of their own."""
    kind: Any = type(batch)
    copies = (x.to(device, copy=True) if isinstance(x, Tensor) else x for x in batch)
    return cast(Batch, kind(*copies))


def shape_of(batch: Batch) -> _Shape:
    """What batches must have in common for one recording."""
    return (type(batch), *(tuple(x.shape) if isinstance(x, Tensor) else None for x in batch))
