"""Files to read: folders, globs and archives are expanded; contents are unpacked and recoded."""

import codecs
import glob
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast

from limelight.errors import UserError
from limelight.files import atomic_write, bounded_lines, cache_folder

PACKED = (".gz", ".xz")
LONGEST_LINE = 4 * 2**24 + 2  # bytes; no text may have more than 2**24 characters
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_HEAD = 2**16  # bytes in which the encoding is recognised
_NO_TEXT = {
    b"PK\3\4": "a .zip, .xlsx or .docx file",
    b"%PDF-": "a .pdf file",
    b"\xd0\xcf\x11\xe0": "an .xls or .doc file",
    b"\x1f\x8b": "a .gz file",
    b"\xfd7zXZ": "an .xz file",
    b"PAR1": "a .parquet file",
}
_LATIN = re.compile(rb"[A-Za-z][\xc0-\xff]|[\xc0-\xff][A-Za-z]")  # a foreign letter inside a word


def find_files(names: Iterable[str]) -> list[Path]:
    """The files that names stand for: a folder or a .zip is all files in it, in order of name."""
    return [file for name in names for found in _find(name) for file in _members(found)]


def _find(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        hidden = [any(part[0] == "." for part in f.relative_to(path).parts) for f in inside]
        if all(hidden):
            raise UserError(f"{path} is a folder without files")
        return [file for file, skip in zip(inside, hidden, strict=True) if not skip]
    if path.exists() or not glob.has_magic(name):
        return [path]
    if not (
        found := sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
    ):
        raise UserError(f"no file matches {name}{_searched(path)}")
    return [Path(file) for file in found]


def _members(path: Path) -> list[Path]:
    if path.suffix != ".zip" or not path.is_file():
        return [path]
    with _sentences(path), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    wanted = [name for name in names if not name.startswith(("__MACOSX/", "."))]
    if not wanted:
        raise UserError(f"{path} holds no file")
    return [path / name for name in sorted(wanted)]


def archive_of(path: Path) -> Path | None:
    """The .zip file that a path leads into."""
    return next((up for up in path.parents if up.suffix == ".zip" and up.is_file()), None)


def ending_of(path: Path) -> str:
    """What a file's name says of its content: .csv for a.csv.gz."""
    return next((end.lower() for end in path.suffixes[::-1] if end.lower() not in PACKED), "")


def _searched(path: Path) -> str:
    return "" if path.is_absolute() else f" (from {Path.cwd()})"


def raw_lines(path: Path, encoding: str = "") -> Iterator[bytes]:
    """The lines of a file as UTF-8, unpacked; of a huge line, the beginning."""
    with opened(path, encoding=encoding) as file:
        yield from bounded_lines(file, LONGEST_LINE)


def cached_sha256(path: Path, unpack: bool = True) -> tuple[str, int]:
    """SHA-256 and lines of a file, unpacked or as it is; unchanged files are not read again."""
    archive = archive_of(path)
    with _sentences(path):
        stat = (archive or path).stat()
    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"  # anybody can set the first
    seen = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {times} {unpack and path.suffix}"
    seen += f" {path.relative_to(archive)}" if archive else ""
    note = cache_folder() / "hashes" / sha256(seen.encode()).hexdigest()
    with suppress(OSError, ValueError):
        known, count = note.read_text("ascii").split()
        return known, int(count)
    digest, lines = sha256(), 0
    with opened(path, unpack) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
            lines += chunk.count(b"\n")
    with suppress(OSError):  # a folder that cannot be written to only costs the reading
        note.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(note, f"{digest.hexdigest()} {lines}".encode())
    return digest.hexdigest(), lines


@contextmanager
def opened(path: Path, unpack: bool = True, encoding: str = "") -> Iterator[IO[bytes]]:
    """A file's content, unpacked, from another encoding as UTF-8; errors are sentences."""
    with _sentences(path), open_packed(path, unpack) as file:
        yield cast(IO[bytes], io.BufferedReader(_Recoded(file, encoding))) if encoding else file


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except UserError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        gone = _searched(path) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"cannot read {path}: {why}{gone}") from error


def open_packed(path: Path, unpack: bool = True) -> IO[bytes]:
    """A file's bytes, unpacked by its ending; a pipe is rejected: data is read more than once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path} is a pipe or a device, and is read twice: write it into a file")
    unpackers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open} if unpack else {}
    unpacker = unpackers.get(path.suffix)
    if (archive := archive_of(path)) is not None:
        try:
            files = zipfile.ZipFile(archive)  # its member closes it
            member = files.open(path.relative_to(archive).as_posix())
        except (KeyError, RuntimeError) as error:  # no such member; it has a password
            raise UserError(f"cannot read {path}: {error.args[0]}") from error
        return cast(IO[bytes], unpacker(member, "rb")) if unpacker else member
    return cast(IO[bytes], (unpacker or open)(path, "rb"))


class _Recoded(io.RawIOBase):
    """A file in another encoding, read as UTF-8; what is invalid becomes U+FFFD."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self.file, self.rest = file, b""
        self.decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            chunk = self.file.read(_HEAD)
            self.rest = self.decoder.decode(chunk, final=not chunk).encode("utf-8", "replace")
            if not chunk:
                break
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def check_text(path: Path, remedy: str) -> bytes:
    """The first bytes of a file; refuse UTF-16, naming what helps, and what is no text."""
    with opened(path) as file:
        head = file.read(_HEAD)
    if other := next((name for begin, name in _NO_TEXT.items() if head.startswith(begin)), ""):
        raise UserError(
            f"{path} is not text but {other}: save its content as .txt, .csv or .jsonl, or give it "
            "the ending of what it is"
        )
    if found := _utf16(head):
        raise UserError(f"{path} is in UTF-16: {remedy.format(found)}")
    return head


def check_utf8(path: Path) -> None:
    """Refuse a file that begins like UTF-16 or Latin-1, and name the option that reads it."""
    head = check_text(path, "read it with --data.encoding {}")
    lines = head.split(b"\n")[: -1 if len(head) == _HEAD else None]  # the last may be cut
    foreign = [line for line in lines if not line.isascii()]
    other = [line for line in foreign if line.decode(errors="ignore").encode() != line]
    latin = [line for line in other if _LATIN.search(line)]
    if len(latin) > len(foreign) / 2:
        windows = any(byte in line for line in other for byte in range(0x80, 0xA0))
        name = "cp1252" if windows else "latin-1"
        text = " ".join(latin[0].decode(name, "replace").split())
        if any(ord(letter) < 32 for letter in text):
            raise UserError(f"{path} is not text: it begins with {head[:16]!r}")
        raise UserError(
            f"{path} is not in UTF-8, and reads well as {name} ({text:.50}): read it with "
            f"--data.encoding {name}, or leave such lines out with --data.encoding utf-8"
        )


def _utf16(head: bytes) -> str:
    """The name of the UTF-16 that bytes are in, if they are."""
    begin = head[:1000]
    marked = begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if marked and 0 in begin:
        return "utf-16"
    little, big = (begin[i::2].count(0) > 0.4 * len(begin[i::2]) > 2 for i in (1, 0))
    return "utf-16-le" if little and not big else "utf-16-be" if big and not little else ""
