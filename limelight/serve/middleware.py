"""What every request must pass, whatever it asks for, and where every one is counted.

In this order: is it meant for us (Host), does a foreign page send it (Origin), may it (key), is it
small and in time (body), is it JSON and nothing worse. Then the application has it; and should the
client leave, the application is told to stop. There is one gate, so no route can forget it.
"""

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from hashlib import sha256
from typing import Any

from limelight.serve import logs
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.worker_client import RefusedError

_Scope = MutableMapping[str, Any]
_Event = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Event]]
_Send = Callable[[_Event], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Coroutine[Any, Any, None]]

_WATCHED = ("/healthz", "/readyz")  # for whoever watches over the service
_LEFT = 499  # what a request is counted as whose client has left
_USUAL_PORTS = {"http": ":80", "https": ":443"}  # which browsers leave out
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_SAFE = {  # headers of every answer that has no others of its own
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; style-src 'unsafe-inline'; "
    b"form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
}


class _ClientLeftError(Exception):
    """Nobody waits for an answer."""


class SecurityMiddleware:
    """Stands before the application."""

    def __init__(
        self,
        app: _App,
        limits: Limits,
        counts: Metrics,
        key: str = "",
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        public: Iterable[str] = (),
    ) -> None:
        self.app, self.limits, self.counts = app, limits, counts
        self.public = frozenset(public)  # what has no secrets: the page that asks for the key
        self.key = sha256(key.encode()).digest() if key else b""
        self.hosts = {host.lower() for host in (*_LOOPBACK, *hosts)}
        self.origins = {_as_sent(origin.lower()) for origin in origins}

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "http":
            await _RequestContext(self, scope, receive, send).run()
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self.app(scope, receive, send)

    def check(self, scope: _Scope) -> None:
        """Whether a request may come in at all."""
        if scope["path"] in _WATCHED:
            return
        headers = _Headers(scope["headers"])
        host = headers.only("host").lower()
        if _without_port(host) not in self.hosts:
            hint = "start the service with --hosts NAME if this is its name"
            raise RefusedError(403, "host_not_allowed", "this is not the host that was meant", hint)
        origin = headers.only("origin").lower()
        ours = origin.removeprefix(f"{scope['scheme']}://") == host or origin in self.origins
        if origin and not ours:
            hint = "start the service with --origins URL if its pages may ask"
            message = "pages of this origin may not ask here"
            raise RefusedError(403, "origin_not_allowed", message, hint)
        if self.key and scope["path"] not in self.public:
            kind, _, given = headers.only("authorization").partition(" ")
            same = hmac.compare_digest(sha256(given.strip().encode()).digest(), self.key)
            if kind.lower() != "bearer" or not same:
                hint = "send the header Authorization: Bearer KEY"
                raise RefusedError(401, "wrong_key", "this service needs its key", hint)


class _Headers:
    """Headers by name. One that is there twice is as good as wrong."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self.pairs = list(pairs)

    def only(self, name: str) -> str:
        """The value of a header, empty if it is not there."""
        found = [value for key, value in self.pairs if key == name.encode()]
        if len(found) > 1:
            message = f"the header {name} is there {len(found)} times"
            raise RefusedError(400, "invalid_header", message, "send it once")
        return found[0].decode("latin-1") if found else ""


def _without_port(host: str) -> str:
    """The name alone."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host


def _as_sent(origin: str) -> str:
    """An origin as browsers name it: without the port that its scheme has anyway."""
    scheme, _, _ = origin.partition("://")
    return origin.removesuffix(_USUAL_PORTS.get(scheme, ""))


class _RequestContext:
    """One request on its way through the gate."""

    def __init__(
        self, gate: SecurityMiddleware, scope: _Scope, receive: _Receive, send: _Send
    ) -> None:
        self.gate, self.scope, self.limits = gate, scope, gate.limits
        self.receive, self.send_on = receive, send
        self.id = secrets.token_hex(8)
        self.status = 0  # of the answer, once it has begun
        self.complete = False  # the answer was sent to its end
        self.body: bytes | None = b""

    async def run(self) -> None:
        """From the first check to the last count."""
        started = time.perf_counter()
        self.gate.counts.open.inc()
        try:
            await self.pass_through()
        except RefusedError as refused:
            await self.refuse(refused)
        except (_ClientLeftError, asyncio.CancelledError):
            pass
        except Exception as error:
            logs.note_error(error, id=self.id)
        finally:
            self.count(time.perf_counter() - started)

    def count(self, seconds: float) -> None:
        """How it ended, once."""
        route = getattr(self.scope.get("route"), "path", "other")
        status = self.status if self.complete else _LEFT
        self.gate.counts.open.dec()
        self.gate.counts.requests.labels(route, str(status)).inc()
        self.gate.counts.seconds.labels(route).observe(seconds)
        method = self.scope["method"] if self.scope["method"] in _METHODS else "other"
        facts = {"id": self.id, "method": method, "route": route, "status": status}
        logs.log_event("request", **facts, seconds=round(seconds, 4))

    async def pass_through(self) -> None:
        """All checks; then the application, as long as the client waits."""
        self.gate.check(self.scope)
        self.body = await self.read_body()
        self.check_json(self.body)
        answer = asyncio.create_task(self.gate.app(self.scope, self.replay, self.send))
        leaving = asyncio.create_task(self.client_leaves())
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, leaving):
                if not task.done():
                    task.cancel()
            await asyncio.gather(answer, leaving, return_exceptions=True)
        if answer.cancelled():
            raise _ClientLeftError
        if (error := answer.exception()) is not None:
            raise error

    async def client_leaves(self) -> None:
        """Until there is nobody to answer."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def replay(self) -> _Event:
        """The body once more, for the application."""
        if self.body is None:
            await asyncio.Event().wait()  # it is the gate that sees clients leave
        body, self.body = self.body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def read_body(self) -> bytes:
        """All of it, if it is not too long and does not take too long."""
        headers = _Headers(self.scope["headers"])
        length = headers.only("content-length")
        if headers.only("content-encoding") not in ("", "identity"):
            message = "the body is compressed"
            raise RefusedError(415, "wrong_type", message, "send it as it is")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.limits.body:
            raise self.too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    event = await self.receive()
                    if event["type"] == "http.disconnect":
                        raise _ClientLeftError
                    body += event.get("body", b"")
                    if len(body) > self.limits.body:
                        raise self.too_large()
                    if not event.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            message = f"the body did not come within {self.limits.body_seconds:g} seconds"
            raise RefusedError(408, "too_slow", message, "send it at once") from None

    def too_large(self) -> RefusedError:
        """A body over the limit."""
        message = f"a request may have {self.limits.body:,} bytes"
        return RefusedError(413, "too_large", message, "ask for less at a time")

    def check_json(self, body: bytes) -> None:
        """A body is JSON, said to be JSON, and means one thing only."""
        if not body and self.scope["method"] != "POST":
            return
        kind = _Headers(self.scope["headers"]).only("content-type")
        if kind.partition(";")[0].strip().lower() != "application/json":
            hint = "send the header Content-Type: application/json"
            raise RefusedError(415, "wrong_type", "only JSON is understood", hint)
        try:
            json.loads(body.decode(), parse_constant=_no_number, object_pairs_hook=_all_different)
        except (ValueError, RecursionError):
            hint = "check quotes and commas; NaN, Infinity and repeated names are no JSON"
            message = "the body is no JSON that could be understood"
            raise RefusedError(400, "invalid_json", message, hint) from None

    async def send(self, event: _Event) -> None:
        """An answer on its way out, with what all answers have."""
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
        """An answer that says why there is none."""
        if self.status:
            return
        headers = [(b"content-type", b"application/json"), *error_headers(refused)]
        if refused.status in (408, 413, 415):  # the rest of the body is not read
            headers.append((b"connection", b"close"))
        body = error_body(refused)
        headers.append((b"content-length", str(len(body)).encode()))
        start = {"type": "http.response.start", "status": refused.status, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def _no_number(_: str) -> float:
    """NaN and Infinity are no JSON."""
    raise ValueError("not a number")


def _all_different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different."""
    told = dict(pairs)
    if len(told) != len(pairs):
        raise ValueError("a name is there twice")
    return told


def error_body(refused: RefusedError) -> bytes:
    """The one form of all errors."""
    told = {"code": refused.code, "message": refused.message, "hint": refused.hint}
    return json.dumps({"error": told}).encode()


def error_headers(refused: RefusedError) -> list[tuple[bytes, bytes]]:
    """When to come again, and with what."""
    headers = []
    if refused.retry_after:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
