"""Downloads: resumed where they were cut, and named only when they are complete.

A file grows under another name beside its own. It gets its own when all of it has come, has passed
its check and is on the disk, so a file that exists is complete. If several processes want the same
one, one downloads it and the others wait.
"""

import gzip
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from gzip import BadGzipFile
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from rich.console import Console
from rich.filesize import decimal
from rich.progress import DownloadColumn, Progress

from limelight.errors import UserError
from limelight.files import lock_file, replace_synced

PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before the next try, while the tries bring nothing new
TIMEOUT = 30.0  # seconds of silence
_CHUNK = 2**18  # bytes
_DAMAGES = (BadGzipFile, BadZipFile, tarfile.TarError, zlib.error, EOFError, KeyError, RuntimeError)

_Check = Callable[[Path], None]  # raises a UserError for a file that must not be used


def fetch(url: str, path: Path, check: _Check = lambda _: None) -> None:
    """Download the file of an address to this path, unless it is there already."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"cannot download {url}: its address begins with neither http nor https")
    build_file(path, partial(_download, url), check)


def extract(archive: Path, member: str, path: Path, check: _Check = lambda _: None) -> None:
    """Extract one member of an archive to this path, whatever its name in the archive."""
    build_file(path, partial(_unpack, archive, member), check)


def build_file(path: Path, write: Callable[[Path], None], check: _Check) -> None:
    """Build a file with `write`: it gets its name when it is complete and verified."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w", encoding="utf-8") as lock:
            lock_file(lock)  # released with its holder: a killed one blocks nobody
            if path.is_file():
                return
            part = path.with_name(f"part-{path.name}")  # its ending still says how it is packed
            write(part)
            try:
                check(part)
            except UserError as error:
                refused = path.with_name(f"refused-{path.name}")
                part.replace(refused)
                raise UserError(f"{error}; it is kept as {refused} and not used") from error
            replace_synced(part, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _download(url: str, part: Path) -> None:
    furthest, pauses = 0, iter(PAUSES)
    while True:
        try:
            _receive(url, part)
            return
        except (OSError, HTTPException) as error:
            have = _size(part)
            if have > furthest:  # this try was of use: be patient anew
                furthest, pauses = have, iter(PAUSES)
            pause = next(pauses, None)
            if pause is None or not part.exists():
                raise UserError(f"{url} cannot be downloaded: {_reason(error)}") from error
            time.sleep(pause)


def _receive(url: str, part: Path) -> None:
    mark = part.with_name(f"{part.name}.version")
    version = mark.read_text("latin-1") if mark.exists() else ""
    have = _size(part) if version else 0
    with _request(url, have, version) as response:
        start = have if response.status == 206 else 0
        begins = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status == 206 and not (begins and _version_of(response) in (version, "")):
            mark.unlink(missing_ok=True)
            raise HTTPException("the server continued with another file")
        total = None if response.length is None else start + response.length
        with part.open("ab" if start else "wb") as file, _progress(url, start, total) as advance:
            if not start:  # written only now: the bytes of another version are gone
                mark.write_text(_version_of(response), "latin-1")
            while chunk := response.read1(_CHUNK):
                file.write(chunk)
                advance(len(chunk))
    if total is not None and _size(part) != total:
        raise HTTPException(f"the connection was cut after {_size(part):,} of {total:,} bytes")
    mark.unlink()


def _request(url: str, have: int, version: str) -> HTTPResponse:
    """Ask for a file; with `have` bytes of a version there, for the rest of that version only."""
    rest = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
    request = Request(url, headers={"User-Agent": "limelight", **rest})
    try:
        return cast(HTTPResponse, urlopen(request, timeout=TIMEOUT))
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        return _request(url, 0, "")  # there is no rest: what is here cannot be a beginning of it


def _version_of(response: HTTPResponse) -> str:
    """The tag or date that identifies this version of the file; a weak tag (W/) does not."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


@contextmanager
def _progress(url: str, done: int, total: int | None) -> Iterator[Callable[[int], object]]:
    """Progress on standard error: a bar on a terminal, elsewhere one line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        resumed = f" from {decimal(done)} on" if done else ""
        size = "size unknown" if total is None else decimal(total)
        print(f"downloading {url} ({size}){resumed}", file=sys.stderr)
        yield lambda count: None
        return
    with Progress(*Progress.get_default_columns(), DownloadColumn(), console=console) as bar:
        yield partial(bar.advance, bar.add_task(Path(url).name, total=total, completed=done))


def _unpack(archive: Path, member: str, part: Path) -> None:
    print(f"unpacking {member} from {archive.name}", file=sys.stderr)
    try:
        with _opened(archive, member) as content, part.open("wb") as file:
            shutil.copyfileobj(content, file, _CHUNK)
    except _DAMAGES as error:
        raise UserError(
            f"cannot unpack {member} from {archive}: {error}; delete it to download it again"
        ) from error


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """A member for reading, if it is a plain file; a link could lead anywhere."""
    if archive.suffix in (".zip", ".whl"):
        with ZipFile(archive) as pack, pack.open(member) as content:
            yield content
        return
    if archive.name == member:  # one compressed file
        with gzip.open(archive) as content:
            yield cast(IO[bytes], content)
        return
    with tarfile.open(archive, "r:gz") as tar:
        entries = (entry for entry in tar if entry.name.removeprefix("./") == member)
        entry = next(entries, None)  # in their order: looking it up would unpack all of them
        file = tar.extractfile(entry) if entry and entry.isreg() else None
        if file is None:
            raise tarfile.TarError("there is no such file in it")
        yield file
