"""The log of a run: one JSON object a line, in `log.jsonl`.

A resumed run first removes what was logged after its checkpoint: the log reads as if nothing had
happened. Only the fields of `_TIMING` differ between two runs.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from limelight.files import atomic_write

_TIMING = ("seconds", "tokens_per_second", "peak_memory")  # what no two runs have in common
_RENAMED = {"rate": "lr", "norm": "grad_norm", "memory": "peak_memory"}  # since 0.1.0
Entry = dict[str, Any]


class Log:
    """Appends to a log file. What a full disk rejects waits here, until `sync` raises the error.

    `also`, a TensorBoardSink, receives every line too.
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
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                return  # the last line of a run that was killed
            if not line.endswith("\n") or not isinstance(entry, dict):
                return
            yield {_RENAMED.get(str(key), str(key)): value for key, value in entry.items()}


def cut_log(path: Path, step: int, validated: int) -> None:
    """Remove what was logged after a step, and validations after another: they come again."""
    kept = ""
    for entry in read_log(path):
        if entry.get("step", 0) <= (validated if entry.get("validation") else step):
            kept += json.dumps(entry) + "\n"
    atomic_write(path, kept.encode())


def without_timing(entry: Entry) -> Entry:
    """An entry without what differs between two runs of the same recipe."""
    return {key: value for key, value in entry.items() if key not in _TIMING}


def summary(path: Path) -> Entry:
    """The last training line, and the best validation."""
    entries = [without_timing(entry) for entry in read_log(path)]
    train = [entry for entry in entries if "lr" in entry]
    valid = [entry for entry in entries if entry.get("validation")]
    best = min(valid, key=lambda entry: float(entry["loss"]), default=None)
    return {"last": train[-1] if train else None, "best_validation": best}
