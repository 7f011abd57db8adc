"""Writing token by token: at every step the likeliest token, or one that is drawn.

    writing = Writing(model, requests, config, tokenizer)
    while writing.active:
        for row, token, logprob in writing.step(): ...

Rows that have ended leave, so that the others need not carry them along.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.decode.choose import BANNED, discourage, draw, luck_of
from limelight.decode.config import DecodeConfig
from limelight.decode.highest import likeliest
from limelight.decode.phrases import Excluded
from limelight.decode.request import Request, Stepper, Written, begin, history_of, time_to_leave
from limelight.errors import UserError
from limelight.text.tokenizer import Tokenizer

Watch = Callable[["Event"], bool]


class Event(NamedTuple):
    """A token that was written."""

    row: int  # of which request
    token: int
    logprob: float  # the model's own, whatever was done to its scores before choosing


class Writing:
    """Requests that are being written, all by one token at a time."""

    def __init__(
        self,
        model: Stepper,
        requests: Sequence[Request],
        config: DecodeConfig,
        tokenizer: Tokenizer,
    ) -> None:
        if any(request.include for request in requests):
            raise UserError("words that must appear need a beam: set beam to 2 or more")
        self.model, self.requests, self.config = model, requests, config
        self.end = tokenizer.end
        self.logits, self.state = begin(model, requests, tokenizer.pad)
        self.rows = list(range(len(requests)))  # which request each row of the state belongs to
        self.active = set(self.rows)  # the requests that have not ended
        self.tokens: Tensor | None = None  # written, and not read yet
        self.written: list[list[int]] = [[] for _ in requests]
        self.excluded = [Excluded(request.exclude, tokenizer) for request in requests]
        if config.temperature:
            # One number more: a row that has ended may draw on, unseen, until it leaves.
            self.luck = [luck_of(request.seed, request.limit + 1) for request in requests]

    def step(self) -> list[Event]:
        """One more token for every request that is being written."""
        if self.tokens is not None:
            self.leave()
            self.logits = self.model.step(self.tokens[:, None], self.state)
        self.tokens = self.choose()
        logprobs = logprobs_of(self.logits, self.tokens)
        events = [
            Event(row, token, logprob)
            for row, token, logprob in zip(
                self.rows, self.tokens.tolist(), logprobs.tolist(), strict=True
            )
            if row in self.active
        ]
        for row, token, _ in events:
            self.written[row].append(token)
            if token == self.end or len(self.written[row]) == self.requests[row].limit:
                self.stop(row)
        return events

    def stop(self, row: int) -> None:
        """This request has been written far enough."""
        self.active.discard(row)

    def leave(self) -> None:
        """Let rows that have ended go, if it is time."""
        steps = max(map(len, self.written))
        if self.tokens is None or not time_to_leave(self.requests, self.rows, self.active, steps):
            return
        keep = [place for place, row in enumerate(self.rows) if row in self.active]
        places = torch.tensor(keep, device=self.tokens.device)
        self.state.select(places)
        self.tokens = self.tokens[places]
        self.rows = [self.rows[place] for place in keep]

    def choose(self) -> Tensor:
        """The next token of each row, B."""
        logits = self.logits
        if self.config.repetition_penalty != 1 or self.config.no_repeat:
            read = [[*self.requests[row].prompt, *self.written[row]] for row in self.rows]
            logits = discourage(logits, history_of(read, logits.device), self.config)
        for place, row in enumerate(self.rows):
            if banned := self.excluded[row].banned(self.written[row]):
                logits = logits.clone() if logits is self.logits else logits
                logits[place, banned] = BANNED
        if not self.config.temperature:
            return likeliest(logits)
        luck = torch.stack([self.luck[row][len(self.written[row])] for row in self.rows])
        return draw(logits, luck.to(logits.device), self.config)


def logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of one token of each row, B."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return precise.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


def write(
    model: Stepper,
    requests: Sequence[Request],
    config: DecodeConfig,
    tokenizer: Tokenizer,
    watch: Watch = lambda _: False,
) -> list[Written]:
    """All requests to their ends. `watch` sees every token as it comes, and may say: enough."""
    writing = Writing(model, requests, config, tokenizer)
    logprobs: list[list[float]] = [[] for _ in requests]
    while writing.active:
        for event in writing.step():
            logprobs[event.row].append(event.logprob)
            if watch(event):
                writing.stop(event.row)
    return [
        wrap_up(tokens, row, tokenizer.end)
        for tokens, row in zip(writing.written, logprobs, strict=True)
    ]


def wrap_up(tokens: list[int], logprobs: list[float], end: int) -> Written:
    """What was written, the end token taken off."""
    ended = bool(tokens) and tokens[-1] == end
    return Written(tokens[:-1] if ended else tokens, logprobs, ended, sum(logprobs))
