"""Requests, hypotheses, a model as search sees it, and how a batch of requests begins."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from limelight.device import copy_to_device_async
from limelight.errors import UserError

DAMAGED = "the model's scores are not numbers (NaN): its weights are damaged"
LARGEST_LIMIT = 100_000  # tokens: more than any model writes well, less than would fill a memory


@runtime_checkable
class StepModel(Protocol):
    """All that search knows of a model: any family that writes, an accelerator or an ensemble."""

    config: Any

    def parameters(self) -> Iterator[Any]:
        """Its weights."""

    def start(self, *given: Any, **options: Any) -> Any:
        """The state from which `step` writes: a KV cache, or the state of a recurrent network.

        `state.select(rows)` keeps these rows, in this order; a row may be repeated (beams).
        `state.insert_rows(other, rows)` writes another state's rows to these, or behind the last;
        `rows` is on the CPU.
        """

    def step(self, tokens: Tensor, state: Any, real: Tensor | None = None) -> Tensor:
        """Read the next tokens (B T, padded on the right); return logits of the next ones, B V.

        The caller may overwrite the logits, and so may the model at its next step.
        """


@runtime_checkable
class GreedyStepModel(StepModel, Protocol):
    """A model that can choose the most likely token on its device."""

    def step_greedy(self, tokens: Tensor, state: Any, most: int = 1) -> tuple[Tensor, Tensor]:
        """Read a token in each row, B; then those chosen, in up to `most` steps.

        Returns the tokens chosen in each step with their log-probabilities, and the last ones. The
        first result, C 2 B or wider, is valid until the next call; the second, B, may be passed to
        it as it is.
        """


Step = TypeVar("Step")


class StepQueue(deque[Step]):
    """Steps that were launched and not read yet: a GPU may compute one while Python reads one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.ahead = 1 if device.type == "cuda" else 0


@dataclass(frozen=True)
class Request:
    """One text to be written."""

    prompt: Sequence[int]  # what the decoder reads first: a start token and whatever is given
    limit: int  # new tokens, at most
    source: Sequence[int] = ()  # what an encoder reads, with its end token
    seed: int = 1  # for sampling; the outcome does not depend on other requests
    include: tuple[str, ...] = ()  # phrases that must appear (beam search)
    capitalizable: tuple[str, ...] = ()  # those of them that may begin the text with a capital
    exclude: tuple[str, ...] = ()  # phrases that must not
    top: int = 0  # report this many of the most likely tokens at every position (not of beams)
    truncated_prompt: Sequence[int] = ()  # tokens before the prompt that the model no longer reads
    needs_leading_space: bool = False  # the text continues with a space, or ends

    @property
    def history(self) -> list[int]:
        """All tokens that count as repetitions when they come again."""
        return [*self.truncated_prompt, *self.prompt]

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LARGEST_LIMIT:
            raise UserError(f"limit={self.limit} tokens to write: ask for 1 to {LARGEST_LIMIT}")
        if not self.prompt:
            raise UserError("there is nothing to begin with: a prompt has at least a start token")


@dataclass(frozen=True)
class Hypothesis:
    """A text that a model wrote, with the model's log-probability of every token and of the end."""

    tokens: list[int]  # without the end token
    logprobs: list[float]
    ended: bool  # with an end token; otherwise the limit or a stop string was reached
    score: float  # what a beam ranks by: the sum of `logprobs` over the length penalty, or the sum
    total: float = 0.0  # the sum, known also where `logprobs` were not asked for


def finalize(
    tokens: list[int], logprobs: list[float], end: int, penalty: float = 1.0
) -> Hypothesis:
    """A hypothesis of these tokens, without the end token."""
    ended = tokens[-1:] == [end]
    total = sum(logprobs)
    return Hypothesis(tokens[:-1] if ended else tokens, logprobs, ended, total / penalty, total)


def prefill(model: StepModel, requests: Sequence[Request], pad: int) -> tuple[Tensor, Any]:
    """Read sources and prompts: logits of each row's next token, B V, and the state."""
    state = encode_sources(model, requests, pad)
    prompt, real = _to_device(model, [request.prompt for request in requests], pad)
    logits = model.step(prompt, state, real)
    if not torch.isfinite(logits).all():
        raise UserError(DAMAGED)
    return logits, state


def encode_sources(model: StepModel, requests: Sequence[Request], pad: int) -> Any:
    """The state before the first token of the prompt is read."""
    max_len = max_total_length(requests)
    if not str(model.config.family).endswith("encoder-decoder"):
        return model.start(len(requests), max_len=max_len)
    source, real = _to_device(model, [request.source for request in requests], pad)
    return model.start(source, real, max_len=max_len)


def _to_device(
    model: StepModel, rows: list[Sequence[int]], pad: int
) -> tuple[Tensor, Tensor | None]:
    device, (tokens, real) = device_of(model), pad_batch(rows, pad)
    real_on_device = None if real.all() else copy_to_device_async(real, device)
    return copy_to_device_async(tokens, device), real_on_device


def max_total_length(requests: Sequence[Request]) -> int:
    """The largest number of prompt and new tokens that one of the requests may reach."""
    return max(len(request.prompt) + request.limit for request in requests)


def should_evict(finished: Sequence[int], rows: int, max_len: int) -> bool:
    """Whether rows of these lengths should leave: they are a quarter, or a cache is full."""
    return max(finished, default=0) >= max_len or len(finished) >= 0.25 * rows


def device_of(model: Any) -> torch.device:
    """The device of the first parameter."""
    device: torch.device = next(model.parameters()).device
    return device


def pad_batch(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one tensor, padded on the right, and a mask of the real ones."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    return tokens, torch.arange(width) < torch.tensor([[len(row)] for row in rows])


def pad_histories(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of tokens as one tensor, B T, padded with -1 on the left."""
    width = max(map(len, rows))
    return torch.tensor([[*[-1] * (width - len(row)), *row] for row in rows], device=device)
