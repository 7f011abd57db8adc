"""Atomic writes: a file or folder is complete or absent, on the disk, and never seen half written.

Also locks, bounded reads, and where caches lie. Only the standard library is imported: a test
starts and kills the checkpoint commit a few hundred times.
"""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from limelight.errors import UserError


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows flushes folders itself, and files only through a writable descriptor
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard_output(stream: TextIO) -> None:
    """Drop what is written to a stream whose reader is gone, and what it holds, without an error.

    Python flushes its streams when it exits, and an error there would change the exit status.
    """
    with suppress(OSError):  # not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def temp_sibling(path: Path) -> Path:
    """A temporary name beside this one, for what is unfinished or about to be deleted."""
    return path.with_name(f"{path.name}.tmp-{os.urandom(4).hex()}")


@contextmanager
def with_filename(path: Path) -> Iterator[None]:
    """Add the name to errors raised in this block: for a full disk the system gives none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.strerror:  # without one, `str` would show nothing else
            error.filename = str(path)
        raise


def check_output(path: str | Path, endings: tuple[str, ...]) -> None:
    """Refuse an output that could not be written, before anything is computed."""
    check_ending(path, endings)
    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"the output {path}: there is no folder {Path(path).absolute().parent}")


def check_ending(path: str | Path, endings: tuple[str, ...]) -> None:
    """Refuse an output of another kind."""
    if Path(path).suffix.lower() not in endings:
        raise UserError(f"the output {path} must end in {', '.join(endings)}")


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a small file: readers, and the next start, find the old content or the new."""
    unfinished = temp_sibling(path)
    try:
        with with_filename(path):
            unfinished.write_bytes(data)
        replace_synced(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def replace_synced(unfinished: Path, path: Path) -> None:
    """Give a finished file its name, once its content is on the disk."""
    with with_filename(path):
        sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets its name when the block ends without an error.

    The block syncs the files it writes. A folder of that name must not be there.
    """
    unfinished = temp_sibling(folder)
    try:
        unfinished.mkdir()
        with with_filename(folder):
            yield unfinished
        sync(unfinished)
        unfinished.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def open_plain(path: Path) -> IO[bytes]:
    """Open a file that anybody may have put there: no link is followed, no pipe waited for."""
    plain = stat.S_ISREG(path.lstat().st_mode)  # not all systems have the flags
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, os.O_RDONLY | flags), "rb") if plain else None
    if file is None or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise UserError(f"{path} is not a plain file")
    return file


def bounded_lines(file: IO[bytes], most: int) -> Iterator[bytes]:
    """The lines of a file; an overlong one is cut, but stays longer than the maximum."""
    while line := file.readline(most + 1):
        rest = line
        while len(rest) > most and not rest.endswith(b"\n"):
            rest = file.readline(most + 1)
        yield line


def read_bounded_bytes(path: Path, most: int = 2**25) -> bytes:
    """Read a file that anybody may have put there: no link, no pipe, never huge."""
    try:
        with open_plain(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > most:
        raise UserError(f"{path} is too large to be what it should be: over {most:,} bytes")
    return data


def read_bounded(path: Path, most: int = 2**20) -> str:
    """Read a small text file that anybody may have put there."""
    try:
        return read_bounded_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start})") from error


def cache_folder() -> Path:
    """The folder for reproducible files: LIMELIGHT_CACHE, or the system's folder for caches."""
    ours = os.environ.get("LIMELIGHT_CACHE")
    general = os.environ.get("XDG_CACHE_HOME")
    return Path(ours) if ours else Path(general or Path.home() / ".cache") / "limelight"


if sys.platform == "win32":
    import msvcrt

    def try_lock_file(file: IO[str]) -> None:
        """Lock a file; fail at once if another process holds the lock."""
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def lock_file(file: IO[str]) -> None:
        """Lock a file; wait for the lock."""
        while True:
            with suppress(OSError):  # after ten seconds Windows gives up
                return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)

else:
    import fcntl

    def try_lock_file(file: IO[str]) -> None:
        """Lock a file; fail at once if another process holds the lock."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A forked child would hold the lock too, and after the death of this process still.
        os.register_at_fork(after_in_child=file.close)

    def lock_file(file: IO[str]) -> None:
        """Lock a file; wait for the lock."""
        fcntl.flock(file, fcntl.LOCK_EX)
