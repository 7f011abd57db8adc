"""Classify a text."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from limelight.tasks.text_model import TextModel, compute_each


def classify(trained: TextModel, texts: Iterable[str]) -> Iterator[dict[str, float]]:
    """For each text the probability of every class, the most likely first."""
    trained.require("classify")

    def probabilities(tokens: Tensor, real: Tensor) -> Tensor:
        return torch.softmax(trained.model(tokens, real=real), dim=-1)

    for row in compute_each(trained, texts, probabilities):
        yield dict(sorted(zip(trained.classes, row, strict=True), key=lambda pair: -pair[1]))
