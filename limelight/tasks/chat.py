"""Chat: the turns so far in, the next one out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from limelight.data.tokenizer import valid_unicode
from limelight.decode.config import DecodeConfig
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import TokenEvent
from limelight.decode.request import Request
from limelight.errors import UserError
from limelight.tasks.text_model import TextModel, engine_of
from limelight.tasks.translate import longest_source, request_for

_ROLES = ("user", "assistant")
_ANSWER = 512  # tokens of an answer, where nobody says how many


def request_for_messages(
    trained: TextModel, messages: Sequence[Mapping[str, str]], config: DecodeConfig
) -> tuple[Request, int]:
    """The request for the next message, and how many old ones no longer fit before it.

    A system message stays. What a person said is dropped together with what was answered.
    """
    if trained.chat_prompt is None:
        raise UserError("this model has no chat template")
    system = [message for message in messages[:1] if message["role"] not in _ROLES]
    said, context = messages[len(system) :], trained.max_len
    for dropped in range(0, len(said), 2):
        prompt = trained.chat_prompt([*system, *said[dropped:]])
        wanted = config.max_tokens or min(_ANSWER, context // 2)
        if len(prompt) + wanted <= context or (dropped + 2 >= len(said) and len(prompt) < context):
            limit = max(1, min(wanted, context - len(prompt)))
            return Request(prompt, limit, seed=config.seed), dropped
    raise UserError(f"{len(prompt)} tokens are too many: the model reads {context}: shorten it")


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
        if trained.chat_prompt is not None:
            return self.reply_to_messages(valid_unicode(text), show)
        turns = [*self.turns, " ".join(valid_unicode(text).split())]
        request = request_for(trained, self.source(turns), config)
        answer = " ".join(self._written(request, config, show).split())
        self.turns = [*turns, answer][-self.trained.history :]
        return answer

    def reply_to_messages(self, text: str, show: Callable[[str], object]) -> str:
        """Answer as a published chat model does: it has its own layout of a conversation."""
        trained, config = self.trained, self.config or self.trained.decode
        turns = [*self.turns, text]
        messages = [{"role": _ROLES[i % 2], "content": turn} for i, turn in enumerate(turns)]
        request, dropped = request_for_messages(trained, messages, config)
        self.cut = dropped == len(turns)
        greedy = replace(config, beam=1, beam_groups=1)  # answers come token by token
        answer = self._written(request, greedy, show).strip()
        self.turns = [*turns, answer]
        return answer

    def _written(
        self, request: Request, config: DecodeConfig, show: Callable[[str], object]
    ) -> str:
        """What the model writes; `show` gets it as it comes, or at the end if it comes at once."""
        tokenizer, pieces = self.trained.tokenizer, list[str]()
        stream = IncrementalDetokenizer(tokenizer)

        def watch(event: TokenEvent) -> bool:
            pieces.append(stream.feed(event.token))
            show(pieces[-1])
            return False

        ((written, *_),) = engine_of(self.trained).generate([request], config, on_token=watch)
        pieces.append(stream.finish() if pieces else tokenizer.decode(written.tokens))
        show(pieces[-1])
        return "".join(pieces)

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
