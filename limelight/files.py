"""Files that are really on the disk: synced, never seen half written, locked; and where caches lie.

Only the standard library is imported, so that a test can start the committer a few hundred times.
"""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from limelight.errors import UserError


def sync(path: Path) -> None:
    """Have a file or folder really written, not only promised."""
    if sys.platform == "win32" and path.is_dir():
        return  # Windows writes folders by itself, and files only through a writable descriptor
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temp_sibling(path: Path) -> Path:
    """A name beside this one, for what is not finished yet or about to go."""
    return path.with_name(f"{path.name}.tmp-{os.urandom(4).hex()}")


@contextmanager
def with_filename(path: Path) -> Iterator[None]:
    """What cannot be written in here is told by name: of a full disk the system gives none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.strerror:  # without one, `str` would show nothing else
            error.filename = str(path)
        raise


def atomic_write(path: Path, data: bytes) -> None:
    """Write a small file anew: a reader, and the next start, find the old or the new one whole."""
    unfinished = temp_sibling(path)
    try:
        with with_filename(path):
            unfinished.write_bytes(data)
            sync(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)


def read_bounded(path: Path, most: int = 2**20) -> str:
    """A small text file that a stranger may have put there: no link, no pipe, and never huge."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UserError(f"{path} is not a plain file")
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise UserError(f"{path} is too large to be what it should be: over {most:,} bytes")
        return data.decode()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start})") from error


def cache_folder() -> Path:
    """The folder for what can be had again: LIMELIGHT_CACHE, or where caches lie on this system."""
    ours = os.environ.get("LIMELIGHT_CACHE")
    general = os.environ.get("XDG_CACHE_HOME")
    return Path(ours) if ours else Path(general or Path.home() / ".cache") / "limelight"


if sys.platform == "win32":
    import msvcrt

    def try_lock_file(file: IO[str]) -> None:
        """Lock a file, or fail at once when another process has."""
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def lock_file(file: IO[str]) -> None:
        """Lock a file, when nobody else has it any more."""
        while True:
            with suppress(OSError):  # after ten seconds Windows gives up
                return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)

else:
    import fcntl

    def try_lock_file(file: IO[str]) -> None:
        """Lock a file, or fail at once when another process has."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A forked child would hold the lock too, and after the death of this process still.
        os.register_at_fork(after_in_child=file.close)

    def lock_file(file: IO[str]) -> None:
        """Lock a file, when nobody else has it any more."""
        fcntl.flock(file, fcntl.LOCK_EX)
