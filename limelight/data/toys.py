"""Toys: examples that need no file, for a first training in seconds."""

import random
from collections.abc import Callable, Iterator

from limelight.data.config import DataConfig
from limelight.data.readers import Example, LineStats

TOYS: dict[str, Callable[[list[str]], list[str]]] = {
    "reverse": lambda words: words[::-1],
    "copy": lambda words: words,
    "sort": sorted,
}


def make_toys(data: DataConfig, split: str, tally: LineStats) -> Iterator[Example]:
    """Random letters and what a toy makes of them. No row of one split occurs in another."""
    number = {"train": 0, "valid": 1, "test": 2}[split]
    wanted = data.toy_examples if split == "train" else max(1, data.toy_examples // 10)
    draw = random.Random(f"{data.toy} {split}")
    for _ in range(wanted):
        letters = next(
            row for row in _rows_of_letters(draw, data.toy_length) if _deal(row) == number
        )
        tally.read += 1
        tally.used += 1
        yield " ".join(letters), " ".join(TOYS[data.toy](letters))


def _rows_of_letters(draw: random.Random, longest: int) -> Iterator[list[str]]:
    """Rows of 1 to `longest` letters, without end."""
    while True:
        yield draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, longest))


def _deal(row: list[str]) -> int:
    """Which split a row belongs to: eight in ten to train, one each to valid and test."""
    place = random.Random("".join(row)).randrange(10)
    return max(0, place - 7)
