"""One HTTP connection: bounds on its time, and on what is parsed before any request exists."""

import asyncio
import re
import socket
from http import HTTPStatus
from typing import Any, NoReturn

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from limelight.serve.errors import RefusedError, error_body
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics

REFUSED = "limelight.refused"  # key in the scope: what was wrong with the body, while it came
LINGER_SECONDS = 1.0  # for a client to read a refusal before its connection is closed
_PIECE = 2**14  # bytes that are parsed at a time
_HEADERS = 200
_FRAMING = 32  # bytes that may surround each chunk
_BLANK_LINE = re.compile(rb"\n\r?\n")


class _BoundedParser(h11.Connection):
    """h11's, which also rejects what is costly to parse, or could be understood in two ways."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, limits.header)
        self.limits = limits
        self.refused: RefusedError | None = None
        self.chunks = self.wire = 0  # chunks and bytes of this body
        self.head = b""  # of a response, for the write that sends its body

    @property
    def broken(self) -> bool:
        return self.refused is not None or self.their_state is h11.ERROR

    def receive_data(self, data: bytes) -> None:
        if self.their_state is h11.SEND_BODY:
            self.wire += len(data)
        super().receive_data(data)

    def send(self, event: Any) -> Any:
        """Keep the head of a response of known length for its body: one system call, not two."""
        data = super().send(event)
        if isinstance(event, h11.Response) and b"content-length" in dict(event.headers):
            self.head = data or b""
            return b""
        held, self.head = self.head, b""
        return held + (data or b"")

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            self.check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.wire = 0
            self.check_request(event)
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.check_body()
        return event

    def check_head(self) -> None:
        """h11 would parse headers of any size and number that arrive in one piece."""
        waiting, most = self.trailing_data[0], self.limits.header
        blank = _BLANK_LINE.search(waiting, 0, most)
        if blank is None and len(waiting) > most:
            self.refuse(431, "too_large", f"address and headers have more than {most:,} bytes")
        if blank is not None and waiting.count(b"\n", 0, blank.start()) > _HEADERS:
            self.refuse(431, "too_large", f"there are more than {_HEADERS} headers")

    def check_request(self, request: h11.Request) -> None:
        version, names = request.http_version.decode(), {name for name, _ in request.headers}
        if version not in ("1.0", "1.1"):
            self.refuse(400, "invalid_http", f"HTTP/{version} is not supported", "use version 1.1")
        if b"transfer-encoding" in names and (b"content-length" in names or version == "1.0"):
            message = "Transfer-Encoding is not possible with Content-Length or HTTP/1.0"
            self.refuse(400, "invalid_http", message, "send one of them, and use version 1.1")

    def check_body(self) -> None:
        most = self.limits.chunks
        if self.chunks > most:
            hint = "send larger ones, or a Content-Length"
            self.refuse(413, "too_large", f"the body has more than {most:,} chunks", hint)
        if self.wire > self.limits.body + self.limits.header + _FRAMING * most:
            self.refuse(413, "too_large", "the body has too many bytes", "ask for less at a time")

    def refuse(self, status: int, code: str, message: str, hint: str = "") -> NoReturn:
        self.refused = RefusedError(status, code, message, hint)
        raise h11.RemoteProtocolError(message)


class BoundedProtocol(H11Protocol):
    """A connection that is closed if its client sends too much, or sends or reads too slowly."""

    limits: Limits
    metrics: Metrics
    clock: asyncio.TimerHandle | None = None  # for a request to begin
    reading: asyncio.TimerHandle | None = None  # for the client to read what was sent

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.conn: _BoundedParser = _BoundedParser(self.limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        # Nagle's algorithm would delay the last piece of a response by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wait_for_request()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            if self.conn.broken or self.transport.is_closing():
                return  # the rest is discarded
            super().data_received(data[start : start + _PIECE])
        self.wait_for_request()

    def wait_for_request(self) -> None:
        """Start the clock between requests, stop it when one has begun."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.clock is None:
            self.clock = self.loop.call_later(self.limits.header_seconds, self.abort)
        elif not idle and self.clock is not None:
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

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # it was refused, and its client may still read that
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Reject what came: by the middleware if it belongs to a request, and here otherwise."""
        wrong = RefusedError(400, "invalid_http", "this is not valid HTTP")
        refused = self.conn.refused or wrong
        if self.cycle is not None and not self.cycle.response_complete:
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
