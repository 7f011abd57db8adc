"""Chat: the turns so far in, the next one out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from limelight.data.tokenizer import valid_unicode
from limelight.decode.config import DecodeConfig
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import TokenEvent
from limelight.tasks.text_model import TextModel
from limelight.tasks.translate import longest_source, request_for


@dataclass
class Conversation:
    """The turns so far, as many as the model was trained on and can read."""

    trained: TextModel
    config: DecodeConfig | None = None
    tag: str = ""  # selects a task, if the model was trained on several
    turns: list[str] = field(default_factory=list)  # as many as the model reads
    cut: bool = field(default=False, init=False)  # the last one was too long: its end was read

    def __post_init__(self) -> None:
        self.trained.require("chat")
        self.trained.tag(self.tag)

    def reply(self, text: str, show: Callable[[str], object] = lambda _: None) -> str:
        """Answer. `show` is called with each piece as it is written; with a beam, once at the end.

        An answer that is interrupted leaves the conversation as it was.
        """
        trained, config = self.trained, self.config or self.trained.decode
        turns = [*self.turns, " ".join(valid_unicode(text).split())]
        request = request_for(trained, self.source(turns), config)
        stream, pieces = IncrementalDetokenizer(trained.tokenizer), list[str]()

        def watch(event: TokenEvent) -> bool:
            pieces.append(stream.feed(event.token))
            show(pieces[-1])
            return False

        ((written, *_),) = trained.engine.generate([request], config, on_token=watch)
        pieces.append(stream.finish() if pieces else trained.tokenizer.decode(written.tokens))
        show(pieces[-1])
        answer = " ".join("".join(pieces).split())
        self.turns = [*turns, answer][-self.trained.history :]
        return answer

    def source(self, turns: list[str]) -> list[int]:
        """The last turns as the model learned to read them, a line each; the oldest goes first."""
        tag = self.trained.tag(self.tag)
        longest = longest_source(self.trained, self.config) - len(tag)
        for first in range(max(0, len(turns) - self.trained.history), len(turns)):
            tokens = self.trained.tokenizer.encode("\n".join(turns[first:]))
            if len(tokens) <= longest:
                break
        self.cut = len(tokens) > longest
        return [*tag, *tokens[-longest:]]

    def reset(self) -> None:
        self.turns = []
