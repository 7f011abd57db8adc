"""Checks that every request passes before any route sees it, and where each one is counted.

In this order: Host, Origin, key, size and time of the body, JSON. A client that disconnects cancels
its route. The body is parsed here, strictly, for `DirectRoutes`.
"""

import asyncio
import gzip
import hmac
import json
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import Any

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from limelight.serve import logs
from limelight.serve.connection import LINGER_SECONDS, REFUSED
from limelight.serve.errors import RefusedError, error_response
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics

_PROBES = ("/healthz", "/readyz")
_LEFT = 499  # status of a request whose client has left
JSON = "limelight.json"  # key of the parsed body in the scope
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # which browsers omit
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
_TOKEN = re.compile(rb'(?s)([,[{])|"(?:[^"\\]++|\\.)*+"?')  # of JSON: a mark, or a text
_LARGE = 4096  # bytes of an answer, from which it is compressed
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_SAFE = {  # headers of every response that does not set them itself
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; style-src 'unsafe-inline'; "
    b"form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
}


class _ClientLeftError(Exception):
    pass


async def json_response(content: bytes, scope: Scope) -> Response:
    """JSON; for the page, a large one is compressed: a search tree to about a tenth."""
    headers = {}
    if scope["path"].startswith("/api/") and len(content) > _LARGE:
        headers["vary"] = "accept-encoding"
        if b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b""):
            content = await asyncio.to_thread(gzip.compress, content, 5)
            headers["content-encoding"] = "gzip"
    return Response(content, headers=headers, media_type="application/json")


class SecurityMiddleware:
    """The ASGI application that a server runs: all checks, then the routes."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        key: str = "",
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        public: Iterable[str] = (),
    ) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.public = frozenset(public)  # paths without a key: the page that asks for it
        self.key = sha256(key.encode()).digest() if key else b""
        self.hosts = {host.lower() for host in (*_LOOPBACK, *hosts)}
        self.origins = {
            origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], ""))
            for origin in map(str.lower, origins)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _RequestContext(self, scope, receive, send).run()
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self.app(scope, receive, send)

    def check(self, scope: Scope) -> None:
        if scope["path"] in _PROBES:
            return
        host = _header(scope, "host").lower()
        if re.sub(r":[0-9]+\Z", "", host) not in self.hosts:
            hint = "start the service with --allowed-hosts NAME if this is its name"
            raise RefusedError(403, "host_not_allowed", "this Host header is not allowed", hint)
        origin = _header(scope, "origin").lower()
        ours = origin.removeprefix(f"{scope['scheme']}://") == host or origin in self.origins
        if origin and not ours:
            hint = "start the service with --allowed-origins URL to allow its pages"
            raise RefusedError(403, "origin_not_allowed", "this origin is not allowed", hint)
        if self.key and scope["path"] not in self.public:
            kind, _, given = _header(scope, "authorization").partition(" ")
            same = hmac.compare_digest(sha256(given.strip().encode()).digest(), self.key)
            if kind.lower() != "bearer" or not same:
                hint = "send the header Authorization: Bearer KEY"
                raise RefusedError(401, "wrong_key", "the API key is missing or wrong", hint)


def _header(scope: Scope, name: str) -> str:
    """The value of a header, empty if it is missing; a repeated one is rejected."""
    wanted = name.encode()
    found = [value for each, value in scope["headers"] if each == wanted]
    if len(found) > 1:
        message = f"the header {name} is repeated {len(found)} times"
        raise RefusedError(400, "invalid_header", message, "send it once")
    return found[0].decode("latin-1") if found else ""


class _RequestContext:
    def __init__(
        self, middleware: SecurityMiddleware, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.middleware, self.scope, self.limits = middleware, scope, middleware.limits
        self.receive, self.send_on = receive, send
        self.id = secrets.token_hex(8)
        self.status = 0  # of the response, once it has begun
        self.complete = False  # the response was sent to its end
        self.body: bytes | None = b""
        self.read = False  # the body was read to its end

    async def run(self) -> None:
        started = time.perf_counter()
        self.middleware.metrics.open.inc()
        try:
            await self.pass_through()
        except RefusedError as refused:
            await self.refuse(refused)
        except (_ClientLeftError, asyncio.CancelledError):
            pass
        except Exception as error:
            logs.log_error(error, id=self.id)
            await self.refuse(RefusedError(500, "internal", "internal error; the log says where"))
        finally:
            self.count(time.perf_counter() - started)

    def count(self, seconds: float) -> None:
        route = getattr(self.scope.get("route"), "path", "other")
        status = self.status if self.complete else _LEFT
        self.middleware.metrics.open.dec()
        self.middleware.metrics.requests.labels(route, str(status)).inc()
        self.middleware.metrics.seconds.labels(route).observe(seconds)
        method = self.scope["method"] if self.scope["method"] in _METHODS else "other"
        facts = {"id": self.id, "method": method, "route": route, "status": status}
        logs.log_event("request", **facts, seconds=round(seconds, 4))

    async def pass_through(self) -> None:
        self.middleware.check(self.scope)
        self.body = await self.read_body()
        self.read = True
        self.parse_json(self.body)
        leaving = asyncio.create_task(self.client_leaves(asyncio.current_task()))
        try:
            await self.middleware.app(self.scope, self.replay, self.send)
        finally:
            leaving.cancel()

    async def client_leaves(self, answering: asyncio.Task[Any] | None) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if answering is not None and not self.complete:
            answering.cancel()

    async def replay(self) -> ASGIMessage:
        if self.body is None:
            await asyncio.Event().wait()  # disconnects are handled here, not in routes
        body, self.body = self.body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def read_body(self) -> bytes:
        length = _header(self.scope, "content-length")
        if _header(self.scope, "content-encoding") not in ("", "identity"):
            message = "compressed bodies are not supported"
            raise RefusedError(415, "wrong_type", message, "send plain JSON")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.limits.body:
            raise self.too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    event = await self.receive()
                    if event["type"] == "http.disconnect":
                        raise _ClientLeftError
                    if REFUSED in self.scope:
                        raise self.scope[REFUSED]
                    body += event.get("body", b"")
                    if len(body) > self.limits.body:
                        raise self.too_large()
                    if not event.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            message = f"the body did not come within {self.limits.body_seconds:g} seconds"
            raise RefusedError(408, "too_slow", message, "send it at once") from None

    def too_large(self) -> RefusedError:
        message = f"the body has more than {self.limits.body:,} bytes"
        return RefusedError(413, "too_large", message, "ask for less at a time")

    def parse_json(self, body: bytes) -> None:
        """Strictly: declared as JSON, not too many values, without NaN and repeated names."""
        if not body and self.scope["method"] != "POST":
            return
        kind = _header(self.scope, "content-type")
        if kind.partition(";")[0].strip().lower() != "application/json":
            hint = "send the header Content-Type: application/json"
            raise RefusedError(415, "wrong_type", "only JSON is supported", hint)
        if _has_more_values(body, self.limits.values):
            message = f"the body has more than {self.limits.values:,} values"
            raise RefusedError(413, "too_large", message, "ask for less at a time")
        try:
            self.scope[JSON] = json.loads(
                body.decode(), parse_constant=_no_number, object_pairs_hook=_without_repeats
            )
        except (ValueError, RecursionError):
            hint = "check quotes and commas; NaN, Infinity and repeated names are rejected"
            raise RefusedError(400, "invalid_json", "the body is not valid JSON", hint) from None

    async def send(self, event: ASGIMessage) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            own = dict(event.get("headers", []))
            ours = {**_SAFE, b"x-request-id": self.id.encode()}
            added = [(name, value) for name, value in ours.items() if name not in own]
            event["headers"] = [*event.get("headers", []), *added]
        await self.send_on(event)
        if event["type"] == "http.response.body" and not event.get("more_body"):
            self.complete = True

    async def refuse(self, refused: RefusedError) -> None:
        if self.status:
            return
        response = error_response(refused)
        if not self.read:
            response.headers["connection"] = "close"
        headers, more = response.raw_headers, not self.read
        start = {"type": "http.response.start", "status": refused.status, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": response.body, "more_body": more})
        if more:
            await self.discard_body()
            await self.send({"type": "http.response.body"})

    async def discard_body(self) -> None:
        """For a moment: closed at once, a connection is reset, and its client may see no answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (event := await self.receive())["type"] != "http.disconnect":
                    if not event.get("more_body") and REFUSED not in self.scope:
                        return


def _has_more_values(body: bytes, most: int) -> bool:
    """Whether JSON has more values than this: before it is parsed, by its marks outside of texts.

    A value has at most two texts, with its name, so three tokens per value are enough to decide.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) <= most:
        return False
    tokens = islice(_TOKEN.finditer(body), 3 * most + 3)
    return sum(token[1] is not None for token in tokens) > most


def _no_number(_: str) -> float:
    raise ValueError("not a number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is repeated")
    return found
