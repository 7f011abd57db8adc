"""A TCP proxy between browser and service whose connection can be cut."""

import socket
import socketserver
import struct
import threading
from contextlib import suppress


class FlakyProxy:
    """`with FlakyProxy(port) as proxy:` is the service at `proxy.url`; `proxy.cut = n` ends the
    answer to the next chat after n bytes, as a broken connection does."""

    def __init__(self, port):
        self.cut = None
        self.passed = 0  # bytes of the last chat's answer
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
                    self.passed = 0
                    chats.set()
                elif data.startswith((b"GET ", b"POST ")):
                    chats.clear()
                service.sendall(data)
            quietly_close(service)

        threading.Thread(target=ask, daemon=True).start()
        while data := received(service):
            if chats.is_set() and self.cut is not None and self.passed + len(data) > self.cut:
                quietly_send(browser, data[: self.cut - self.passed])
                self.cut = None
                break
            self.passed += len(data)
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
