"""Writing token by token: at every step the likeliest token, or one that is drawn.

    writing = Writing(model, requests, config, tokenizer)
    while writing.active:
        for row, token, logprob, _ in writing.step(): ...

Rows that have ended leave, so that the others need not carry them along; and more requests may
`join` between two steps.

A GPU is not waited for: it begins with the next token before this side knows the last one. A row
that has ended meanwhile writes one token too many, which nobody sees.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.decode.async_copy import copy_to_device_async, copy_to_host_async
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import BannedPhrases
from limelight.decode.request import (
    DAMAGED,
    EVICT_FRACTION,
    Hypothesis,
    Request,
    StepModel,
    device_of,
    encode_sources,
    max_total_length,
    pad_histories,
    prefill,
)
from limelight.decode.sampling import NEG_INF, apply_repetition_penalty, sample, uniform_draws
from limelight.errors import UserError
from limelight.model.kv_cache import padded
from limelight.model.topk import fast_argmax, log_softmax_inplace

NO_BEAM = "words that must appear need a beam: set beam to 2 or more, and temperature to 0"
Watch = Callable[["TokenEvent"], bool]


class TokenEvent(NamedTuple):
    """A token that was written."""

    row: int  # of which request
    token: int
    logprob: float  # the model's own, whatever was done to its scores before choosing
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens here, if the request wants them


class _ActiveSequence:
    """A request that is being written."""

    def __init__(self, request: Request, config: DecodeConfig, tokenizer: Tokenizer) -> None:
        if request.include:
            raise UserError(NO_BEAM)
        self.request = request
        self.config = _without_seed(config)
        self.excluded = BannedPhrases(
            request.exclude, tokenizer, request.prompt, request.needs_leading_space
        )
        self.first = tokenizer.first_text_id  # the tokens before it are no text
        self.written: list[int] = []
        self.length = len(request.prompt)  # of what the model has read
        self.chosen = 0  # tokens; the last of them may not be known here yet
        self.uniforms = uniform_draws(request.seed, request.limit) if config.temperature else None
        looks_back = config.repetition_penalty != 1 or config.no_repeat_ngram or self.excluded
        self.needs_nothing = not (looks_back or request.top)  # known of one token for the next one
        self.takes_likeliest = self.needs_nothing and not config.temperature

    @property
    def read(self) -> list[int]:
        """All that it consists of."""
        return [*self.request.history, *self.written]

    def next_luck(self) -> Tensor:
        """The number that the next token is drawn with; who has ended may draw on, unseen."""
        luck = cast(Tensor, self.uniforms)
        return luck[min(self.chosen, len(luck) - 1)]


@lru_cache(maxsize=1024)
def _without_seed(config: DecodeConfig) -> DecodeConfig:
    """The same for all that differ in their seed alone: they are chosen together."""
    return replace(config, seed=0)


class _PendingTokens(NamedTuple):
    """A token for each of these rows, and all that is to be said of it; it may be on its way."""

    rows: Sequence[int]
    read: Callable[[], list[Tensor]]  # tokens, their log-probabilities, and the likeliest of both


class GenerationBatch:
    """Requests that are being written, all by one token at a time; others may join at any time."""

    def __init__(
        self,
        model: StepModel,
        requests: Sequence[Request],
        config: DecodeConfig,
        tokenizer: Tokenizer,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.texts: dict[
            int, _ActiveSequence
        ] = {}  # by the numbers that requests get when they join
        self.rows: list[int] = []  # which of them each row of the state belongs to
        self.active: set[int] = set()  # those that have not ended
        self.state: Any = None
        self.tokens = torch.zeros(0, dtype=torch.long)  # written, and not read yet
        self.room = 0  # tokens that a row of the state may have
        self.first: list[_PendingTokens] = []  # tokens of those who have just joined
        self.in_flight: deque[_PendingTokens] = deque()  # steps that were begun
        self.async_ahead = device_of(model).type == "cuda"
        self.ranks = getattr(model, "ranks", False)  # the GPU finds the likeliest by itself
        self.joined = 0
        if requests:
            self.add_requests(requests, [config] * len(requests))

    def add_requests(self, requests: Sequence[Request], configs: Sequence[DecodeConfig]) -> range:
        """Let more requests in, and say which numbers they have. Nobody's text changes by it."""
        both = zip(requests, configs, strict=True)
        texts = [_ActiveSequence(request, config, self.tokenizer) for request, config in both]
        if short := all(len(request.prompt) == 1 for request in requests):
            # They are read with everybody's next token: a step for a few takes as long as for many.
            state = encode_sources(self.model, requests, self.tokenizer.pad)
            tokens = torch.tensor([request.prompt[0] for request in requests])
            tokens = tokens.to(device_of(self.model))
        else:
            logits, state = prefill(self.model, requests, self.tokenizer.pad)
            tokens = _choose(logits, texts)
        rows = range(self.joined, self.joined + len(texts))
        first = [] if short else [_tell(rows, texts, logits, tokens)]
        self.insert_rows(rows, state, tokens, max_total_length(requests))
        # Now nothing can fail any more: had there been no memory, all would be as it was.
        self.joined = rows.stop
        self.texts.update(zip(rows, texts, strict=True))
        self.active.update(rows)
        self.first += first
        if short:
            for text in texts:
                text.length = 0
        return rows

    def insert_rows(self, rows: range, state: Any, tokens: Tensor, room: int) -> None:
        """The newcomers take the places of those who have ended, or new ones behind the others."""
        if not any(row in self.active for row in self.rows):
            self.drop(self.rows)
            self.in_flight.clear()
            self.rows, self.state, self.tokens, self.room = [*rows], state, tokens, room
            return
        free = [place for place, row in enumerate(self.rows) if row not in self.active]
        behind = range(len(self.rows), len(self.rows) + len(rows))
        places = [*free, *behind][: len(rows)]
        where = torch.tensor(places, device=tokens.device)
        self.state.insert_rows(state, where)
        self.drop(self.rows[place] for place in free[: len(rows)])
        self.rows += [0] * max(0, len(rows) - len(free))
        # A copy: they may lie where another batch will write, once this one has moved.
        self.tokens = padded(self.tokens.clone(), 0, len(self.rows) - len(self.tokens))
        for place, row in zip(places, rows, strict=True):
            self.rows[place] = row
        self.tokens[where] = tokens
        self.room = max(self.room, room)

    def drop(self, rows: Iterable[int]) -> None:
        """They have ended, and left."""
        for row in rows:
            del self.texts[row]

    def step(self) -> list[TokenEvent]:
        """One more token for every request that is being written; the first for newcomers."""
        if self.first:
            joined, self.first = self.first, []
            return [event for first in joined for event in self.collect(first)]
        if not self.in_flight:
            self.launch_step()
        if self.async_ahead and self.can_run_ahead():
            self.launch_step()
        return self.collect(self.in_flight.popleft())

    def can_run_ahead(self) -> bool:
        """Whether the next token can be chosen before the last one is known, and is wanted."""
        texts = [self.texts[row] for row in self.rows if row in self.active]
        known = all(text.needs_nothing for text in texts)
        return known and any(text.chosen < text.request.limit for text in texts)

    def launch_step(self) -> None:
        """Begin the next step."""
        self.evict_finished()
        texts = [self.texts[row] for row in self.rows]
        for text in texts:
            text.length += 1
        if self.ranks and all(text.takes_likeliest for text in texts):
            self.in_flight.append(self.launch_greedy_step(texts))
            return
        logits = self.model.step(self.tokens[:, None], self.state)
        self.tokens = _choose(logits, texts)
        self.in_flight.append(_tell([*self.rows], texts, logits, self.tokens))

    def launch_greedy_step(self, texts: Sequence[_ActiveSequence]) -> _PendingTokens:
        """A step after which nobody needs the scores of all tokens."""
        model: Any = self.model
        told, self.tokens = model.step_likeliest(self.tokens, self.state)
        for text in texts:
            text.chosen += 1
        arrived = copy_to_host_async(told)

        def read() -> list[Tensor]:
            tokens, logprobs = arrived()[0][:, : len(texts)]
            return [tokens.long(), logprobs]

        return _PendingTokens([*self.rows], read)

    def collect(self, told: _PendingTokens) -> list[TokenEvent]:
        """What was written, as far as somebody waits for it."""
        tokens, logprobs, *best = (numbers.tolist() for numbers in told.read())
        events = []
        for place, (row, token, logprob) in enumerate(
            zip(told.rows, tokens, logprobs, strict=True)
        ):
            if row not in self.active:
                continue
            if math.isnan(logprob):
                raise UserError(DAMAGED)
            text = self.texts[row]
            others = tuple(zip(*(kind[place] for kind in best), strict=True)) if best else ()
            events.append(TokenEvent(row, token, logprob, others[: text.request.top]))
            text.written.append(token)
            if token == self.tokenizer.end or len(text.written) == text.request.limit:
                self.stop(row)
        return events

    def stop(self, row: int) -> None:
        """This request has been written far enough."""
        self.active.discard(row)

    def evict_finished(self) -> None:
        """Let rows that have ended go: if they are many, or one has no room to stay."""
        done = [self.texts[row] for row in self.rows if row not in self.active]
        full = any(text.length >= self.room for text in done)
        if not full and len(done) < EVICT_FRACTION * len(self.rows):
            return
        self.drop(row for row in self.rows if row not in self.active)
        keep = [place for place, row in enumerate(self.rows) if row in self.active]
        places = torch.tensor(keep, device=self.tokens.device)
        self.state.select(places)
        self.tokens = self.tokens[places]
        self.rows = [self.rows[place] for place in keep]


def _choose(logits: Tensor, texts: Sequence[_ActiveSequence]) -> Tensor:
    """The next token of each text, B; those with the same settings are chosen together."""
    if len({id(text.config) for text in texts}) == 1:
        return _select_tokens(logits, texts)
    alike: dict[int, list[int]] = {}
    for place, text in enumerate(texts):
        alike.setdefault(id(text.config), []).append(place)
    tokens = torch.zeros(len(texts), dtype=torch.long, device=logits.device)
    for places in alike.values():
        where = torch.tensor(places, device=logits.device)
        tokens[where] = _select_tokens(logits[where], [texts[place] for place in places])
    return tokens


def _select_tokens(logits: Tensor, texts: Sequence[_ActiveSequence]) -> Tensor:
    """The same for texts with the same settings."""
    config, own = texts[0].config, logits
    if config.repetition_penalty != 1 or config.no_repeat_ngram:
        history = pad_histories([text.read for text in texts], logits.device)
        logits = apply_repetition_penalty(logits, history, config, texts[0].first)
    for place, text in enumerate(texts):
        if text.excluded and (banned := text.excluded.banned(text.written)):
            logits = logits.clone() if logits is own else logits
            logits[place, banned] = NEG_INF
    luck = [text.next_luck() for text in texts] if config.temperature else []
    for text in texts:
        text.chosen += 1
    if not luck:
        return fast_argmax(logits)
    return sample(logits, copy_to_device_async(torch.stack(luck), logits.device), config)


def _tell(
    rows: Sequence[int], texts: Sequence[_ActiveSequence], logits: Tensor, tokens: Tensor
) -> _PendingTokens:
    """What has been chosen for these rows, which are of these texts."""
    top = max((text.request.top for text in texts), default=0)
    return _PendingTokens(rows, copy_to_host_async(tokens, *_logprobs_of(logits, tokens, top)))


def _logprobs_of(logits: Tensor, tokens: Tensor, top: int = 0) -> list[Tensor]:
    """The log-probability of one token of each row, B; then the `top` likeliest and theirs.

    The scores are not needed after this, and may be overwritten.
    """
    precise = log_softmax_inplace(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    own = precise.gather(1, tokens[:, None])[:, 0]
    if not top:
        return [own]
    best = precise.topk(min(top, precise.size(1)), dim=1)
    return [own, best.indices, best.values]


def write(
    model: StepModel,
    requests: Sequence[Request],
    config: DecodeConfig,
    tokenizer: Tokenizer,
    on_token: Watch = lambda _: False,
) -> list[Hypothesis]:
    """All requests to their ends. `watch` sees every token as it comes, and may say: enough."""
    writing = GenerationBatch(model, requests, config, tokenizer)
    tokens: list[list[int]] = [[] for _ in requests]
    logprobs: list[list[float]] = [[] for _ in requests]
    while writing.active:
        for event in writing.step():
            tokens[event.row].append(event.token)
            logprobs[event.row].append(event.logprob)
            if on_token(event):
                writing.stop(event.row)
    return [finalize(*row, tokenizer.end) for row in zip(tokens, logprobs, strict=True)]


def finalize(tokens: list[int], logprobs: list[float], end: int) -> Hypothesis:
    """What was written, the end token taken off."""
    ended = bool(tokens) and tokens[-1] == end
    return Hypothesis(tokens[:-1] if ended else tokens, logprobs, ended, sum(logprobs))
