"""Classify a text, and see what each word does to it."""

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from limelight.tasks.text_model import TextModel, compute_each

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")


def classify(trained: TextModel, texts: Iterable[str]) -> Iterator[dict[str, float]]:
    """For each text the probability of every class, the most likely first."""
    trained.require("classify")

    def probabilities(tokens: Tensor, real: Tensor) -> Tensor:
        return torch.softmax(trained.model(tokens, real=real), dim=-1)

    for row in compute_each(trained, texts, probabilities):
        yield dict(sorted(zip(trained.classes, row, strict=True), key=lambda pair: -pair[1]))


def word_effects(trained: TextModel, text: str) -> list[tuple[str, float]]:
    """What each word adds to the probability of the most likely class (leave-one-out).

    Every word is removed once, and the text classified again.
    """
    words = list(_WORD.finditer(text))
    without = [text[: word.start()] + text[word.end() :] for word in words]
    whole, *others = classify(trained, [text, *without])
    best = next(iter(whole))
    return [(w.group(), whole[best] - other[best]) for w, other in zip(words, others, strict=True)]
