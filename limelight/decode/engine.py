"""Many requests, fast and in order: those of similar length are decoded together.

Only as many are read ahead as make good batches, so a file of any size needs the same memory, and
the first result comes at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel import Accelerated
from limelight.decode.beam import BeamSearch, DeviceBeamModel, is_unconstrained
from limelight.decode.config import DecodeConfig
from limelight.decode.ensemble import Ensemble
from limelight.decode.generate import Watch, write
from limelight.decode.request import Hypothesis, Request, StepModel

ROWS = 64  # requests in a batch, at most
MAX_BATCH_POSITIONS = 2**15  # of sources and texts in a batch, at most: fits into any memory

Key = TypeVar("Key")
_Item = TypeVar("_Item")
_Job = tuple[Key, list[Request]]
_Done = tuple[Key, list[list[Hypothesis]]]


class Engine:
    """A model, or an ensemble, behind its accelerators."""

    def __init__(self, models: Sequence[Any], tokenizer: Tokenizer, int8: bool = False) -> None:
        self.accelerated = [Accelerated(model, int8) for model in models]
        self.tokenizer = tokenizer

    @property
    def model(self) -> StepModel:
        """The models as they are now, whatever was done to them since the last search."""
        fast = [each.model for each in self.accelerated]
        return fast[0] if len(fast) == 1 else Ensemble(fast)

    def generate(
        self,
        requests: Sequence[Request],
        config: DecodeConfig,
        nbest: int = 1,
        on_token: Watch = lambda _: False,
    ) -> list[list[Hypothesis]]:
        """For each request the best texts, the best first. A beam calls no `on_token`."""
        with torch.inference_mode():
            if config.temperature or (config.beam == 1 and nbest == 1):
                written = write(self.model, requests, config, self.tokenizer, on_token)
                return [[text] for text in written]
            return new_search(self.model, requests, config, self.tokenizer, nbest).run()

    def generate_stream(
        self, jobs: Iterable[_Job[Key]], config: DecodeConfig, nbest: int = 1
    ) -> Iterator[_Done[Key]]:
        """Jobs of any number of requests each, answered in their order."""
        for window in growing_windows(jobs):
            requests = [request for _, own in window for request in own]
            answers: list[list[Hypothesis]] = [[] for _ in requests]
            for batch in batches_of(requests, config.beam):
                found = self.generate([requests[i] for i in batch], config, nbest)
                for i, texts in zip(batch, found, strict=True):
                    answers[i] = texts
            ordered = iter(answers)
            for key, own in window:
                yield key, list(islice(ordered, len(own)))


def new_search(
    model: StepModel,
    requests: Sequence[Request],
    config: DecodeConfig,
    tokenizer: Tokenizer,
    nbest: int = 1,
    keep_tree: bool = False,
) -> BeamSearch:
    """A beam search: on the device, if the model can, nothing constrains it and no tree is kept."""
    if isinstance(model, DeviceBeamModel) and not keep_tree and is_unconstrained(requests, config):
        return model.new_beam_search(requests, config, tokenizer, nbest)
    return BeamSearch(model, requests, config, tokenizer, nbest, keep_tree)


def growing_windows(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    """One item at first, so that its result comes at once; then twice as many each time."""
    left, ahead = iter(items), 1
    while window := list(islice(left, ahead)):
        yield window
        ahead = min(2 * ahead, 512)


def batches_of(requests: Sequence[Request], beam: int) -> Iterator[list[int]]:
    """Which requests to decode together: at most `ROWS` of similar length."""
    sizes = [len(r.source) + len(r.prompt) + r.limit for r in requests]
    return batch_by_length(sizes, MAX_BATCH_POSITIONS // beam, ROWS)


def batch_by_length(
    sizes: Sequence[int], max_positions: int, max_rows: int | None = None
) -> Iterator[list[int]]:
    """Indices of items of similar size, the largest first, within these bounds after padding."""
    batch: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if batch and (len(batch) == max_rows or (len(batch) + 1) * sizes[batch[0]] > max_positions):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
