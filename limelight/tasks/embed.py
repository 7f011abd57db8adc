"""Turn a text into a vector that can be compared with others."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from limelight.decode.engine import growing_windows
from limelight.tasks.text_model import TextModel, add_special_tokens, in_batches


def embed(trained: TextModel, texts: Iterable[str]) -> Iterator[list[float]]:
    """For each text a unit vector: the mean of the states of its tokens, normalized."""
    trained.require("embed")
    for window in growing_windows(texts):
        rows = [add_special_tokens(trained, text) for text in window]
        found: list[list[float]] = [[] for _ in rows]
        with torch.inference_mode():
            for batch, tokens, real in in_batches(trained, rows):
                states = _states_of(trained, tokens, real)
                kept = states.masked_fill(~real[..., None], 0)
                means = kept.sum(dim=1) / real.sum(dim=1, keepdim=True)
                unit = torch.nn.functional.normalize(means, dim=-1)
                for i, row in zip(batch, unit.tolist(), strict=True):
                    found[i] = row
        yield from found


def _states_of(trained: TextModel, tokens: Tensor, real: Tensor) -> Tensor:
    """The states of a text's tokens, B S D."""
    model: Any = trained.model
    if trained.family == "decoder-only":
        states = model.decode(tokens, real)
    elif trained.family == "encoder-only":
        states = model.encode(tokens, real=real)
    else:
        states = model.encode(tokens, real)
    return getattr(states, "states", states)  # a recurrent encoder returns its last state too
