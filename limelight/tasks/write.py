"""Write: a text goes on, as a model that read many texts would go on with it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import encode_prefix
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import GenerationBatch
from limelight.decode.request import Request
from limelight.errors import UserError
from limelight.tasks.text_model import TextModel

DEFAULT_MAX_TOKENS = 200  # tokens, where nobody says how many


def write(
    trained: TextModel,
    prompt: str,
    config: DecodeConfig | None = None,
    stops: Sequence[str] = (),
) -> Iterator[str]:
    """How a text goes on, piece by piece as it is written.

    Where the model's context ends, it goes on with the last half of it in mind.
    """
    text = Continuation(trained, prompt, config or trained.decode, stops)
    while (request := text.request()) is not None:
        for token in tokens_of(trained, request, text.config):
            yield text.take(token)
            if text.stream.stopped:
                break
    yield text.stream.finish()


class Continuation:
    """A text that goes on: what to ask the model for next, and what came of it."""

    def __init__(
        self, trained: TextModel, prompt: str, config: DecodeConfig, stops: Sequence[str] = ()
    ) -> None:
        trained.require("write")
        self.trained = trained
        self.config = replace(config, beam=1, beam_groups=1)  # texts come token by token
        self.tokens, self.spaced = encode_prompt(trained, prompt)
        self.most = config.max_tokens or DEFAULT_MAX_TOKENS
        self.read_from = 0  # what is before this place has no room in the model's context any more
        self.written: list[int] = []
        self.stream = IncrementalDetokenizer(trained.tokenizer, stops, self.spaced)

    @property
    def ended(self) -> bool:
        """Whether the model itself wrote an end."""
        return self.written[-1:] == [self.trained.tokenizer.end]

    def request(self) -> Request | None:
        """What to write next, if it goes on at all."""
        if len(self.written) >= self.most or self.ended or self.stream.stopped:
            return None
        room = self.trained.max_len
        if len(self.tokens) - self.read_from >= room:
            self.read_from = len(self.tokens) - max(1, room // 2)
        before, read = self.tokens[: self.read_from], self.tokens[self.read_from :]
        return Request(
            read,
            limit=min(self.most - len(self.written), max(1, room - len(read))),
            seed=self.config.seed + len(self.written),
            truncated_prompt=before,
            needs_leading_space=self.spaced and not self.written,
        )

    def take(self, token: int) -> str:
        """A token has come: the text that is certain now."""
        self.tokens.append(token)
        self.written.append(token)
        return self.stream.feed(token)


def refuse_beam(wanted: int | None) -> None:
    """A recipe's beam is for other uses, and does not count; one that is asked for is refused."""
    if wanted not in (None, 1):
        raise UserError(f"beam={wanted} is not for writing: a text is shown as it comes")


def encode_prompt(trained: TextModel, prompt: str) -> tuple[list[int], bool]:
    """What the model reads first, and whether a space follows that is not among it.

    Between two texts it has always seen an end token.
    """
    begun, spaced = encode_prefix(trained.tokenizer, prompt)
    return [trained.tokenizer.end, *begun], spaced


def tokens_of(trained: TextModel, request: Request, config: DecodeConfig) -> Iterator[int]:
    """The tokens of one request, as they come."""
    writing = GenerationBatch(trained.engine.model, [request], config, trained.tokenizer)
    while writing.active:
        for event in writing.step():
            yield event.token
