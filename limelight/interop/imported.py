"""What a reader of published models returns, and the sentence for what it cannot read.

A reader is a function `read(source: Path) -> ImportedModel`. It checks sizes before it allocates,
refuses by name whatever it does not know, and executes nothing.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.model import ModelConfig, build_empty
from limelight.run.atomic import sha256_of

FORMATS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("formats.toml").read_text("utf-8"))
NEVER = -1e9  # the logit of what is never written
Pooling = Literal["", "mean", "first"]  # how states become one vector; "" is our own mean


@dataclass(frozen=True)
class Origin:
    """Where a model came from."""

    format: str  # huggingface, gguf, fairseq, marian, ...
    architecture: str  # LlamaForCausalLM, ...
    source: str  # as the user named it
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each file that was read


@dataclass(frozen=True)
class ImportedModel:
    """A published model in our terms, not yet a run folder; one that does not fit is refused."""

    config: ModelConfig
    weights: Mapping[str, Tensor]  # by the names of `build(config).named_parameters()`
    tokenizer: Tokenizer
    origin: Origin
    kind: Literal["pairs", "texts", "labelled"]  # of the data that it learned from: what it can do
    decode: DecodeConfig = field(default_factory=partial(DecodeConfig, beam=1))
    classes: tuple[str, ...] = ()  # of a classifier of texts
    pooling: Pooling = ""  # of a sentence encoder
    max_tokens: int = 0  # of a text, at most; 0: as many as the model reads
    chat_template: str = ""  # Jinja, of a chat model
    about: str = ""  # one line for the recipe

    def __post_init__(self) -> None:
        check_weights(self.config, self.weights, self.origin.source)
        sides = {self.tokenizer.source: self.config.num_source_tokens}
        for tokenizer, most in {**sides, self.tokenizer: self.config.vocab}.items():
            if len(tokenizer) > most:
                raise UserError(
                    f"{self.origin.source}: the tokenizer has {len(tokenizer)} tokens, and the "
                    f"model {most}"
                )


def check_weights(config: ModelConfig, weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse, by name, weights that are missing, unknown, or of another shape."""
    import torch

    wanted = {name: tuple(p.shape) for name, p in build_empty(config).named_parameters()}
    for name in sorted(wanted.keys() | weights.keys()):
        if name not in weights:
            raise UserError(f"{where} has no weights for {name}")
        if name not in wanted:
            raise UserError(f"{where} has weights for {name:.80}, which this model has not")
        if (shape := tuple(weights[name].shape)) != wanted[name]:
            raise UserError(f"{where}: {name} is {shape}, and {wanted[name]} in the model")
        if not weights[name].is_floating_point() or not torch.isfinite(weights[name]).all():
            raise UserError(f"{where}: {name} has values that are not finite numbers")


def refuse_unknown(options: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """Refuse, by name, the first option that nobody here reads and that is not at rest.

    `known` has options by name: `...` for any value, or a tuple of the values that change nothing.
    """
    for name, value in options.items():
        if name not in known:
            raise UserError(f"{where}: the option {name:.80} is unknown, so it cannot be honoured")
        if known[name] is not ... and not any(
            value == one and type(value) is type(one) for one in known[name]
        ):
            raise UserError(f"{where}: {name}={value!r:.80} is not supported")


def known_values(table: Mapping[str, list[Any]]) -> dict[str, Any]:
    """A table of options in formats.toml, as `refuse_unknown` wants it."""
    return {
        name: tuple(None if one == "null" else one for one in values) or ...
        for name, values in table.items()
    }


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by its name."""
    return {path.name: sha256_of(path) for path in paths}
