"""Many texts, fast and in order: requests of like length are answered together.

Only so many are read ahead as make good batches, so a file of any size takes the same memory, and
the first answer comes at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel.cpu.model import for_cpu
from limelight.decode.accel.cuda.runner import CudaGraphModel
from limelight.decode.beam import BeamSearch, beam_search, is_unconstrained
from limelight.decode.config import DecodeConfig
from limelight.decode.ensemble import Ensemble
from limelight.decode.generate import Watch, write
from limelight.decode.request import Hypothesis, Request, StepModel
from limelight.model.config import ModelConfig

_READ_AHEAD = 512  # jobs that are read before the first of them is answered, at most
ROWS = 64  # requests in a batch, at most
MAX_BATCH_POSITIONS = (
    2**15
)  # of sources and texts in a batch, at most: so much memory is there everywhere

Key = TypeVar("Key")
_Job = tuple[Key, list[Request]]
_Done = tuple[Key, list[list[Hypothesis]]]


class Engine:
    """A model, or several, ready to answer."""

    def __init__(self, models: Sequence[Any], tokenizer: Tokenizer, int8: bool = False) -> None:
        ready: list[StepModel] = [_accelerate(model, int8) for model in models]
        self.model = ready[0] if len(ready) == 1 else Ensemble(ready)
        self.tokenizer = tokenizer

    def generate(
        self,
        requests: Sequence[Request],
        config: DecodeConfig,
        nbest: int = 1,
        on_token: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """For each request the best answers, the best first. `watch` is for writing, not beams."""
        with torch.inference_mode():
            if config.temperature or (config.beam == 1 and nbest == 1):
                on_token = on_token or (lambda _: False)
                written = write(self.model, requests, config, self.tokenizer, on_token)
                return [[text] for text in written]
            return beam_search(self.model, requests, config, self.tokenizer, nbest)

    def generate_stream(
        self, jobs: Iterable[_Job[Key]], config: DecodeConfig, nbest: int = 1
    ) -> Iterator[_Done[Key]]:
        """Jobs of any number of requests each, answered in their order."""
        left, ahead = iter(jobs), 1
        while window := list(islice(left, ahead)):
            requests = [request for _, own in window for request in own]
            answers: list[list[Hypothesis]] = [[] for _ in requests]
            for batch in batches_of(requests, config.beam):
                found = self.generate([requests[i] for i in batch], config, nbest)
                for i, texts in zip(batch, found, strict=True):
                    answers[i] = texts
            ordered = iter(answers)
            for key, own in window:
                yield key, list(islice(ordered, len(own)))
            ahead = min(2 * ahead, _READ_AHEAD)


def _accelerate(model: Any, int8: bool = False) -> Any:
    """The fastest way that is known to write with a model: on a GPU, on a CPU, or its own."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    if on_gpu and isinstance(model.config, ModelConfig):
        return CudaGraphModel(model)
    return for_cpu(model, int8)


def new_search(
    model: StepModel,
    requests: Sequence[Request],
    config: DecodeConfig,
    tokenizer: Tokenizer,
    nbest: int = 1,
    keep_tree: bool = False,
) -> BeamSearch:
    """A beam search that has not begun: the accelerated one where the model has one."""
    accelerated: type[BeamSearch] | None = getattr(model, "plain_search", None)
    plain = not keep_tree and is_unconstrained(requests, config)
    search = accelerated if accelerated and plain else BeamSearch
    return search(model, requests, config, tokenizer, nbest, keep_tree)


def batches_of(requests: Sequence[Request], beam: int) -> Iterator[list[int]]:
    """Which requests to answer together: those that are about as long, the longest first."""

    def length(i: int) -> tuple[int, int]:
        return len(requests[i].source) + len(requests[i].prompt), requests[i].limit

    batch: list[int] = []
    for i in sorted(range(len(requests)), key=length, reverse=True):
        longest = length(batch[0] if batch else i)
        full = len(batch) == ROWS or (len(batch) + 1) * beam * sum(longest) > MAX_BATCH_POSITIONS
        if batch and full:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
