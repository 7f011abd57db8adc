"""Classify a text."""

from collections.abc import Iterable, Iterator

import torch

from limelight.decode.engine import growing_windows
from limelight.tasks.text_model import TextModel, add_special_tokens, in_batches


def classify(trained: TextModel, texts: Iterable[str]) -> Iterator[dict[str, float]]:
    """For each text the probability of every class, the most likely first."""
    trained.require("classify")
    for window in growing_windows(texts):
        rows = [add_special_tokens(trained, text) for text in window]
        found: list[dict[str, float]] = [{} for _ in rows]
        with torch.inference_mode():
            for batch, tokens, real in in_batches(trained, rows):
                probabilities = trained.model(tokens, real=real).softmax(dim=-1)
                for i, row in zip(batch, probabilities.tolist(), strict=True):
                    named = zip(trained.classes, row, strict=True)
                    found[i] = dict(sorted(named, key=lambda pair: -pair[1]))
        yield from found
