"""What is asked of a model, and what it answers, in tokens; and how a batch of requests begins."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from limelight.errors import UserError

EVICT_FRACTION = 0.25  # of all rows: so many that are done are worth the moving of the others
DAMAGED = "the model's scores are not numbers (NaN): its weights are damaged"
LARGEST_LIMIT = 100_000  # tokens: more than any model writes well, less than would fill a memory


class _DecoderState(Protocol):
    """What a model keeps between two tokens."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named again (beams) or not at all."""

    def insert_rows(self, other: Any, places: Tensor) -> None:
        """Put the rows of another state into these places: over a row, or behind the last one."""


class StepModel(Protocol):
    """A model as search sees it: any family that can write, or several of them."""

    config: Any

    def parameters(self) -> Iterator[Any]:
        """Its weights."""

    def start(self, *given: Any, **room: Any) -> Any:
        """The state from which `step` writes."""

    def step(self, tokens: Tensor, state: Any, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); score the one that follows them, B V.

        A search may write over the scores, and the model may at its next step.
        """


@dataclass(frozen=True)
class Request:
    """One text to be written."""

    prompt: Sequence[int]  # what the decoder begins with: a start token, and what is given already
    limit: int  # at most so many tokens more
    source: Sequence[int] = ()  # what an encoder reads, with its end token
    seed: int = 1  # for sampling: the same request is the same text, alone or among others
    include: tuple[str, ...] = ()  # words that must appear (beam search)
    exclude: tuple[str, ...] = ()  # words that must not
    top: int = 0  # tell so many of the likeliest tokens at every place (not of beams)
    truncated_prompt: Sequence[int] = ()  # what stood before the prompt, and is read no more
    needs_leading_space: bool = False  # what is written begins with a space, or with nothing

    @property
    def history(self) -> list[int]:
        """All that is there already, for those who look for repetitions."""
        return [*self.truncated_prompt, *self.prompt]

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LARGEST_LIMIT:
            raise UserError(f"limit={self.limit} tokens to write: ask for 1 to {LARGEST_LIMIT}")
        if not self.prompt:
            raise UserError("there is nothing to begin with: a prompt has at least a start token")


@dataclass(frozen=True)
class Hypothesis:
    """What a model wrote: its own log-probability of every token, the end token's included."""

    tokens: list[int]  # without the end token
    logprobs: list[float]
    ended: bool  # by its own end token, and not by the limit or a stop
    score: float  # the sum of `logprobs`, after a beam divided by the length penalty


def prefill(model: StepModel, requests: Sequence[Request], pad: int) -> tuple[Tensor, Any]:
    """Read sources and prompts: scores of each row's next token, B V, and the state."""
    device = device_of(model)
    prompt, real = pad_batch([request.prompt for request in requests], pad)
    state = encode_sources(model, requests, pad)
    padded = None if real.all() else real.to(device)
    logits = model.step(prompt.to(device), state, padded)
    if not torch.isfinite(logits).all():
        raise UserError(DAMAGED)
    return logits, state


def encode_sources(model: StepModel, requests: Sequence[Request], pad: int) -> Any:
    """The state before the first token of the prompt is read."""
    room = max_total_length(requests)
    if not _has_encoder(model):
        return model.start(len(requests), max_len=room)
    device = device_of(model)
    source, real = pad_batch([request.source for request in requests], pad)
    padded = None if real.all() else real.to(device)
    return model.start(source.to(device), padded, max_len=room)


def max_total_length(requests: Sequence[Request]) -> int:
    """How many tokens the longest of them may come to."""
    return max(len(request.prompt) + request.limit for request in requests)


def should_evict(
    requests: Sequence[Request], rows: Sequence[int], active: Container[int], steps: int
) -> bool:
    """Whether to let rows go that are done: if they are many, or one has no room to stay."""
    done = [row for row in rows if row not in active]
    room = max_total_length(requests)
    full = any(len(requests[row].prompt) + steps >= room for row in done)
    return full or len(done) >= EVICT_FRACTION * len(rows)


def _has_encoder(model: StepModel) -> bool:
    """Whether this is an encoder with a decoder."""
    return str(model.config.family).endswith("encoder-decoder")


def device_of(model: Any) -> torch.device:
    """Where a model's numbers are."""
    device: torch.device = next(model.parameters()).device
    return device


def pad_batch(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one tensor, padded on the right, and where it is not padding."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    real = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
    return tokens, real


def pad_histories(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """What each row has read, B T, the newest last and -1 before the first."""
    width = max(map(len, rows))
    return torch.tensor([[*[-1] * (width - len(row)), *row] for row in rows], device=device)
