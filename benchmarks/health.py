"""How long `/healthz` waits while one client sends the requests that cost the service most.

    python benchmarks/health.py [--seconds 5] [--clients 1]

Each row is one kind of hostile request, sent again and again by a process of its own, over a new
connection whenever the service has closed the last one. The goal is a p99 under 50 ms, and holds on
a machine that does nothing else: the row "nothing" is what the machine itself adds.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from serving import TINY, make_run, serving

KEY = "benchmark"
GOAL = 50  # ms
_BODY = 2**20 - 100  # bytes: a little less than is allowed


def request(path: str, body: bytes, key: bool = True, headers: bytes = b"") -> bytes:
    """A request in one piece."""
    head = b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += b"content-type: application/json\r\n"
    head = head % path.encode() + (f"authorization: Bearer {KEY}\r\n".encode() if key else b"")
    if b"chunked" not in headers:
        headers += b"content-length: %d\r\n" % len(body)
    return head + headers + b"\r\n" + body


def attacks() -> dict[str, bytes]:
    """Hostile requests by name."""
    chunked, one_byte = b"transfer-encoding: chunked\r\n", b"1\r\nx\r\n" * 1_000_000
    keys = json.dumps({f"{i:x}": 1 for i in range(110_000)}, separators=(",", ":")).encode()
    lists = b'{"texts":[' + b",".join([b"[1]"] * 200_000) + b"]}"
    objects = b'{"texts":[' + b",".join([b'{"":1}'] * 140_000) + b"]}"
    escapes = b'{"prompt":"' + b"\\u00e4" * (_BODY // 6) + b'"}'
    digits = b'{"prompt":"a","top_p":0.' + b"1" * _BODY + b"}"
    found = {
        "nothing": b"",
        "1,000,000 chunks, no key": request("/v1/completions", one_byte, False, chunked),
        "1,000,000 chunks": request("/v1/completions", one_byte, True, chunked),
        "60,000 trailers": request("/api/score", b"0\r\n" + b"a:b\r\n" * 60_000, True, chunked),
        "110,000 unknown fields": request("/v1/completions", keys),
        "200,000 lists": request("/api/score", lists[:_BODY]),
        "140,000 objects": request("/api/score", objects[:_BODY]),
        "170,000 escapes": request("/v1/completions", escapes),
        "1,000,000 digits": request("/v1/completions", digits[:_BODY]),
        "4,000 headers": request("/v1/completions", b"{}", True, b"a:\r\n" * 4000),
        "60,000 headers": request("/v1/completions", b"{}", True, b"a:\r\n" * 60_000),
        "20 KB of address": request("/" + "a" * 20_000, b"{}"),
    }
    most = 2_900  # values: fewer than are allowed
    few_keys = json.dumps({f"{i:x}": 1 for i in range(most)}).encode()
    found["2,900 unknown fields"] = request("/v1/completions", few_keys)
    found["2,900 wrong texts"] = request("/v1/embeddings", b'{"input":[%s1]}' % (b"1," * most))
    chat = b'{"messages":[' + b",".join([b"{}"] * 1_400) + b"]}"
    found["1,400 wrong messages"] = request("/v1/chat/completions", chat)
    return found


def attack(name: str, host: str, port: int, seconds: float) -> None:
    """Send a hostile request until the time is up; print how often."""
    raw, end, sent = attacks()[name], time.monotonic() + seconds, 0
    while time.monotonic() < end and raw:
        with suppress(OSError), socket.create_connection((host, port), timeout=30) as connection:
            with suppress(OSError):
                connection.sendall(raw)
            while connection.recv(2**16):
                pass
        sent += 1
    print(sent)


def probe(host: str, port: int, seconds: float) -> list[float]:
    """Milliseconds that `/healthz` took, again and again."""
    end, took = time.monotonic() + seconds, []
    connection = http.client.HTTPConnection(host, port, timeout=60)
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        took.append((time.perf_counter() - began) * 1e3)
        if answer.status != 200:
            raise RuntimeError(f"/healthz is {answer.status}")
        time.sleep(0.005)
    return sorted(took)


def measure(name: str, host: str, port: int, given: argparse.Namespace) -> float:
    """The p99 under an attack, printed with the rest of its row."""
    command = [sys.executable, __file__, "--attack", name, host, str(port), str(given.seconds + 2)]
    attackers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(given.clients)
    ]
    time.sleep(1.5)  # they make their requests first
    took = probe(host, port, given.seconds)
    sent = sum(int(each.communicate()[0] or 0) for each in attackers)
    p50, p99 = took[len(took) // 2], took[int(0.99 * (len(took) - 1))]
    print(f"| {name} | {sent} | {p50:.1f} | {p99:.1f} | {took[-1]:.1f} |", flush=True)
    return p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--clients", type=int, default=1, help="hostile clients at a time")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--attack", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        name, host, port, seconds = given.attack
        attack(name, host, int(port), float(seconds))
        return
    os.environ["LIMELIGHT_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder) / "tiny", TINY)
        with serving(Path(folder) / "tiny", "cpu") as (url, _):
            host, port = url.removeprefix("http://").split(":")
            print(
                "| one client sends | times | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|"
            )
            rows = [name for name in attacks() if given.only in name]
            slow = [name for name in rows if measure(name, host, int(port), given) >= GOAL]
    print(f"\np99 of {GOAL} ms or more: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()
