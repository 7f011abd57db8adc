"""The page's own files, as the package has them: read once, at the start, and known by their names.

No path that somebody asks for ever reaches the disk. Each file has a tag that changes with it, so a
browser asks again and is told in one line that nothing has changed.
"""

import gzip
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import FastAPI, Request, Response

from limelight.serve.worker_client import RefusedError

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "txt": "text/plain; charset=utf-8",  # licences
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class _File(NamedTuple):
    """A file of the page."""

    body: bytes
    packed: bytes  # the same for those who understand gzip
    kind: str
    tag: str


def page_files(folder: Traversable | None = None) -> dict[str, _File]:
    """All files of the page by the paths they are asked for with; "/" is the page itself."""
    found = {
        f"/page/{path}": file for path, file in _files_in(folder or files("limelight") / "web")
    }
    if "/page/index.html" in found:
        found["/"] = found["/page/index.html"]
    return found


def _files_in(folder: Traversable, before: str = "") -> Iterator[tuple[str, _File]]:
    """Files of the kinds that a page is made of, those of inner folders too."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files_in(entry, f"{before}{entry.name}/")
        elif kind := _KINDS.get(entry.name.rpartition(".")[2]):
            body = entry.read_bytes()
            tag = f'"{sha256(body).hexdigest()[:16]}"'
            yield before + entry.name, _File(body, gzip.compress(body, 9, mtime=0), kind, tag)


def add_files(app: FastAPI, known: dict[str, _File]) -> None:
    """The routes of the page and its files."""

    @app.get("/", include_in_schema=False)
    @app.get("/page/{path:path}", include_in_schema=False)
    async def file(request: Request) -> Response:
        asked = known.get(request.scope["path"])
        if asked is None:
            raise RefusedError(404, "not_found", "there is nothing here", "the page is at /")
        return _told(asked, request)


def _told(file: _File, request: Request) -> Response:
    """A file, or that it has not changed."""
    headers = {
        "etag": file.tag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(file.packed if packed else file.body, headers=headers, media_type=file.kind)
