"""Many requests, fast and in order: those of similar length are decoded together.

Only as many are read ahead as make good batches, so a file of any size needs the same memory, and
the first result comes at once.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel import Accelerated
from limelight.decode.accel.ctranslate2 import (
    CTranslate2Model,
    CTranslate2Search,
    unknown_in_requests,
)
from limelight.decode.beam import BeamSearch, DeviceBeamModel, is_unconstrained
from limelight.decode.config import DecodeConfig
from limelight.decode.ensemble import Ensemble
from limelight.decode.generate import GenerationBatch, TokenEvent, Watch, write
from limelight.decode.request import Hypothesis, Request, StepModel
from limelight.errors import EngineWarning, UserError

ROWS = 64  # requests in a batch, at most
MAX_BATCH_POSITIONS = 2**15  # of sources and texts in a batch, at most: fits into any memory

Key = TypeVar("Key")
_Item = TypeVar("_Item")
_Job = tuple[Key, list[Request]]
_Done = tuple[Key, list[list[Hypothesis]]]
AnySearch = BeamSearch | CTranslate2Search


class Engine:
    """A model, or an ensemble, behind its accelerators. With `int8`, CTranslate2 rounds it."""

    def __init__(self, models: Sequence[Any], tokenizer: Tokenizer, int8: bool = False) -> None:
        self.accelerated = [Accelerated(model) for model in models]
        self.tokenizer, self.int8 = tokenizer, int8
        self.warned: set[str] = set()

    @property
    def model(self) -> StepModel:
        """The models as they are now, whatever was done to them since the last search."""
        fast = [each.model for each in self.accelerated]
        return fast[0] if len(fast) == 1 else Ensemble(fast)

    def in_ctranslate2(
        self, requests: Sequence[Request], config: DecodeConfig, keep_tree: bool = False
    ) -> CTranslate2Model | None:
        """CTranslate2, if it is chosen and can do what is asked; `auto` chooses it for int8.

        In float32 `auto` never does. There it has of torch's speed 0.8 to 1.4 x for one sentence,
        1.2 to 1.7 x with beam 5, depending on the processor's caches, and 0.9 to 1.1 x for 64
        (benchmarks/results, 17 and 19 November 2026). Chosen for single sentences only, it would
        make a text depend on whether others are searched at the same time.
        """
        if config.engine == "torch" and self.int8:
            raise UserError("precision='int8' is computed by CTranslate2: set engine to 'auto'")
        if config.engine == "torch" or (config.engine == "auto" and not self.int8):
            return None
        first = self.accelerated[0]
        unknown = unknown_in_requests(requests, config, first.original.config)
        if keep_tree or len(self.accelerated) > 1:
            unknown = "a tree of beams" if keep_tree else "ensembles"
        if not unknown:
            precision = "int8" if self.int8 else "float32"
            return first.in_ctranslate2(self.tokenizer.end, precision)
        if config.engine == "ctranslate2":
            raise UserError(f"engine='ctranslate2' does not know {unknown}: set engine to 'auto'")
        if unknown not in self.warned:
            self.warned.add(unknown)
            text = f"int8 does not know {unknown}: that is computed in float32"
            warnings.warn(text, EngineWarning, stacklevel=1)
        return None

    def new_search(
        self,
        requests: Sequence[Request],
        config: DecodeConfig,
        nbest: int = 1,
        keep_tree: bool = False,
    ) -> AnySearch:
        """A beam search; CTranslate2's may be greedy too."""
        if fast := self.in_ctranslate2(requests, config, keep_tree):
            return CTranslate2Search(fast, requests, config, nbest)
        return new_search(self.model, requests, config, self.tokenizer, nbest, keep_tree)

    def generate(
        self,
        requests: Sequence[Request],
        config: DecodeConfig,
        nbest: int = 1,
        on_token: Watch = lambda _: False,
        logprobs: bool = True,
    ) -> list[list[Hypothesis]]:
        """For each request the best texts, the best first.

        Beams and CTranslate2 call no `on_token`. Without `logprobs`, texts may come with the sum of
        their log-probabilities alone.
        """
        if fast := self.in_ctranslate2(requests, config):
            return CTranslate2Search(fast, requests, config, nbest, logprobs).run()
        with torch.inference_mode():
            if config.temperature or (config.beam == 1 and nbest == 1):
                written = write(self.model, requests, config, self.tokenizer, on_token)
                return [[text] for text in written]
            return new_search(self.model, requests, config, self.tokenizer, nbest).run()

    def stream(self, request: Request, config: DecodeConfig) -> Iterator[TokenEvent]:
        """The tokens of a text as they come, without a beam."""
        if fast := self.in_ctranslate2([request], config):
            yield from fast.stream(request)
            return
        batch = GenerationBatch(self.model, [request], config, self.tokenizer)
        while batch.active:
            yield from batch.step()

    def generate_stream(
        self, jobs: Iterable[_Job[Key]], config: DecodeConfig, nbest: int = 1, logprobs: bool = True
    ) -> Iterator[_Done[Key]]:
        """Jobs of any number of requests each, answered in their order."""
        for window in growing_windows(jobs):
            requests = [request for _, own in window for request in own]
            answers: list[list[Hypothesis]] = [[] for _ in requests]
            for batch in batches_of(requests, config.beam):
                together = [requests[i] for i in batch]
                found = self.generate(together, config, nbest, logprobs=logprobs)
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
