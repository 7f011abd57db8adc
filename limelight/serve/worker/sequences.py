"""The texts of a job, as the scheduler sees them.

A sequence asks for one stretch of tokens after the other (`next_request`) and collects what comes:
token by token (`add`), or the result of a beam search (`add_found`).
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import TokenEvent
from limelight.decode.request import Hypothesis, Request, finalize
from limelight.serve.ipc import TextPayload, TokenPayload
from limelight.tasks.write import Continuation


class Sequence:
    """Tokens alone, without their text: all that a part of a translation needs."""

    stopped = False  # a stop string was found

    def __init__(self, request: Request | None, config: DecodeConfig) -> None:
        self.config, self.waiting = config, request
        self.events: list[TokenEvent] = []
        self.found: list[Hypothesis] = []  # by a beam search

    def next_request(self) -> Request | None:
        """What to generate next; None when the text is complete."""
        request, self.waiting = self.waiting, None
        return request

    @property
    def needs_events(self) -> bool:
        """Whether tokens are wanted one by one: for their alternatives, or as a stop may come."""
        return False

    def add(self, event: TokenEvent) -> None:
        self.events.append(event)

    def add_all(self, tokens: list[int], logprobs: list[float], end: int) -> None:
        """Add the tokens of a stretch at once."""
        self.found = [finalize(tokens, logprobs, end)]

    def add_found(self, found: list[Hypothesis], end: int) -> None:
        """Add what a beam search found, the best first, as if it had come token by token."""
        self.found = found
        tokens = [*found[0].tokens, *[end] * found[0].ended]
        for event in map(TokenEvent, [0] * len(tokens), tokens, found[0].logprobs):
            if not self.stopped:
                self.add(event)

    def without_end(self, tokenizer: Tokenizer, first: int = 0) -> list[TokenEvent]:
        return [event for event in self.events[first:] if event.token not in tokenizer.ends]

    def finish(self) -> None:
        """No more tokens will come."""

    def new_text(self) -> str:
        """The text that became certain since the last call."""
        return ""

    def hypotheses(self, end: int) -> list[Hypothesis]:
        """The results, the best first."""
        tokens = [event.token for event in self.events]
        logprobs = [event.logprob for event in self.events]
        return self.found or [finalize(tokens, logprobs, end)]


class TextSequence(Sequence):
    """The answer of a model that was trained on pairs, as text with single spaces.

    Of a published chat model, which sets `keeps_spaces`, line breaks stay. Tokens are decoded when
    somebody wants the text; at once where a stop string may end it.
    """

    def __init__(
        self,
        request: Request | None,
        config: DecodeConfig,
        detokenizer: IncrementalDetokenizer,
        keeps_spaces: bool = False,
    ) -> None:
        super().__init__(request, config)
        self.detokenizer = detokenizer
        self.read = (len(request.source) or len(request.prompt)) if request else 0
        self.written, self.keeps_spaces = "", keeps_spaces
        self.decoded = self.reported = 0  # events, and characters of the text
        self.top = request.top if request else 0

    @property
    def needs_events(self) -> bool:
        return bool(self.top or self.detokenizer.stops)

    def add(self, event: TokenEvent) -> None:
        self.events.append(event)
        if self.detokenizer.stops:
            self.decode()

    def add_all(self, tokens: list[int], logprobs: list[float], end: int) -> None:
        self.events += map(TokenEvent, [0] * len(tokens), tokens, logprobs)

    def decode(self) -> None:
        """Add the newest tokens to the text."""
        if tokens := [event.token for event in self.events[self.decoded :]]:
            self.decoded = len(self.events)
            self.written += self.detokenizer.feed(*tokens)
            self.stopped = self.detokenizer.stopped

    def finish(self) -> None:
        self.decode()
        self.written += self.detokenizer.finish()

    @property
    def text(self) -> str:
        """It only grows: a space is in it when something follows."""
        return self.written if self.keeps_spaces else " ".join(self.written.split())

    def new_text(self) -> str:
        self.decode()
        text, before = self.text, self.reported
        self.reported = len(text)
        return text[before:]

    def payload(self, tokenizer: Tokenizer, logprobs: bool) -> TextPayload:
        """The text and its tokens; the end token is not counted."""
        events = self.without_end(tokenizer)
        return {
            "text": self.text,
            "ended": self.stopped or len(events) < len(self.events),
            "read": self.read,
            "written": len(events),
            "tokens": token_payloads(tokenizer, events) if logprobs else [],
        }


class CompletionSequence(TextSequence):
    """The continuation of a prompt, in as many stretches as the context window demands."""

    def __init__(self, continuation: Continuation, top: int) -> None:
        super().__init__(None, continuation.config, continuation.stream, keeps_spaces=True)
        self.continuation, self.top = continuation, top
        self.read = len(continuation.tokens)

    def next_request(self) -> Request | None:
        written = self.continuation.written
        new = [event.token for event in self.events[len(written) :]]
        written += new
        self.continuation.tokens += new
        request = self.continuation.request()
        return None if request is None else replace(request, top=self.top)


def token_payloads(tokenizer: Tokenizer, events: Iterable[TokenEvent]) -> list[TokenPayload]:
    """Tokens with their log-probabilities and the most likely ones at their positions."""

    def payload(token: int, logprob: float) -> TokenPayload:
        piece, raw = tokenizer.pieces([token])[0], tokenizer.token_bytes(token)
        return {"token": piece, "bytes": list(raw), "logprob": finite(logprob)}

    return [
        {**payload(event.token, event.logprob), "top": [payload(*other) for other in event.top]}
        for event in events
    ]


def finite(value: float) -> float:
    """JSON has no infinity: the log-probability of the impossible becomes very small."""
    return value if math.isfinite(value) else -1e9
