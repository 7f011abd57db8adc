"""A trained model, its tokenizer, and what people can do with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine, batch_by_length
from limelight.decode.request import pad_batch
from limelight.errors import UserError, unknown_name


@dataclass
class TextModel:
    """What a task needs to know of a model."""

    model: Any
    tokenizer: Tokenizer
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    kind: str = "pairs"  # of the data that it learned from
    history: int = 1  # turns of a dialogue that it learned to look at
    tags: tuple[str, ...] = ()  # one of them goes before every source
    default_tag: str = ""  # which, where nobody says it
    classes: tuple[str, ...] = ()
    int8: bool = False  # write with weights rounded to bytes
    ensemble: Sequence[Any] = ()  # models that write with it, as an ensemble

    @cached_property
    def engine(self) -> Engine:
        """The fast way to write with it."""
        return Engine([self.model, *self.ensemble], self.tokenizer, self.int8)

    @property
    def family(self) -> str:
        """Encoder-decoder, decoder-only or encoder-only, whether recurrent or not."""
        return str(self.model.config.family).removeprefix("recurrent-")

    @property
    def max_len(self) -> int:
        """The longest text it can read or write, and all who write with it."""
        return min(int(model.config.max_len) for model in (self.model, *self.ensemble))

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it can be asked for."""
        if self.family == "encoder-only":
            return ("classify", "embed") if self.classes else ("fill", "embed")
        if self.kind == "texts":
            return ("write", "score", "embed")
        return ("translate", "chat", "score", "embed")

    def require(self, ability: str) -> None:
        """Refuse what it cannot do, and say what it can."""
        if ability not in self.tasks:
            raise UserError(
                f"this model cannot {ability}: it is {self.family} and learned from {self.kind}, "
                f"so it can {', '.join(self.tasks)}"
            )

    def tag(self, wanted: str) -> list[int]:
        """The token that says what is asked for, if the model learned several things."""
        if not self.tags:
            self.refuse_tag(wanted)
            return []
        wanted = wanted or self.default_tag
        if not wanted and len(self.tags) > 1:
            raise UserError(f"say with --tag what is wanted: {' or '.join(self.tags)}")
        if wanted and wanted not in self.tags:
            raise unknown_name("tag", wanted, self.tags)
        return [self.tokenizer.tag(wanted or self.tags[0])]

    def refuse_tag(self, wanted: str) -> None:
        """Where there is no source that a tag could go before, none may be asked for."""
        if wanted:
            raise UserError(f"this model learned no tags, so there is no {wanted!r}")


def in_batches(
    trained: TextModel,
    rows: Sequence[Sequence[int]],
    positions: int = 4096,
    sources: Sequence[Sequence[int]] = (),
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of tokens side by side, those of like length together: which rows, tokens, and real.

    The sources that belong to them take room as well.
    """
    device = next(trained.model.parameters()).device
    sizes = [sum(map(len, parts)) for parts in zip_longest(rows, sources, fillvalue=())]
    for batch in batch_by_length(sizes, positions):
        tokens, real = pad_batch([rows[i] for i in batch], trained.tokenizer.pad)
        yield batch, tokens.to(device), real.to(device)


def add_special_tokens(trained: TextModel, text: str) -> list[int]:
    """A text as the model reads it, cut to what it can read."""
    tokenizer = trained.tokenizer
    tokens = tokenizer.encode(text)[: trained.max_len - 2]
    if trained.family == "encoder-decoder":
        return [*tokens, tokenizer.end]
    texts = trained.family == "decoder-only" and trained.kind == "texts"
    return [tokenizer.end if texts else tokenizer.start, *tokens, tokenizer.end]
