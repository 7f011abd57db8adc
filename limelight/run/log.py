"""The log of a run: one JSON object a line, in `log.jsonl`.

A resumed run first removes what was logged after its checkpoint: the log reads as if nothing had
happened. Only the fields of `_TIMING` differ between two runs.
"""

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from limelight.errors import UserError
from limelight.files import atomic_write, bounded_lines, open_plain

_TIMING = ("seconds", "tokens_per_second", "peak_memory")  # what no two runs have in common
_RENAMED = {"rate": "lr", "norm": "grad_norm", "memory": "peak_memory"}  # since 0.1.0
_LONGEST = 2**20  # bytes of a line; one with the examples of a large batch has some 100,000
_NUMBERS = {  # what entries of each kind must have
    "lr": ("lr", "loss", "tokens"),
    "validation": ("loss",),
    "spike": ("loss", "usual"),
}
Entry = dict[str, Any]


class Log:
    """Appends to a log file. What a full disk rejects waits here, until `sync` raises the error.

    `also`, a Logger, receives every line too.
    """

    def __init__(self, path: Path, also: Any = None) -> None:
        self.path, self.also = path, also
        self.file = path.open("ab", buffering=0)
        self.waiting = b""

    def add(self, entry: Entry) -> None:
        self.waiting += json.dumps(entry).encode() + b"\n"
        with suppress(OSError):
            self.write()
        if self.also is not None:
            self.also.add(entry)

    def write(self) -> None:
        while self.waiting:
            self.waiting = self.waiting[self.file.write(self.waiting) :]

    def sync(self) -> None:
        """Flush all lines, before a checkpoint says that they were written."""
        self.write()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()
        if self.also is not None:
            self.also.close()


def read_log(path: Path) -> Iterator[Entry]:
    """The complete entries of a log; old names of fields become today's."""
    return (entry for entry in _parsed(path) if entry is not None)


def _parsed(path: Path) -> Iterator[Entry | None]:
    """The entries of a log, and None for each line that is not one; anybody may have edited it."""
    try:
        file = open_plain(path)
    except (OSError, UserError):
        return
    with file:
        for line in bounded_lines(file, _LONGEST):
            if line.endswith(b"\n") or len(line) > _LONGEST:  # else its run was killed
                yield _parse(line)


def _parse(line: bytes) -> Entry | None:
    try:
        found = json.loads(line.decode())
        entry = {_RENAMED.get(key, key): value for key, value in found.items()}
        values = [value if isinstance(value, list) else [value] for value in entry.values()]
        flat = all(_is_plain(value) for value in (*entry, *chain.from_iterable(values)))
    except (ValueError, AttributeError, RecursionError):
        return None
    step, needed = entry.get("step"), chain(*(_NUMBERS[kind] for kind in _NUMBERS.keys() & entry))
    numbers = _is_number(step) and all(_is_number(entry.get(name)) for name in needed)
    lists = all(isinstance(entry.get(name, []), list) for name in ("examples", "samples"))
    valid = flat and numbers and lists and isinstance(step, int) and step >= 0
    return _with_objective(entry) if valid else None


def _with_objective(entry: Entry) -> Entry:
    """A training line with the loss and the objective apart: 0.1.0 wrote the latter as `loss`.

    It wrote exp(loss) as perplexity. Label smoothing raises the loss; where that is not so, as for
    an image tokenizer, whose perplexity is another thing, there is nothing to correct.
    """
    known: Any = entry.get("perplexity")
    if "lr" not in entry or "objective" in entry or not _is_number(known) or known < 1:
        return entry
    return entry | {"objective": entry["loss"], "loss": min(entry["loss"], math.log(known))}


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return abs(value) < 1e100  # not NaN either
    return type(value) is int and abs(value) < 2**53


def _is_plain(value: object) -> bool:
    """Whether JSON can have it again: no nesting, no thousand digits, no half of a character."""
    if isinstance(value, str):
        value.encode()  # or a UnicodeEncodeError, which is a ValueError
    return value is None or isinstance(value, str | bool | float) or _is_number(value)


def cut_log(path: Path, step: int, validated: int) -> None:
    """Remove what was logged after a step, and validations after another: they come again."""
    kept = (e for e in read_log(path) if e["step"] <= (validated if "validation" in e else step))
    atomic_write(path, "".join(json.dumps(entry) + "\n" for entry in kept).encode())


def without_timing(entry: Entry) -> Entry:
    """An entry without what differs between two runs of the same recipe."""
    return {key: value for key, value in entry.items() if key not in _TIMING}


def summary(path: Path) -> Entry:
    """The last training line, the best validation, and how many lines cannot be read."""
    last = best = None
    unreadable = 0
    for entry in _parsed(path):
        if entry is None:
            unreadable += 1
        elif "lr" in entry:
            last = entry
        elif "validation" in entry and (best is None or entry["loss"] < best["loss"]):
            best = entry
    found = {"last": last, "best_validation": best}
    shown = {name: entry and without_timing(entry) for name, entry in found.items()}
    return {**shown, "unreadable": unreadable}
