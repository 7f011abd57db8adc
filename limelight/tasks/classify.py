"""Classify a text, or turn it into a vector that can be compared with others."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from limelight.decode.engine import growing_windows
from limelight.tasks.text_model import TextModel, in_batches


def classify(trained: TextModel, texts: Iterable[str]) -> Iterator[dict[str, float]]:
    """For each text the probability of every class, the likeliest first."""
    trained.require("classify")
    for window in growing_windows(texts):
        rows = [add_special_tokens(trained, text) for text in window]
        told: list[dict[str, float]] = [{} for _ in rows]
        with torch.inference_mode():
            for batch, tokens, real in in_batches(trained, rows):
                chances = trained.model(tokens, real=real).softmax(dim=-1)
                for i, row in zip(batch, chances.tolist(), strict=True):
                    named = zip(trained.classes, row, strict=True)
                    told[i] = dict(sorted(named, key=lambda pair: -pair[1]))
        yield from told


def embed(trained: TextModel, texts: Iterable[str]) -> Iterator[list[float]]:
    """For each text one vector: the mean of the states of its tokens, of length 1."""
    trained.require("embed")
    for window in growing_windows(texts):
        rows = [add_special_tokens(trained, text) for text in window]
        told: list[list[float]] = [[] for _ in rows]
        with torch.inference_mode():
            for batch, tokens, real in in_batches(trained, rows):
                states = _states_of(trained, tokens, real)
                kept = states.masked_fill(~real[..., None], 0)
                means = kept.sum(dim=1) / real.sum(dim=1, keepdim=True)
                unit = torch.nn.functional.normalize(means, dim=-1)
                for i, row in zip(batch, unit.tolist(), strict=True):
                    told[i] = row
        yield from told


def _states_of(trained: TextModel, tokens: Tensor, real: Tensor) -> Tensor:
    """The states of a text's tokens, B S D, as the family reads it."""
    model: Any = trained.model
    if trained.family == "decoder-only":
        states = model.decode(tokens, real)
    elif trained.family == "encoder-only":
        states = model.encode(tokens, real=real)
    else:
        states = model.encode(tokens, real)
    return getattr(states, "states", states)  # a recurrent encoder gives its last state too


def add_special_tokens(trained: TextModel, text: str) -> list[int]:
    """A text as the model reads it, its end cut off where there is no room."""
    tokenizer = trained.tokenizer
    tokens = tokenizer.encode(text)[: trained.max_len - 2]
    if trained.family == "encoder-decoder":
        return [*tokens, tokenizer.end]
    texts = trained.family == "decoder-only" and trained.kind == "texts"
    return [tokenizer.end if texts else tokenizer.start, *tokens, tokenizer.end]
