"""Files from the network: taken up again where they were cut, and named only when they are whole.

A file grows under another name beside its own. It gets its own when all of it has come, has passed
its check and is safely on disk; so a file that exists is complete. Of several processes that want
the same one, one fetches it and the others wait.
"""

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
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from limelight.errors import UserError
from limelight.files import lock_file, sync

PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before the next try, while the tries bring nothing new
TIMEOUT = 30.0  # seconds of silence
_AT_ONCE = 2**18  # bytes
_DAMAGES = (BadGzipFile, BadZipFile, tarfile.TarError, zlib.error, EOFError, KeyError, RuntimeError)

_Check = Callable[[Path], None]  # raises a UserError for a file that must not be used


def fetch(url: str, path: Path, check: _Check = lambda _: None) -> None:
    """Have the file of this address at this path, downloaded now or found from before."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"cannot download {url}: its address begins with neither http nor https")
    _make(path, partial(_download, url), check)


def extract(archive: Path, member: str, path: Path, check: _Check = lambda _: None) -> None:
    """Have one member of a .zip or .tgz archive at this path; names inside decide no place."""
    _make(path, partial(_take_out, archive, member), check)


def _make(path: Path, write: Callable[[Path], None], check: _Check) -> None:
    """Make a file whole or not at all, and once, however many processes ask for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w", encoding="utf-8") as lock:
            lock_file(lock)  # falls with its holder: a killed one blocks nobody
            if not path.is_file():
                part = path.with_name(f"part-{path.name}")  # its ending still says how it is packed
                write(part)
                _keep(part, path, check)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _keep(part: Path, path: Path, check: _Check) -> None:
    """Give a finished file its name, if it passes its check; else put it aside."""
    try:
        check(part)
    except UserError as error:
        refused = path.with_name(f"refused-{path.name}")
        part.replace(refused)
        raise UserError(f"{error}; it is kept as {refused} and not used") from error
    sync(part)
    part.replace(path)
    sync(path.parent)


def _download(url: str, part: Path) -> None:
    """Receive all of a file. What has begun is worth waiting for; what has not is told at once."""
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
    """One connection: go on behind what is there, or begin anew if the server has another file."""
    mark = part.with_name(f"{part.name}.version")
    version = mark.read_text("latin-1") if mark.exists() else ""
    have = _size(part) if version else 0
    with _ask(url, have, version) as response:
        start = have if response.status == 206 else 0
        if response.status == 206 and not _continues(response, start, version):
            mark.unlink(missing_ok=True)
            raise HTTPException("the server went on with another file than it had begun")
        total = None if response.length is None else start + response.length
        with part.open("ab" if start else "wb") as file, _shown(url, start, total) as advance:
            if not start:  # written only now: the bytes of another version are gone
                mark.write_text(_version_of(response), "latin-1")
            while chunk := response.read1(_AT_ONCE):
                file.write(chunk)
                advance(len(chunk))
    if total is not None and _size(part) != total:
        raise HTTPException(f"the connection was cut after {_size(part):,} of {total:,} bytes")
    mark.unlink()


def _ask(url: str, have: int, version: str) -> HTTPResponse:
    """The server's answer; it is asked for the rest only of the version that was begun."""
    headers = {"User-Agent": "limelight"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        return _ask(url, 0, "")  # there is no rest: what is here cannot be a beginning of it
    return response


def _continues(response: HTTPResponse, start: int, version: str) -> bool:
    """Whether these bytes belong behind those that are there."""
    place = response.headers.get("Content-Range", "")
    return place.startswith(f"bytes {start}-") and _version_of(response) in (version, "")


def _version_of(response: HTTPResponse) -> str:
    """What tells this file from a later one at its address; a weak tag (W/) does not."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _size(path: Path) -> int:
    """How many bytes there are."""
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


@contextmanager
def _shown(url: str, done: int, total: int | None) -> Iterator[Callable[[int], object]]:
    """Tell on standard error how far it is: a bar on a terminal, elsewhere one line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        behind = f" behind {decimal(done)}" if done else ""
        much = "size unknown" if total is None else decimal(total)
        print(f"downloading {url} ({much}){behind}", file=sys.stderr)
        yield lambda count: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
        task = bar.add_task(url.rpartition("/")[2], total=total, completed=done)
        yield partial(bar.advance, task)


def _take_out(archive: Path, member: str, part: Path) -> None:
    """Stream one member of an archive into one file, and nothing else."""
    print(f"taking {member} out of {archive.name}", file=sys.stderr)
    try:
        with _opened(archive, member) as content, part.open("wb") as file:
            shutil.copyfileobj(content, file, _AT_ONCE)
    except _DAMAGES as error:
        raise UserError(
            f"cannot take {member} out of {archive}: {error}; delete it to download it anew"
        ) from error


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """A member for reading, if it is a plain file; a link could lead anywhere."""
    if archive.suffix == ".zip":
        with ZipFile(archive) as pack, pack.open(member) as content:
            yield content
        return
    with tarfile.open(archive, "r:gz") as tar:
        entries = (entry for entry in tar if entry.name.removeprefix("./") == member)
        entry = next(entries, None)  # in their order: looking it up would unpack all of them
        file = tar.extractfile(entry) if entry and entry.isreg() else None
        if file is None:
            raise tarfile.TarError("there is no such file in it")
        yield file
