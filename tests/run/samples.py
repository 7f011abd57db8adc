"""Small checkpoints whose every byte is known from their step; processes that are killed use it."""

import json
import random
from pathlib import Path

from limelight.run.atomic import MANIFEST, commit, latest_valid

Content = dict[str, bytes]


def content(step: int) -> Content:
    draw = random.Random(step)
    return {
        "optimizer.safetensors": draw.randbytes(9_000),
        "state.json": json.dumps({"step": step}).encode(),
        "weights.safetensors": draw.randbytes(20_000),
    }


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def put(folder: Path, files: Content) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def save(parent: Path, step: int) -> None:
    commit(parent / name_of(step), lambda folder: put(folder, content(step)))


def files_of(folder: Path) -> Content:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}


def load(parent: Path) -> int | None:
    """The step of the newest whole checkpoint, which has every byte it was committed with.

    A process that saves and prunes may run: what went away while it was read is looked for again.
    """
    while True:
        folder, passed = latest_valid(parent)
        assert passed == []
        if folder is None:
            return None
        try:
            files = files_of(folder)
        except FileNotFoundError:
            continue
        if not folder.exists():  # it was removed while its files were listed
            continue
        step = int(folder.name.removeprefix("step-"))
        assert files == content(step)
        return step


def names_in(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())
