"""Turn a text into a vector that can be compared with others."""

from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.nn import functional as F

from limelight.tasks.text_model import TextModel, compute_each, networks_of


def embed(trained: TextModel, texts: Iterable[str]) -> Iterator[list[float]]:
    """For each text a unit vector: the mean of the states of its tokens, normalized.

    A published sentence encoder may use the state of its first token instead.
    """
    trained.require("embed")

    def vectors(tokens: Tensor, real: Tensor) -> Tensor:
        states = token_states(trained, tokens, real)
        if trained.pooling == "first":
            return F.normalize(states[:, 0], dim=-1)
        kept = states.masked_fill(~real[..., None], 0)
        return F.normalize(kept.sum(dim=1) / real.sum(dim=1, keepdim=True), dim=-1)

    yield from compute_each(trained, texts, vectors)


def token_states(trained: TextModel, tokens: Tensor, real: Tensor) -> Tensor:
    """The states of all tokens after the last layer, B T D."""
    model = networks_of(trained)[0]
    if trained.family == "encoder-only":
        states = model.encode(tokens, real=real)
    else:
        read = model.decode if trained.family == "decoder-only" else model.encode
        states = read(tokens, real)
    found: Tensor = getattr(states, "states", states)  # a recurrence returns its last state too
    return found
