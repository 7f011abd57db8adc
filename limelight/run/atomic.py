"""The checkpoint commit: complete or absent, whatever kills the process, the machine or the disk.

A checkpoint is a folder, written under a temporary name and renamed when all of it is on the disk.
Its manifest, written last, has each file's size and SHA-256, so that later damage is noticed too.
There is no pointer to the newest one that could be wrong: readers list the folders.

Only the standard library is imported: a test starts this a few hundred times and kills it at each
of its system calls.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

from limelight.errors import UserError
from limelight.files import atomic_folder, sync, temp_sibling, try_lock_file

_FORMAT = 1  # of the manifest
MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-([0-9]{6}|[1-9][0-9]{6,})")
LOCK = ".lock"
_Manifest = dict[str, tuple[Any, Any]]  # each file's size and hash
_Examine = Callable[[Path], object]


def commit(folder: Path, write: Callable[[Path], None]) -> None:
    """Make a checkpoint of the files that `write` puts into a folder: all of it, or nothing.

    A valid one that is already there stays: a resumed run writes the same bytes at the same step.
    """
    if find_damage(folder) is None:
        sync(folder.parent)  # the run that wrote it may have been killed just before this
        return
    if os.path.lexists(folder):
        remove_atomically(folder)
    make_folder(folder.parent)
    with atomic_folder(folder) as unfinished:
        write(unfinished)
        write_manifest(unfinished)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that a power cut does not lose them."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_manifest(folder: Path) -> None:
    """Sync every file, and then write the manifest with their sizes and hashes."""
    files = {}
    for name, size in _files_in(folder).items():
        sync(folder / name)
        files[name] = {"size": size, "sha256": sha256_of(folder / name)}
    with (folder / MANIFEST).open("x", encoding="utf-8") as manifest:
        json.dump({"format": _FORMAT, "files": files}, manifest, indent=1)
    sync(folder / MANIFEST)


def _files_in(folder: Path) -> dict[str, int]:
    sizes = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise ValueError(f"{entry.name!a:.80} is not a plain file")
            sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


def sha256_of(path: Path) -> str:
    """The hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def remove_atomically(folder: Path) -> None:
    """Delete a checkpoint: first its name, so that no half of it is mistaken for one."""
    doomed = temp_sibling(folder)
    folder.rename(doomed)
    sync(folder.parent)
    _remove(doomed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def find_damage(folder: Path, examine: _Examine = lambda _: None) -> str | None:
    """Why this is no valid checkpoint, or None; opens only what the folder lists, never fails.

    `examine` may raise a ValueError before all of its bytes are read and hashed.
    """
    try:
        if folder.is_symlink():
            return "it is a link"
        sizes = _files_in(folder)
        listed = _read_manifest(folder / MANIFEST, sizes.pop(MANIFEST, None))
        return _difference(folder, listed, sizes, examine)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _read_manifest(path: Path, size: int | None) -> _Manifest:
    if size is None:
        raise ValueError(f"{MANIFEST} is missing")
    if size > 2**20:  # bytes; ours have a few hundred
        raise ValueError(f"{MANIFEST} is too large")
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format"]
        files = {name: (file["size"], file["sha256"]) for name, file in manifest["files"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{MANIFEST} is no manifest") from None
    if version != _FORMAT:
        raise ValueError(f"{MANIFEST} is of another format than {_FORMAT}")
    return files


def _difference(
    folder: Path, listed: _Manifest, sizes: dict[str, int], examine: _Examine
) -> str | None:
    for name in sorted(listed.keys() | sizes.keys()):
        shown = f"{name!a:.80}"  # a name may hold anything, and be long
        if name not in sizes:
            return f"{shown} is missing"
        if name not in listed:
            return f"{shown} is not in the manifest"
        if listed[name][0] != sizes[name]:
            return f"{shown} has another size"
    examine(folder)
    for name, (_, sha256) in sorted(listed.items()):
        if sha256 != sha256_of(folder / name):
            return f"{name!a:.80} has another content"
    return None


def list_checkpoints(parent: Path) -> list[Path]:
    """Folders named like checkpoints, newest first."""
    try:
        matches = [_NAME.fullmatch(name) for name in os.listdir(parent)]
    except FileNotFoundError:
        return []
    steps = {int(match[1]): parent / match[0] for match in matches if match}
    return [steps[step] for step in sorted(steps, reverse=True)]


def latest_valid(parent: Path, examine: _Examine = lambda _: None) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint, and a sentence about each newer one that is damaged.

    Another process may be saving and pruning. A checkpoint disappears all at once, so a reader that
    finds one of its files gone starts again.
    """
    passed: list[str] = []
    for folder in list_checkpoints(parent):
        why = find_damage(folder, examine)
        if why is None:
            return folder, passed
        if not os.path.lexists(folder):  # pruned just now, so newer ones have come
            return latest_valid(parent, examine)
        passed.append(f"{folder.name} is damaged and passed over: {why}")
    return None, passed


def prune(parent: Path, keep: int, spare: Iterable[str] = (), written: Container[str] = ()) -> None:
    """Delete what is older than the newest `keep` valid checkpoints, except those to `spare`.

    At least one valid checkpoint stays, whatever `keep` is. Those that this process has `written`
    and hashed are not read again.
    """
    spared, valid = set(spare), 0
    for folder in list_checkpoints(parent):
        if valid < max(keep, 1):
            valid += folder.name in written or find_damage(folder) is None
        elif folder.name not in spared:
            remove_atomically(folder)


def remove_stale_temp(parent: Path) -> None:
    """Delete what dead runs left under temporary names; nobody else may be writing here."""
    for path in parent.glob("*.tmp-" + "[0-9a-f]" * 8):
        _remove(path)


def was_used_before(folder: Path) -> bool:
    """Whether a training ran here before, even one that could not begin."""
    return (folder / LOCK).exists()


@contextmanager
def lock(folder: Path, working: str = "training") -> Iterator[None]:
    """Keep other processes from working here; the kernel releases it however this one ends."""
    make_folder(folder)
    with (folder / LOCK).open("a", encoding="utf-8") as file:
        try:
            try_lock_file(file)
        except (BlockingIOError, PermissionError):  # on Unix, on Windows
            raise UserError(
                f"another process is {working} in {folder}: wait for it, or choose another folder"
            ) from None
        yield


def check_disk_space(parent: Path, needed: int) -> None:
    """Fail before the disk is full, and not in the middle of a save; a fifth more must be free."""
    free = shutil.disk_usage(parent).free
    if free < 1.2 * needed:
        why = f"{needed:,} bytes are to be written and {free:,} are free"
        raise OSError(errno.ENOSPC, why, str(parent))
