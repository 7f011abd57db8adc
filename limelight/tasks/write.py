"""Write: a decoder-only model continues a text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import encode_prefix
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.request import Request
from limelight.errors import UserError
from limelight.tasks.text_model import TextModel, engine_of

DEFAULT_MAX_TOKENS = 200  # tokens, where nobody says how many


def write(
    trained: TextModel, prompt: str, config: DecodeConfig | None = None, stops: Sequence[str] = ()
) -> Iterator[str]:
    """Continue a text, piece by piece; when the context is full, its last half is kept."""
    text = Continuation(trained, prompt, config or trained.decode, stops)
    while (request := text.request()) is not None:
        for event in engine_of(trained).stream(request, text.config):
            yield text.add(event.token)
            if text.stream.stopped:
                break
    yield text.stream.finish()


class Continuation:
    """A text that is being continued: its next request, and what was written so far."""

    def __init__(
        self, trained: TextModel, prompt: str, config: DecodeConfig, stops: Sequence[str] = ()
    ) -> None:
        trained.require("write")
        self.trained = trained
        self.config = _one_by_one(config)
        self.tokens, self.spaced = encode_prompt(trained, prompt)
        self.most = config.max_tokens or DEFAULT_MAX_TOKENS
        self.read_from = 0  # tokens before this one are no longer in the model's context
        self.written: list[int] = []
        self.stream = IncrementalDetokenizer(trained.tokenizer, stops, self.spaced)

    @property
    def ended(self) -> bool:
        """Whether the model itself wrote an end."""
        return bool(self.written) and self.written[-1] in self.trained.tokenizer.ends

    def request(self) -> Request | None:
        if len(self.written) >= self.most or self.ended or self.stream.stopped:
            return None
        context = self.trained.max_len
        if len(self.tokens) - self.read_from >= context:
            self.read_from = len(self.tokens) - max(1, context // 2)
        before, read = self.tokens[: self.read_from], self.tokens[self.read_from :]
        return Request(
            read,
            limit=min(self.most - len(self.written), max(1, context - len(read))),
            seed=self.config.seed + len(self.written),
            truncated_prompt=before,
            needs_leading_space=self.spaced and not self.written,
        )

    def add(self, token: int) -> str:
        """Add a token; return the text that has become certain."""
        self.tokens.append(token)
        self.written.append(token)
        return self.stream.feed(token)


def refuse_beam(wanted: int | None) -> None:
    """Reject a beam that was asked for; the recipe's is ignored."""
    if wanted not in (None, 1):
        raise UserError(f"beam={wanted} is not for writing: a text is shown as it comes")


def refuse_engine(trained: TextModel, config: DecodeConfig) -> None:
    """Reject a chosen engine that cannot write any text with this model and these settings."""
    engine_of(trained).in_ctranslate2([], _one_by_one(config))


def _one_by_one(config: DecodeConfig) -> DecodeConfig:
    return replace(config, beam=1, beam_groups=1)  # texts come token by token


def encode_prompt(trained: TextModel, prompt: str) -> tuple[list[int], bool]:
    """The tokens of a prompt, behind what begins a text, and whether a space follows them."""
    begun, spaced = encode_prefix(trained.tokenizer, prompt)
    tokens = [*trained.tokenizer.text_start, *begun]
    return tokens or [trained.tokenizer.start], spaced
