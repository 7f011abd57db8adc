"""A trained model, its tokenizer, and what people can do with it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel.changes import Snapshot, hand_out, hand_out_to_hooks
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine, batch_by_length, growing_windows
from limelight.decode.request import device_of, pad_batch
from limelight.errors import UserError, unknown_name

TEXT_TASKS = ("ask", "paraphrase", "summarise")  # of models that turn texts into texts, by tag


@dataclass
class TextModel:
    """A model with its tokenizer, and what tasks need to know of it."""

    model: Any
    tokenizer: Tokenizer
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    kind: str = "pairs"  # of its training data
    history: int = 1  # turns of a dialogue that it reads
    tags: tuple[str, ...] = ()  # one of them goes before every source
    default_tag: str = ""  # if none is given
    classes: tuple[str, ...] = ()
    answer_share: float = 0.5  # of a GPT's context: what the answer to a long source may need
    learning_rate: float = 1e-3  # the highest in its training
    label_smoothing: float = 0.0  # in its training
    pooling: str = ""  # how `embed` makes one vector of many: the mean, or "first" of all tokens
    max_tokens: int = 0  # of a text that is embedded or classified, at most; 0: as many as fit
    chat_prompt: Callable[[Sequence[Mapping[str, str]]], list[int]] | None = None  # of messages
    int8: bool = False  # decode with weights rounded to bytes
    ensemble: Sequence[Any] = ()  # models that decode together with it
    _engine: Any = field(default=None, init=False, repr=False, compare=False)

    @property
    def engine(self) -> Engine:
        """What decodes with the fields above. Its networks can be reached through it."""
        hand_out(*networks_of(self))
        return engine_of(self)

    @property
    def device(self) -> torch.device:
        return device_of(networks_of(self)[0])

    @property
    def config(self) -> Any:
        return networks_of(self)[0].config

    @property
    def family(self) -> str:
        """Encoder-decoder, decoder-only or encoder-only, whether recurrent or not."""
        return str(self.config.family).removeprefix("recurrent-")

    @property
    def max_len(self) -> int:
        """Tokens that it, and its ensemble, can read or write at most."""
        return min(int(model.config.max_len) for model in networks_of(self))

    @property
    def tasks(self) -> tuple[str, ...]:
        if self.family == "encoder-only":
            heads = ("classify",) if self.classes else ("fill",) * self.config.masked_head
            return (*heads, "embed")
        if self.kind == "images":
            return ("draw",)
        if self.kind == "texts":
            return ("write", *(("chat",) if self.chat_prompt else ()), "score", "embed")
        by_tag = (task for task in TEXT_TASKS if task in self.tags)
        return ("translate", "chat", *by_tag, "score", "embed")

    def require(self, ability: str) -> None:
        """Refuse what this kind of model cannot do. Whether it learned a tag is asked later."""
        if ("translate" if ability in TEXT_TASKS else ability) not in self.tasks:
            raise UserError(
                f"this model cannot {ability}: it is {self.family} and learned from {self.kind}, "
                f"so it can {', '.join(self.tasks)}"
            )

    def tag(self, wanted: str) -> list[int]:
        """The token that selects a task, if the model was trained on several."""
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
        if wanted:
            raise UserError(f"this model learned no tags, so there is no {wanted!r}")


def _reachable(name: str) -> property:
    """A field with networks: whoever reads it may change them. Others ask `networks_of`."""

    def read(own: TextModel) -> Any:
        found = getattr(own, f"_{name}")
        hand_out(*(found if isinstance(found, Sequence) else [found]))
        return found

    return property(read, lambda own, value: setattr(own, f"_{name}", value))


for _field in ("model", "ensemble"):
    setattr(TextModel, _field, _reachable(_field))


def networks_of(trained: TextModel) -> list[Any]:
    """A model and its ensemble, for what neither changes them nor gives them to anybody."""
    networks = [vars(trained)["_model"], *vars(trained)["_ensemble"]]
    hand_out_to_hooks(*networks)
    return networks


def unchanged_since(trained: TextModel) -> Callable[[], bool]:
    """What says later whether it has the same networks still, with the same weights and hooks."""
    networks = networks_of(trained)
    snapshots = [*map(Snapshot, networks)]
    return lambda: networks_of(trained) == networks and all(s.holds() for s in snapshots)


def engine_of(trained: TextModel) -> Engine:
    """What decodes with a model's fields; kept as long as these are the same."""
    networks, kept = networks_of(trained), trained._engine
    given = [trained.tokenizer, trained.int8, *networks]
    if kept is None or kept[0] != given:
        kept = trained._engine = given, Engine(networks, trained.tokenizer, trained.int8)
    engine: Engine = kept[1]
    return engine


def in_batches(
    trained: TextModel,
    rows: Sequence[Sequence[int]],
    positions: int = 4096,
    sources: Sequence[Sequence[int]] = (),
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of like length (sources count too): their indices, tokens B T, a mask of real ones."""
    sizes = [sum(map(len, parts)) for parts in zip_longest(rows, sources, fillvalue=())]
    for batch in batch_by_length(sizes, positions):
        tokens, real = pad_batch([rows[i] for i in batch], trained.tokenizer.pad)
        yield batch, tokens.to(trained.device), real.to(trained.device)


def compute_each(
    trained: TextModel, texts: Iterable[str], compute: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[list[float]]:
    """For each text its row of `compute(tokens, real)`, in order; those of like length together."""
    for window in growing_windows(texts):
        found: dict[int, list[float]] = {}
        with torch.inference_mode():
            rows = [add_special_tokens(trained, text) for text in window]
            for batch, tokens, real in in_batches(trained, rows):
                found.update(zip(batch, compute(tokens, real).tolist(), strict=True))
        yield from (found[i] for i in range(len(window)))


def is_cut(trained: TextModel, text: str) -> bool:
    """Whether a text is longer than the model reads at once."""
    longest = min(trained.max_len, trained.max_tokens or trained.max_len) - 2
    return len(text.encode()) > longest and len(trained.tokenizer.source.encode(text)) > longest


def add_special_tokens(trained: TextModel, text: str) -> list[int]:
    """A text as the model reads it, cut to what it can read."""
    tokenizer = trained.tokenizer.source
    longest = min(trained.max_len, trained.max_tokens or trained.max_len)
    tokens = tokenizer.encode(text)[: longest - 2]
    if trained.family == "encoder-decoder":
        return [*tokens, tokenizer.end]
    texts = trained.family == "decoder-only" and trained.kind == "texts"
    return [*(tokenizer.text_start if texts else [tokenizer.start]), *tokens, tokenizer.end]
