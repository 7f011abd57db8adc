"""A corpus as a stream of examples: read, judged, counted.

An example is a source and a target (`pairs`, `dialogues`), a text (`texts`), or a text and its
label (`labelled`). Nothing is dropped in silence: lines read == examples used + lines refused,
reason by reason.
"""

from collections.abc import Iterator
from hashlib import sha256

from limelight.data.config import DataConfig, corpora_for_split
from limelight.data.readers import Example, LineStats, find_examples
from limelight.data.toys import make_toys
from limelight.errors import UserError


def read_split(data: DataConfig, split: str, tally: LineStats) -> Iterator[Example]:
    """The examples of `train`, `valid` or `test` in order; at the end the tally is complete."""
    parts = corpora_for_split(data, split)
    if not parts:
        raise UserError(f"data.{split} names no file")
    for part in parts:
        yield from _read_part(part, split, tally)
    tally.check()


def _read_part(data: DataConfig, split: str, tally: LineStats) -> Iterator[Example]:
    """The same for one corpus."""
    if data.toy:
        yield from make_toys(data, split, tally)
        return
    for origin, example in find_examples(data, split, tally):
        if data.hold_out and held_in(origin, data.hold_out) != split:
            tally.rejected["in another split"] += 1
        elif refusal := _refuse(example, data.max_chars):
            tally.rejected[refusal] += 1
        else:
            tally.used += 1
            yield (example[1], example[0]) if data.reverse else example


def held_in(origin: str, share: float) -> str:
    """Which split an example belongs to: equal sources stay together, and so does a dialogue."""
    place = int.from_bytes(sha256(origin.encode()).digest()[:6]) / 2**48
    return "valid" if place < share else "test" if place < 2 * share else "train"


def _refuse(example: Example, longest: int) -> str | None:
    """Why an example cannot be used, if so."""
    if any("\0" in text for text in example):
        return "NUL"
    if any(not text.strip() for text in example):
        return "empty"
    if any(len(text) > longest for text in example):
        return "too long"
    return None
