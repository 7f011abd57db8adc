"""The texts of a job, as the scheduler sees them.

A sequence asks for one stretch of tokens after the other (`next_request`) and collects what comes:
token by token (`add`), or the result of a beam search (`add_found`).
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import TokenEvent, finalize
from limelight.decode.request import Hypothesis, Request
from limelight.serve.ipc import TextPayload, TokenPayload
from limelight.tasks.write import Continuation


class Sequence:
    """Tokens alone, without their text: all that a part of a translation needs."""

    eager = False  # text is decoded as tokens come, and `add` returns it
    stopped = False  # a stop string was found

    def __init__(self, request: Request | None, config: DecodeConfig) -> None:
        self.request, self.config = request, config
        self.waiting = request
        self.events: list[TokenEvent] = []
        self.found: list[Hypothesis] = []  # by a beam search

    def next_request(self) -> Request | None:
        """What to generate next; None when the text is complete."""
        request, self.waiting = self.waiting, None
        return request

    def add(self, event: TokenEvent) -> str:
        """Add a token; the text that became certain by it."""
        self.events.append(event)
        return ""

    def add_found(self, found: list[Hypothesis], end: int) -> str:
        """Add what a beam search found, the best first, as if it had come token by token."""
        self.found = found
        tokens = [*found[0].tokens, *[end] * found[0].ended]
        events = map(TokenEvent, [0] * len(tokens), tokens, found[0].logprobs)
        return "".join(self.add(event) for event in events if not self.stopped)

    def finish(self) -> str:
        """The text that was held back."""
        return ""

    def hypotheses(self, end: int) -> list[Hypothesis]:
        """The results, the best first."""
        tokens = [event.token for event in self.events]
        logprobs = [event.logprob for event in self.events]
        return self.found or [finalize(tokens, logprobs, end)]


class TextSequence(Sequence):
    """The answer of a model that was trained on pairs, as text with single spaces.

    Unless somebody reads along, or a stop string may end it, all tokens are decoded in the end.
    """

    def __init__(
        self,
        request: Request | None,
        config: DecodeConfig,
        detokenizer: IncrementalDetokenizer,
        stream: bool,
    ) -> None:
        super().__init__(request, config)
        self.detokenizer, self.eager = detokenizer, stream or bool(detokenizer.stops)
        self.read = (len(request.source) or len(request.prompt)) if request else 0
        self.normalizer = _WhitespaceNormalizer()
        self.pieces: list[str] = []

    def add(self, event: TokenEvent) -> str:
        """Add a token; the text that became certain by it."""
        self.events.append(event)
        return self.decode([event.token]) if self.eager else ""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text that becomes certain with these tokens."""
        self.pieces.append(self.normalized("".join(map(self.detokenizer.feed, tokens))))
        self.stopped = self.detokenizer.stopped
        return self.pieces[-1]

    def normalized(self, piece: str) -> str:
        """A piece as the client gets it."""
        return self.normalizer.feed(piece)

    def finish(self) -> str:
        """The text that was held back."""
        if not self.eager:
            self.decode(event.token for event in self.events)
        self.pieces.append(self.normalized(self.detokenizer.finish()))
        return self.pieces[-1]

    def payload(self, tokenizer: Tokenizer, logprobs: bool) -> TextPayload:
        """The text and its tokens; the end token is not counted."""
        events = [event for event in self.events if event.token != tokenizer.end]
        return {
            "text": "".join(self.pieces),
            "ended": self.stopped or len(events) < len(self.events),
            "read": self.read,
            "written": len(events),
            "tokens": token_payloads(tokenizer, events) if logprobs else [],
        }


class CompletionSequence(TextSequence):
    """The continuation of a prompt, in as many stretches as the context window demands."""

    def __init__(self, continuation: Continuation, top: int, stream: bool) -> None:
        super().__init__(None, continuation.config, continuation.stream, stream)
        self.continuation, self.top = continuation, top
        self.read = len(continuation.tokens)

    def next_request(self) -> Request | None:
        """The next stretch; None when the text is complete."""
        written = self.continuation.written
        new = [event.token for event in self.events[len(written) :]]
        written += new
        self.continuation.tokens += new
        request = self.continuation.request()
        return None if request is None else replace(request, top=self.top)

    def normalized(self, piece: str) -> str:
        """A continuation keeps its whitespace."""
        return piece


class _WhitespaceNormalizer:
    """`" ".join(text.split())`, for a text that comes in pieces."""

    def __init__(self) -> None:
        self.begun = self.space = False

    def feed(self, piece: str) -> str:
        """The piece; a space at its end is held back, as nothing may follow."""
        text = re.sub(r"\s+", " ", piece)
        shown = text.strip(" ")
        if not shown:
            self.space = self.space or bool(text)
            return ""
        space = self.begun and (self.space or text.startswith(" "))
        self.begun, self.space = True, text.endswith(" ")
        return f" {shown}" if space else shown


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
