"""One HTTP connection: bounds on its time, and on what is parsed before any request exists."""

import asyncio
import math
import re
import socket
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from limelight.serve.errors import RefusedError, error_body
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics

REFUSED = "limelight.refused"  # key in the scope: what was wrong with the body, while it came
LINGER_SECONDS = 1.0  # for a client to read a refusal before its connection is closed
_PIECE = 2**14  # bytes of a body that are parsed at a time
_HEADERS = 200
_FRAMING = 32  # bytes that may surround each chunk
_BLANK_LINE = re.compile(rb"\n\r?\n")


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed if its client sends too much, or sends or reads too slowly.

    The parser gets one head at a time, and then its body: nothing whose size was not checked, and
    no request before the last one was answered. What could be understood in two ways is rejected.
    """

    limits: Limits
    metrics: Metrics
    clock: asyncio.TimerHandle | None = None  # for a request to begin
    reading: asyncio.TimerHandle | None = None  # for the client to read what was sent

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.waiting = bytearray()  # came, and was not parsed yet
        self.refused = False
        self.left = 0.0  # bytes of the body still to come; infinite if they come in chunks
        self.fields = self.chunks = self.wire = 0  # headers, chunks and their bytes, of a request

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        # Nagle's algorithm would delay the last piece of a response by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wait_for_request()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self.waiting += data
        while self.waiting and not (self.refused or self.transport.is_closing()):
            if self.left:
                self.feed(min(len(self.waiting), _PIECE, self.left))
            elif not self.idle:
                self.flow.pause_reading()
                break
            elif end := self.end_of_head():
                self.fields = self.chunks = self.wire = 0
                self.feed(end)
                if self.idle:  # there were only empty lines
                    self.refuse(None)
            else:
                break
        if self.refused:
            self.waiting.clear()
        self.wait_for_request()

    def end_of_head(self) -> int:
        """Where it ends; 0 if that did not come yet."""
        most = self.limits.header
        blank = _BLANK_LINE.search(self.waiting, 0, most)
        if blank is None and len(self.waiting) > most:
            message = f"address and headers have more than {most:,} bytes"
            self.refuse(RefusedError(431, "too_large", message))
        return blank.end() if blank else 0

    def feed(self, count: float) -> None:
        """Parse this many bytes."""
        piece = bytes(self.waiting[: int(count)])
        del self.waiting[: len(piece)]
        if self.left:
            self.left -= len(piece)
            self.wire += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # the proposal is ignored
        except httptools.HttpParserError as error:
            why = error.__context__
            self.refuse(why if isinstance(why, RefusedError) else None)
        most = self.limits.body + self.limits.header + _FRAMING * self.limits.chunks
        if self.left and self.wire > most:
            message = "the body has too many bytes"
            self.refuse(RefusedError(413, "too_large", message, "ask for less at a time"))

    def on_message_begin(self) -> None:
        if self.fields:  # behind chunks, in the same piece: its client will have to ask again
            self.cycle.keep_alive, self.refused = False, True
            raise ValueError("this connection ends")
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields += 1
        if self.fields > _HEADERS:
            message = f"there are more than {_HEADERS} headers"
            raise RefusedError(431, "too_large", message)
        if not self.left:  # those behind a body are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        version, names = self.parser.get_http_version(), [name for name, _ in self.headers]
        if version not in ("1.0", "1.1"):
            message, hint = f"HTTP/{version} is not supported", "use version 1.1"
            raise RefusedError(400, "invalid_http", message, hint)
        if names.count(b"host") != 1 and version == "1.1":
            raise RefusedError(400, "invalid_http", "there must be one Host header")
        found = dict(self.headers)
        self.left = int(found.get(b"content-length", 0))
        if b"transfer-encoding" in found:
            if b"content-length" in found or version == "1.0":
                message = "Transfer-Encoding is not possible with Content-Length or HTTP/1.0"
                hint = "send one of them, and use version 1.1"
                raise RefusedError(400, "invalid_http", message, hint)
            if found[b"transfer-encoding"].lower() != b"chunked":
                raise ValueError("chunked is all there is")
            self.left = math.inf
        if self.left and self.parser.should_upgrade():  # the parser would not read the body
            raise RefusedError(400, "invalid_http", "Upgrade is not possible with a body")
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self.chunks += 1

    def on_body(self, body: bytes) -> None:
        if self.chunks > self.limits.chunks:
            message = f"the body has more than {self.limits.chunks:,} chunks"
            hint = "send larger ones, or a Content-Length"
            raise RefusedError(413, "too_large", message, hint)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.left = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.waiting:
            self.data_received(b"")

    def wait_for_request(self) -> None:
        """Start the clock between requests, stop it when one has begun."""
        if self.idle and self.clock is None:
            self.clock = self.loop.call_later(self.limits.header_seconds, self.abort)
        elif not self.idle and self.clock is not None:
            self.clock.cancel()
            self.clock = None

    def pause_writing(self) -> None:
        self.reading = self.loop.call_later(self.limits.read_seconds, self.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            self.reading = None
        super().resume_writing()

    def abort(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for clock in (self.clock, self.reading):
            if clock is not None:
                clock.cancel()
        self.clock = self.reading = None
        super().connection_lost(exc)

    def refuse(self, why: RefusedError | None) -> None:
        """Reject what came: by the middleware if it belongs to a request, and here otherwise."""
        if self.refused:
            return
        self.refused = True
        refused = why or RefusedError(400, "invalid_http", "this is not valid HTTP")
        if not self.idle:
            self.cycle.scope[REFUSED] = refused  # type: ignore[literal-required]
            self.cycle.more_body = False
            self.cycle.message_event.set()
            return
        self.metrics.requests.labels("malformed", str(refused.status)).inc()
        body, status = error_body(refused), HTTPStatus(refused.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
