"""Turn a text into a vector that can be compared with others."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from limelight.tasks.text_model import TextModel, compute_each


def embed(trained: TextModel, texts: Iterable[str]) -> Iterator[list[float]]:
    """For each text a unit vector: the mean of the states of its tokens, normalized.

    A published sentence encoder may use the state of its first token instead.
    """
    trained.require("embed")
    model: Any = trained.model
    read = model.decode if trained.family == "decoder-only" else model.encode

    def vectors(tokens: Tensor, real: Tensor) -> Tensor:
        states = read(tokens, real=real) if trained.family == "encoder-only" else read(tokens, real)
        states = getattr(states, "states", states)  # a recurrent encoder returns its last state too
        if trained.pooling == "first":
            return F.normalize(states[:, 0], dim=-1)
        kept = states.masked_fill(~real[..., None], 0)
        return F.normalize(kept.sum(dim=1) / real.sum(dim=1, keepdim=True), dim=-1)

    yield from compute_each(trained, texts, vectors)
