"""The files of the page: read once, at the start, and served by name.

The page itself loads one script and one style sheet, joined from all modules and styles: a module
after the other would take as many round trips as imports are deep.

No path of a request ever reaches the disk. Each file has an ETag, so that browsers revalidate it.
"""

import gzip
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import FastAPI, Request, Response

from limelight.serve.errors import RefusedError
from limelight.web.bundle import joined, styles

_PICTURE = b'<meta property="og:image" content="'  # and after it the picture's path
_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
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
    body: bytes
    compressed: bytes
    kind: str
    tag: str


def page_files() -> dict[str, _File]:
    """All files of the page by their URL paths; "/" is the page itself."""
    found = {f"/page/{path}": file for path, file in _files_in(files("limelight") / "web")}
    found["/page/page.js"] = _file(joined("js/main.js").encode(), _KINDS["js"])
    found["/page/page.css"] = _file(styles().encode(), _KINDS["css"])
    return {"/": found["/page/index.html"], **found}


def _file(body: bytes, kind: str) -> _File:
    tag = f'"{sha256(body).hexdigest()[:16]}"'
    return _File(body, gzip.compress(body, 9, mtime=0), kind, tag)


def _files_in(folder: Traversable, parent: str = "") -> Iterator[tuple[str, _File]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files_in(entry, f"{parent}{entry.name}/")
        elif kind := _KINDS.get(entry.name.rpartition(".")[2]):
            yield parent + entry.name, _file(entry.read_bytes(), kind)


def add_files(app: FastAPI, known: dict[str, _File], frames: str = "") -> None:
    """Add the routes of the page and its files, which these sites may show in a frame."""
    policy = POLICY.replace("ancestors 'none'", f"ancestors {frames}") if frames else POLICY

    @app.get("/", include_in_schema=False)
    @app.get("/page/{path:path}", include_in_schema=False)
    async def file(request: Request) -> Response:
        found = known.get(request.scope["path"])
        if found is None:
            message = "there is no such file"
            raise RefusedError(404, "not_found", message, "the page is at /")
        if found is known["/"]:
            found = _with_address(found, request)
        headers = {
            "etag": found.tag,
            "cache-control": "no-cache",
            "content-security-policy": policy,
            "vary": "accept-encoding",
        }
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        body = found.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"], body = "gzip", found.compressed
        return Response(body, headers=headers, media_type=found.kind)


def _with_address(page: _File, request: Request) -> _File:
    """The page with the whole address of its preview picture: Open Graph knows no relative ones.

    The middleware has checked Host; of the scheme a proxy on this machine is believed.
    """
    scheme = "https" if request.url.scheme == "https" else "http"
    address = escape(f"{scheme}://{request.headers['host']}/").encode()
    return _file(page.body.replace(_PICTURE, _PICTURE + address), page.kind)
