"""A real HTTP server on this machine that can go on behind a byte, and that fails as it is told."""

import socket
import struct
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves what is in `files`, and writes down every request."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.version: str | None = '"one"'  # sent as the ETag
        self.modified: str | None = None  # sent as Last-Modified
        self.knows_ranges = True
        self.minds_if_range = True
        self.starts_late = 0  # sends bytes from so far behind the one that was asked for
        self.cuts: list[int] = []  # how much of the file has been sent when the connection ends
        self.resets = False  # end it with a reset, not a farewell
        self.says_length = True
        self.redirects: dict[str, str] = {}
        self.before_sending = lambda: None
        self.half_way = lambda: None
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, Range, If-Range
        self.agents: set[str] = set()
        self.listener = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.listener.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.listener.server_port}"

    @property
    def ranges(self) -> list[str | None]:
        return [asked for _, asked, _ in self.requests]

    def __enter__(self):
        self.thread = threading.Thread(target=self.listener.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown()
        self.listener.server_close()
        self.thread.join()


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked, condition = self.headers["Range"], self.headers["If-Range"]
            server.requests.append((self.path, asked, condition))
            server.agents.add(self.headers["User-Agent"])
            if self.path in server.redirects:
                self.send_response(302)
                self.send_header("Location", server.redirects[self.path])
                self.end_headers()
                return
            if self.path not in server.files:
                self.send_error(404)
                return
            body = server.files[self.path]
            same = condition == (server.version or server.modified) or not server.minds_if_range
            begin = 0
            if asked and server.knows_ranges and same:
                begin = int(asked.removeprefix("bytes=").removesuffix("-"))
                if begin >= len(body):
                    self.send_error(416)
                    return
                begin += server.starts_late
            self.send_body(body, begin, bool(asked and server.knows_ranges and same))

        def send_body(self, body, begin, partial):
            self.send_response(206 if partial else 200)
            if server.says_length:
                self.send_header("Content-Length", str(len(body) - begin))
            if partial:
                self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            if server.version:
                self.send_header("ETag", server.version)
            if server.modified:
                self.send_header("Last-Modified", server.modified)
            self.end_headers()
            end = server.cuts.pop(0) if server.cuts else len(body)
            server.before_sending()
            middle = (begin + end) // 2
            with suppress(OSError):  # whoever asked may be gone
                self.wfile.write(body[begin:middle])
                server.half_way()
                self.wfile.write(body[middle:end])
            if server.resets and end < len(body):
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()

        def log_message(self, *_):
            pass

    return Handler
