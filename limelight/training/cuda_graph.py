"""Training steps captured as CUDA graphs, and replayed.

A step launches a thousand small kernels, and for a small model launching takes longer than
computing. So a step is captured as a CUDA graph, one for each shape of batch, and replayed with one
launch: forward, backward and optimizer. A graph reads and writes fixed addresses, and nothing in it
may wait for a number from the GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.data.datasets import Batch, MaskedLMBatch
from limelight.training.objectives import to_device

_Shape = tuple[Any, ...]
_Captured = tuple[torch.cuda.CUDAGraph, Tensor]  # and where its result lies


class CudaGraphStep:
    """Runs steps, and captures those whose shape comes again."""

    def __init__(self, step: Callable[[Batch], Tensor], device: torch.device) -> None:
        self.step, self.device = step, device
        self.inputs: dict[_Shape, Batch] = {}  # the batches that graphs read
        self.captured: dict[_Shape, _Captured] = {}
        self.pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> Tensor:
        if isinstance(batch, MaskedLMBatch):
            batch = count_masked(batch)
        shape = shape_of(batch)
        if shape not in self.inputs:
            # The first time it runs eagerly: that compiles, and chooses and loads the kernels; on a
            # batch that lies in memory like the one which the graph will read.
            self.inputs[shape] = to_device(batch, self.device, copy=True)
            return self.step(self.inputs[shape])
        for static, value in zip(self.inputs[shape], batch, strict=True):
            if isinstance(static, Tensor) and isinstance(value, Tensor):
                static.copy_(value, non_blocking=True)
        if shape not in self.captured:
            self.captured[shape] = self.capture(self.inputs[shape])
        graph, result = self.captured[shape]
        graph.replay()
        return result

    def capture(self, static: Batch) -> _Captured:
        """Capture a step without running it. Steps never overlap, so all graphs share memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
            result = self.step(static)
        return graph, result


def count_masked(batch: MaskedLMBatch) -> MaskedLMBatch:
    """With the places of the masked tokens, rounded up in number: it differs between batches."""
    places = batch.loss_mask.flatten().nonzero()[:, 0]
    step = -(-batch.loss_mask.numel() // (32 * 128)) * 128
    return batch._replace(places=F.pad(places, (0, -len(places) % step), value=-1))


def shape_of(batch: Batch) -> _Shape:
    """What batches must have in common to share a graph."""
    return (type(batch), *(tuple(x.shape) if isinstance(x, Tensor) else None for x in batch))
