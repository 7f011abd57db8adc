"""A TCP proxy between browser and service whose connection can be cut."""

import socket
import socketserver
import struct
import threading
from contextlib import suppress

LAST_CHUNK = b"\r\n0\r\n\r\n"


class FlakyProxy:
    """`with FlakyProxy(port) as proxy:` is the service at `proxy.url`; `proxy.cut = 0.5` ends the
    answer to the next chat in the middle of its body, as a broken connection does.

    The answer is held until it is whole: its length depends on how many tokens share an event. And
    its headers always pass: without them, a browser sends the request again by itself."""

    def __init__(self, port):
        self.cut = None
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                proxy.carry(self.request, socket.create_connection(("127.0.0.1", port)))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def carry(self, browser, service):
        """Both ways, until one side ends."""
        chats = threading.Event()

        def ask():
            while data := received(browser):
                if b"POST /v1/chat/completions" in data:
                    chats.set()
                elif data.startswith((b"GET ", b"POST ")):
                    chats.clear()
                service.sendall(data)
            quietly_close(service)

        threading.Thread(target=ask, daemon=True).start()
        answer = b""
        while data := received(service):
            if chats.is_set() and self.cut is not None:
                answer += data
                if not answer.endswith(LAST_CHUNK):
                    continue
                head = answer.index(b"\r\n\r\n") + 4
                body = answer.index(b"data: [DONE]") - head
                quietly_send(browser, answer[: head + int(self.cut * body)])
                self.cut = None
                break
            quietly_send(browser, data)
        # With nothing to wait for, a close is a reset: what a broken connection looks like.
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        quietly_close(browser)
        quietly_close(service)


def received(end):
    try:
        return end.recv(65536)
    except OSError:
        return b""


def quietly_send(end, data):
    with suppress(OSError):
        end.sendall(data)


def quietly_close(end):
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
