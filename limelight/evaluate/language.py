"""How well a model foresees a text.

Its surprise is the negative log-probability of what came, in nats, summed over all of it.
"""

import math
from collections.abc import Iterable

from limelight.errors import UserError


def bits_per_byte(surprise: float, text_bytes: int) -> float:
    """What a byte of the text would take, were the model used to compress it."""
    _check_count(text_bytes, "bytes")
    return surprise / math.log(2) / text_bytes


def accuracy(right: int, asked: int) -> float:
    """The share of answers that were right."""
    _check_count(asked, "answers")
    if not 0 <= right <= asked:
        raise UserError(f"{right:,} of {asked:,} answers cannot be right")
    return right / asked


def count_bytes(texts: Iterable[str]) -> int:
    """How long texts are in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _check_count(count: int, kind: str) -> None:
    """Of nothing there is no average."""
    if count < 1:
        raise UserError(f"there is nothing to score: {count} {kind}")
