"""A corpus as a stream of examples: from files, the Hugging Face hub or a toy; judged and counted.

An example is a source and a target (`pairs`, `dialogues`), a text (`texts`), or a text and its
label (`labelled`). In valid and test, a source may have several targets: its references. Nothing is
dropped silently: lines read == examples used + lines rejected, reason by reason.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from string import ascii_lowercase
from typing import Any

from limelight.data.config import DataConfig, files_of, num_columns, tags_of
from limelight.data.lines import Example, Fragment, LineStats
from limelight.data.questions import QUESTIONS, make_questions
from limelight.data.readers import read_entries, read_files
from limelight.data.tokenizer import Tokenizer, TokenizerConfig
from limelight.errors import UserError

TOYS: dict[str, Callable[[list[str]], list[str]]] = {
    "reverse": lambda words: words[::-1],
    "copy": lambda words: words,
    "sort": sorted,
}


def read_split(data: DataConfig, split: str, tally: LineStats | None = None) -> Iterator[Example]:
    """The examples of `train`, `valid` or `test` in order; at the end a given tally is complete."""
    tally = LineStats() if tally is None else tally
    parts = corpora_for_split(data, split)
    if not parts:
        raise UserError(f"data.{split} names no file")
    for part in parts:
        yield from _read_part(part, split, tally)
    tally.check()


def train_tokenizer(data: DataConfig, config: TokenizerConfig) -> Tokenizer:
    """A tokenizer for the training split, which it has learned from; labels are no texts."""
    examples = read_split(data, "train")
    texts = (text for example in examples for text in example[: num_columns(data)])
    return Tokenizer.train(config.kind, texts, config.vocab, tags_of(data))


def corpora_for_split(data: DataConfig, split: str) -> tuple[DataConfig, ...]:
    """The corpora that have a split; for data of one corpus, that one or none."""
    if not data.corpora:
        return (data,) if _has(data, split) else ()
    if getattr(data, split):  # validation files for all of them together
        return (replace(data, corpora=()),)
    return tuple(corpus for corpus in data.corpora if _has(corpus, split))


def _has(data: DataConfig, split: str) -> bool:
    if data.hub and not data.hold_out:
        return split in _hub_splits(data.hub)
    return bool(data.toy or data.hub or files_of(data, split))


def _read_part(data: DataConfig, split: str, tally: LineStats) -> Iterator[Example]:
    if data.toy:
        yield from _make_toys(data, split, tally)
        return
    rows = enumerate(hub_rows(data, split), 1) if data.hub else None
    longest = 2**62 if data.stream or data.valid_tail else data.max_chars  # a stream has any size
    found = read_files(data, split, tally) if rows is None else read_entries(data, rows, tally)
    for origin, texts in found:
        if isinstance(texts, Fragment):
            yield texts
            continue
        example = (*texts[:2], *filter(str.strip, texts[2:]))  # without missing references
        if data.hold_out and held_in(origin, data.hold_out) != split:
            tally.rejected["in another split"] += 1
        elif len(example) > 2 and (split == "train" or data.reverse):
            tally.reject("several targets", " | ".join(example))
        elif reason := _why_rejected(example, longest):
            tally.reject(reason, " | ".join(example))
        else:
            tally.used += 1
            yield (example[1], example[0]) if data.reverse else example


def held_in(origin: str, share: float) -> str:
    """Which split an example belongs to: equal sources stay together, and so does a dialogue."""
    point = int.from_bytes(sha256(origin.encode()).digest()[:6]) / 2**48
    return "valid" if point < share else "test" if point < 2 * share else "train"


def _why_rejected(example: Example, max_chars: int) -> str | None:
    if any("\0" in text for text in example):
        return "NUL"
    if not all(map(str.strip, example)):
        return "empty"
    return "too long" if max(map(len, example)) > max_chars else None


def _make_toys(data: DataConfig, split: str, tally: LineStats) -> Iterator[Example]:
    """Rows that a toy makes. No row of one split occurs in another."""
    number = {"train": 0, "valid": 1, "test": 2}[split]
    wanted = data.toy_examples if split == "train" else max(1, data.toy_examples // 10)
    made = make_questions if data.toy in QUESTIONS else _make_letters
    # Eight rows in ten are for train, one each for valid and test.
    parts = (
        (row, random.Random(row[0].replace(" ", "")).randrange(10))
        for row in made(data.toy, split, data.toy_length)
    )
    ours = (row for row, part in parts if max(0, part - 7) == number)
    for row in islice(ours, wanted):
        tally.read += 1
        tally.used += 1
        tally.line = tally.read
        yield row


def _make_letters(toy: str, split: str, longest: int) -> Iterator[Example]:
    """Random letters, and what a toy makes of them."""
    draw = random.Random(f"{toy} {split}")
    while True:
        letters = draw.choices(ascii_lowercase, k=draw.randint(1, longest))
        yield " ".join(letters), " ".join(TOYS[toy](letters))


def hub_rows(data: DataConfig, split: str) -> Any:
    """The rows of a dataset of the hub that a split is read from."""
    return _hub_splits(data.hub)["train" if data.hold_out else split]


@lru_cache
def _hub_splits(hub: str) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"hub={hub!r} needs the library datasets: pip install datasets") from error
    name, _, configuration = hub.partition(":")
    try:
        found = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # the library raises many kinds, none of them its own
        raise UserError(f"cannot load the dataset {hub} from the hub: {error}") from error
    ours = {"validation": "valid", "dev": "valid"}  # its names in the wild
    return {ours.get(split, split): rows for split, rows in found.items()}
