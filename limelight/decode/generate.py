"""Greedy search and sampling, token by token, for many requests at once.

    batch = GenerationBatch(model, requests, config, tokenizer)
    while batch.active:
        for row, token, logprob, _ in batch.step(): ...

Rows that have finished leave the batch, and `add_requests` lets more in between two steps. While
Python reads one step's tokens, a GPU already computes the next step; a row that has just finished
then computes a few tokens too many, which are dropped.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import BannedPhrases
from limelight.decode.request import (
    DAMAGED,
    GreedyStepModel,
    Hypothesis,
    Request,
    StepModel,
    StepQueue,
    device_of,
    encode_sources,
    finalize,
    max_total_length,
    pad_histories,
    prefill,
    should_evict,
)
from limelight.decode.sampling import (
    NEG_INF,
    apply_repetition_penalty,
    log_softmax_inplace,
    sample,
    uniform_draws,
)
from limelight.device import copy_to_device_async, copy_to_host_async
from limelight.errors import UserError
from limelight.model.kv_cache import padded

NO_BEAM = "words that must appear need a beam: set beam to 2 or more, and temperature to 0"
_ROWS_PER_STEP = 8  # a silent batch of n rows chooses n / 8 tokens before Python reads them
Watch = Callable[["TokenEvent"], bool]


class TokenEvent(NamedTuple):
    """A token that was written."""

    row: int  # the request's number
    token: int
    logprob: float  # the model's own, before penalties, constraints and temperature
    top: tuple[tuple[int, float], ...] = ()  # the most likely tokens here, if requested


class _ActiveSequence:
    def __init__(
        self, request: Request, config: DecodeConfig, tokenizer: Tokenizer, silent: bool = False
    ) -> None:
        if request.include:
            raise UserError(NO_BEAM)
        self.request = request
        self.config = _without_seed(config)
        self.excluded = BannedPhrases(request, tokenizer)
        self.special_ids = tokenizer.special_ids
        self.silent = silent  # nobody wants its tokens before it has finished
        self.written: list[int] = []
        self.logprobs: list[float] = []
        self.length = len(request.prompt)  # tokens that the model has read
        self.chosen = 0  # tokens; the last of them may still be on the GPU
        self.uniforms = uniform_draws(request.seed, request.limit) if config.temperature else None
        needs_history = config.repetition_penalty != 1 or config.no_repeat_ngram or self.excluded
        self.can_run_ahead = not (needs_history or request.top)
        self.is_greedy = self.can_run_ahead and not config.temperature

    def next_uniform(self) -> Tensor:
        """A finished row may draw more often than it has numbers; nobody sees the outcome."""
        uniforms = cast(Tensor, self.uniforms)
        return uniforms[min(self.chosen, len(uniforms) - 1)]


@lru_cache(maxsize=1024)
def _without_seed(config: DecodeConfig) -> DecodeConfig:
    """One object for settings that differ only in their seed: their rows are chosen together."""
    return replace(config, seed=0)


class _PendingTokens(NamedTuple):
    """A token for each of these rows; the values may still be on their way from the GPU."""

    rows: Sequence[int]
    read: Callable[[], list[Tensor]]  # tokens, their log-probabilities, and the top ones of both
    silent: bool = False  # of several steps, C B


class GenerationBatch:
    """Requests that are written together, one token each per step."""

    def __init__(
        self,
        model: StepModel,
        requests: Sequence[Request],
        config: DecodeConfig,
        tokenizer: Tokenizer,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.greedy_model = model if isinstance(model, GreedyStepModel) else None
        self.texts: dict[int, _ActiveSequence] = {}  # by request number
        self.rows: list[int] = []  # the request number of each row of the state
        self.active: set[int] = set()  # requests that have not finished
        self.state: Any = None
        self.tokens = torch.zeros(0, dtype=torch.long)  # written, and not read by the model yet
        self.max_len = 0  # tokens that a row of the state can hold
        self.first: list[_PendingTokens] = []  # the first tokens of requests that were just added
        self.in_flight = StepQueue[_PendingTokens](device_of(model))
        self.finished: dict[int, tuple[list[int], list[float]]] = {}  # silent requests
        self.added = 0
        if requests:
            self.add_requests(requests, [config] * len(requests))

    def add_requests(
        self,
        requests: Sequence[Request],
        configs: Sequence[DecodeConfig],
        silent: Sequence[bool] = (),
    ) -> range:
        """Let more requests in, and return their numbers. This changes no other request's text.

        A silent request has no events: its tokens and their log-probabilities are in `finished`
        when it ends.
        """
        self.run_ahead()  # a GPU computes while newcomers are read
        each = zip(requests, configs, silent or [False] * len(requests), strict=True)
        texts = [_ActiveSequence(r, config, self.tokenizer, s) for r, config, s in each]
        if short := all(len(request.prompt) == 1 for request in requests):
            # The next step reads their prompts: a step of few rows takes as long as of many.
            state = encode_sources(self.model, requests, self.tokenizer.pad)
            tokens = torch.tensor([request.prompt[0] for request in requests])
            tokens = copy_to_device_async(tokens, device_of(self.model))
        else:
            logits, state = prefill(self.model, requests, self.tokenizer.pad)
            tokens = _choose(logits, texts)
        rows = range(self.added, self.added + len(texts))
        first = [] if short else [_pending_tokens(rows, texts, logits, tokens)]
        self.insert_rows(rows, state, tokens, max_total_length(requests))
        # Nothing below can fail: when memory runs out above, the batch is unchanged.
        self.added = rows.stop
        self.texts.update(zip(rows, texts, strict=True))
        self.active.update(rows)
        self.first += first
        if short:
            for text in texts:
                text.length = 0
        return rows

    def insert_rows(self, rows: range, state: Any, tokens: Tensor, max_len: int) -> None:
        """Write new requests over rows that have finished, or behind the last row."""
        if not any(row in self.active for row in self.rows):
            self.drop(self.rows)
            self.in_flight.clear()
            self.rows, self.state, self.tokens, self.max_len = [*rows], state, tokens, max_len
            return
        free = [index for index, row in enumerate(self.rows) if row not in self.active]
        indices = [*free, *range(len(self.rows), len(self.rows) + len(rows))][: len(rows)]
        where = torch.tensor(indices)  # on the CPU: a state may ask for the last one
        self.state.insert_rows(state, where)
        self.drop(self.rows[index] for index in free[: len(rows)])
        self.rows += [0] * max(0, len(rows) - len(free))
        # A copy: they may lie in a buffer that another batch will use, once this one has moved.
        self.tokens = padded(self.tokens.clone(), 0, len(self.rows) - len(self.tokens))
        for index, row in zip(indices, rows, strict=True):
            self.rows[index] = row
        self.tokens[copy_to_device_async(where, tokens.device)] = tokens
        self.max_len = max(self.max_len, max_len)

    def drop(self, rows: Iterable[int]) -> None:
        for row in rows:
            del self.texts[row]

    def step(self) -> list[TokenEvent]:
        """One more token for every active request; only the first for those just added."""
        if self.first:
            added, self.first = self.first, []
            return [event for first in added for event in self.collect(first)]
        if not self.in_flight:
            self.launch_step()
        self.run_ahead()
        return self.collect(self.in_flight.popleft())

    def run_ahead(self) -> None:
        """Launch a step behind another, if one more token is wanted and can be chosen already."""
        if not 1 <= len(self.in_flight) <= self.in_flight.ahead:
            return
        texts = [self.texts[row] for row in self.rows if row in self.active]
        known = all(text.can_run_ahead for text in texts)
        if known and any(text.chosen < text.request.limit for text in texts):
            self.launch_step()

    def launch_step(self) -> None:
        self.evict_finished()
        texts = [self.texts[row] for row in self.rows]
        if self.greedy_model and all(text.is_greedy for text in texts):
            self.launch_greedy(self.greedy_model, texts)
            return
        for text in texts:
            text.length += 1
        logits = self.model.step(self.tokens[:, None], self.state)
        self.tokens = _choose(logits, texts)
        self.in_flight.append(_pending_tokens([*self.rows], texts, logits, self.tokens))

    def launch_greedy(self, model: GreedyStepModel, texts: Sequence[_ActiveSequence]) -> None:
        """One step; several if nobody waits for their tokens, and rows are many.

        Python's work for a step grows with its rows, and a GPU's does not.
        """
        active = [self.texts[row] for row in self.rows if row in self.active]
        silent = self.in_flight.ahead > 0 and all(text.silent for text in active)
        wanted = max(text.request.limit - text.chosen for text in active)
        most = min(wanted, len(texts) // _ROWS_PER_STEP) if silent else 1
        outputs, self.tokens = model.step_greedy(self.tokens, self.state, max(1, most))
        arrived, rows, steps = copy_to_host_async(outputs), [*self.rows], outputs.size(0)
        for text in texts:
            text.length += steps
            text.chosen += steps

        def read() -> list[Tensor]:
            found = arrived()[0][:, :, : len(rows)]
            return [*found.transpose(0, 1)] if silent else [*found[0]]

        self.in_flight.append(_PendingTokens(rows, read, silent))

    def collect_silent(self, step: _PendingTokens) -> None:
        """Read the tokens of several steps, C B, for requests that have no events."""
        tokens, logprobs = (numbers.T.tolist() for numbers in step.read())
        ends = self.tokenizer.ends
        for row, chosen, scores in zip(step.rows, tokens, logprobs, strict=True):
            if row not in self.active:
                continue
            text = self.texts[row]
            limit = text.request.limit - len(text.written)
            last = next((i for i, token in enumerate(chosen) if token in ends), len(chosen) - 1)
            count = min(limit, last + 1)
            text.written += map(int, chosen[:count])
            text.logprobs += scores[:count]
            if math.isnan(sum(scores[:count])):
                raise UserError(DAMAGED)
            if text.written[-1] in ends or count == limit:
                self.stop(row)
                self.finished[row] = text.written, text.logprobs

    def collect(self, step: _PendingTokens) -> list[TokenEvent]:
        """Read a step's tokens, as far as their requests are still active."""
        if step.silent:
            self.collect_silent(step)
            return []
        tokens, logprobs, *best = (numbers.tolist() for numbers in step.read())
        events = []
        chosen = map(int, tokens)  # a GPU sends them as floats, beside their log-probabilities
        for i, (row, token, logprob) in enumerate(zip(step.rows, chosen, logprobs, strict=True)):
            if row not in self.active:
                continue
            if math.isnan(logprob):
                raise UserError(DAMAGED)
            text = self.texts[row]
            text.written.append(token)
            if text.silent:
                text.logprobs.append(logprob)
            else:
                top = tuple(zip(*(kind[i] for kind in best), strict=True)) if best else ()
                events.append(TokenEvent(row, token, logprob, top[: text.request.top]))
            if token in self.tokenizer.ends or len(text.written) == text.request.limit:
                self.stop(row)
                if text.silent:
                    self.finished[row] = text.written, text.logprobs
        return events

    def stop(self, row: int) -> None:
        self.active.discard(row)

    def evict_finished(self) -> None:
        """Remove finished rows if they are many, or if the cache has no slot left for one."""
        done = [row for row in self.rows if row not in self.active]
        if self.in_flight.ahead:
            # A GPU's step of few rows takes as long as of many, and moving rows takes longer. A
            # finished row may stay in a slot that is full: it overwrites its own last position.
            evict = len(done) >= 0.5 * len(self.rows)
        else:
            lengths = [self.texts[row].length for row in done]
            evict = should_evict(lengths, len(self.rows), self.max_len)
        if not evict:
            return
        self.drop(done)
        keep = [index for index, row in enumerate(self.rows) if row in self.active]
        indices = torch.tensor(keep, device=self.tokens.device)
        self.state.select(indices)
        self.tokens = self.tokens[indices]
        self.rows = [self.rows[index] for index in keep]


def _choose(logits: Tensor, texts: Sequence[_ActiveSequence]) -> Tensor:
    if len({id(text.config) for text in texts}) == 1:
        return _select_tokens(logits, texts)
    groups: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        groups.setdefault(id(text.config), []).append(i)
    tokens = torch.zeros(len(texts), dtype=torch.long, device=logits.device)
    for group in groups.values():
        where = torch.tensor(group, device=logits.device)
        tokens[where] = _select_tokens(logits[where], [texts[i] for i in group])
    return tokens


def _select_tokens(logits: Tensor, texts: Sequence[_ActiveSequence]) -> Tensor:
    config, own = texts[0].config, logits
    if config.repetition_penalty != 1 or config.no_repeat_ngram:
        rows = [[*text.request.history, *text.written] for text in texts]
        history = pad_histories(rows, logits.device)
        logits = apply_repetition_penalty(logits, history, config, texts[0].special_ids)
    for i, text in enumerate(texts):
        if text.excluded and (banned := text.excluded.banned(text.written)):
            logits = logits.clone() if logits is own else logits
            logits[i, banned] = NEG_INF
    uniforms = [text.next_uniform() for text in texts] if config.temperature else []
    for text in texts:
        text.chosen += 1
    if not uniforms:
        return logits.argmax(dim=1)
    return sample(logits, copy_to_device_async(torch.stack(uniforms), logits.device), config)


def _pending_tokens(
    rows: Sequence[int], texts: Sequence[_ActiveSequence], logits: Tensor, tokens: Tensor
) -> _PendingTokens:
    """Start copying these tokens, their log-probabilities and the top ones; overwrites logits."""
    top = max((text.request.top for text in texts), default=0)
    logprobs = log_softmax_inplace(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    values = [tokens, logprobs.gather(1, tokens[:, None])[:, 0]]
    if top:
        best = logprobs.topk(min(top, logprobs.size(1)), dim=1)
        values += [best.indices, best.values]
    return _PendingTokens(rows, copy_to_host_async(*values))


def write(
    model: StepModel,
    requests: Sequence[Request],
    config: DecodeConfig,
    tokenizer: Tokenizer,
    on_token: Watch = lambda _: False,
) -> list[Hypothesis]:
    """Write all requests. A request also ends when `on_token` returns true for its token."""
    batch = GenerationBatch(model, requests, config, tokenizer)
    tokens: list[list[int]] = [[] for _ in requests]
    logprobs: list[list[float]] = [[] for _ in requests]
    while batch.active:
        for event in batch.step():
            tokens[event.row].append(event.token)
            logprobs[event.row].append(event.logprob)
            if on_token(event):
                batch.stop(event.row)
    return [finalize(*row, tokenizer.end) for row in zip(tokens, logprobs, strict=True)]
