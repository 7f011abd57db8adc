"""The output of a long job in a file: complete under its name, and until then resumable.

While the job runs, FILE.partial is a folder with the output so far and state.json: how many lines
are answered by how many bytes of it, and for which input, model and settings. The state is written
once a second, when those bytes are on the disk. Whatever ends the process, the next call cuts off
what came after the state, and goes on.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limelight.errors import UserError
from limelight.files import atomic_write, read_bounded, replace_synced, with_filename
from limelight.run.atomic import lock

if TYPE_CHECKING:
    from limelight.loading import LoadedModel

_SECONDS = 1.0  # between two states
_Job = dict[str, Any]  # what the output depends on, by name
_Note = Callable[[str], None]  # for the user


def job_of(
    command: str, input_hash: str, loaded: "LoadedModel", settings: Mapping[str, Any]
) -> _Job:
    """All that decides on the output, as JSON; long values as their hash."""
    from limelight.run.weights import hash_weights
    from limelight.tasks.text_model import networks_of

    parts = (loaded.tokenizer.hash, *map(hash_weights, networks_of(loaded.full_precision)))
    model = sha256(" ".join(parts).encode()).hexdigest()
    shown = {name: json.dumps(value, default=repr) for name, value in settings.items()}
    short = {
        name: text if len(text) < 100 else sha256(text.encode()).hexdigest()
        for name, text in shown.items()
    }
    return {"command": command, "input": input_hash, "model": model, **short}


class OutputFile:
    """What is written instead of stdout, and how far it got."""

    def __init__(self, folder: Path, job: _Job, note: _Note) -> None:
        self.folder, self.job = folder, job
        self.lines = self.problems = size = 0
        if (state := self._read_state())["lines"]:
            self._check(state["job"])
            self.lines, self.problems, size = (state[k] for k in ("lines", "problems", "bytes"))
            note(f"{folder} has the first {self.lines:,} lines: continuing")
        file = (folder / "output").open("ab")
        if file.seek(0, os.SEEK_END) < size:
            raise UserError(f"{file.name} is shorter than it was: delete {folder}")
        file.truncate(size)
        file.seek(size)
        self.file = TextIOWrapper(file, "utf-8", "replace", newline="\n")
        self.due = time.monotonic() + _SECONDS

    def _read_state(self) -> dict[str, Any]:
        path = self.folder / "state.json"
        if not path.exists():
            return {"lines": 0}
        try:
            state: dict[str, Any] = json.loads(read_bounded(path))
            counts = [int(state[key]) for key in ("lines", "problems", "bytes")]
            if min(counts) < 0 or not isinstance(state["job"], dict):
                raise ValueError
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} is damaged: delete {self.folder}") from error
        return state

    def _check(self, before: _Job) -> None:
        for name in self.job:
            if before.get(name) != self.job[name]:
                raise UserError(
                    f"{self.folder} was begun with another {name}: give the same again, write to "
                    f"another file, or delete this folder to begin anew"
                )

    def save_if_due(self, lines: int, problems: int) -> None:
        if time.monotonic() >= self.due:
            self.save(lines, problems)
            self.due = time.monotonic() + _SECONDS

    def save(self, lines: int, problems: int) -> None:
        """First the output, then what is known of it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        state = {"job": self.job, "lines": lines, "problems": problems}
        state["bytes"] = self.file.buffer.tell()
        atomic_write(self.folder / "state.json", json.dumps(state).encode())
        self.lines = lines


@contextmanager
def resumable(path: Path, job: _Job, note: _Note) -> Iterator[OutputFile]:
    """What is printed goes to a file, which has its name when the block ends without an error."""
    folder = path.with_name(f"{path.name}.partial")
    if os.path.lexists(path):
        raise UserError(f"{path} exists already: delete it, or write to another file")
    lines = 0
    try:
        with lock(folder, "writing"):
            output = OutputFile(folder, job, note)
            try:
                with with_filename(path), output.file, redirect_stdout(output.file):
                    yield output
            finally:
                lines = output.lines
            replace_synced(folder / "output", path)
    except BaseException:
        if lines:
            note(f"the first {lines:,} lines are in {folder}: the same command continues")
        raise
    shutil.rmtree(folder, ignore_errors=True)
