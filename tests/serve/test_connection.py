"""What comes over a connection is bounded before it is parsed; a real socket, and no model."""

import asyncio
import json
import socket

import pytest
import uvicorn

from limelight.serve.connection import BoundedProtocol
from limelight.serve.middleware import _has_more_values
from tests.serve.test_middleware import KEY, Front

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
CLOSE = b"connection: close\r\n"
FINE = b'{"prompt":"a","user":5}'  # is understood, and refused for its user


class Line:
    """Connections to an application, and what has parsed what they sent."""

    def __init__(self, front, protocol=BoundedProtocol):
        self.front, self.protocol, self.parsers = front, protocol, []

    async def __aenter__(self):
        line, front = self, self.front

        class Protocol(self.protocol):
            limits, metrics = front.limits, front.metrics

            def connection_made(self, transport):
                super().connection_made(transport)
                line.parsers.append(self)

        config = uvicorn.Config(
            front.app, http=Protocol, lifespan="off", log_config=None, ws="none"
        )
        config.load()
        state = uvicorn.server.ServerState()
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            lambda: Protocol(config, state, {}), "127.0.0.1", 0, family=socket.AF_INET
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def send(self, *pieces):
        """The answer to these bytes, until the service ends the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        answer = b""
        try:
            async with asyncio.timeout(20):
                while piece := await reader.read(2**16):
                    answer += piece
        except ConnectionResetError:  # after the answer: the rest of a body was not wanted
            pass
        writer.close()
        return answer


def answers_to(*pieces, front=None):
    """The answer to one connection, and its parser."""

    async def talk():
        async with Line(front or Front()) as line:
            return await line.send(*pieces), line.parsers[0]

    return asyncio.run(talk())


def status_and_code(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize("key", ["", KEY])
def test_a_million_chunks_are_not_parsed(key):
    """With a key that the client does not have, the refusal is another one, and as early."""
    answer, parser = answers_to(HEAD + CHUNKED + b"1\r\nx\r\n" * 1_000_000, front=Front(key=key))
    assert status_and_code(answer) == ((401, "wrong_key") if key else (413, "too_large"))
    assert parser.chunks == parser.limits.chunks + 1


def test_as_many_chunks_as_are_allowed_are_read():
    """The control."""
    padded = FINE + b" " * (1000 - len(FINE))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in padded)
    answer, _ = answers_to(HEAD + CLOSE + CHUNKED + chunks + b"0\r\n\r\n")
    assert status_and_code(answer) == (422, "invalid_field")


def test_bytes_around_chunks_have_bounds():
    """Few chunks, each with a long extension."""
    chunk = b"1;" + b"x" * 10_000 + b"\r\n \r\n"
    answer, parser = answers_to(HEAD + CHUNKED, *[chunk] * 900)
    assert status_and_code(answer) == (413, "too_large")
    assert parser.chunks < 200


def test_after_a_refusal_the_rest_is_not_parsed_and_the_connection_ends():
    front = Front(key=KEY)
    body = b"content-length: 900000\r\n\r\n" + b"x" * 400_000
    answer, _ = answers_to(HEAD + body, front=front)  # and the rest never comes
    assert status_and_code(answer) == (401, "wrong_key")
    both = HEAD + b"content-length: 5\r\n\r\n{    GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    answer, _ = answers_to(both, front=front)
    assert status_and_code(answer) == (401, "wrong_key")  # and not the health


def test_a_request_that_was_read_keeps_its_connection():
    """The control: two requests, the first of them refused by its route."""
    fine = HEAD + b"content-length: %d\r\n" % len(FINE)
    answer, _ = answers_to(fine + b"\r\n" + FINE + fine + b"connection: close\r\n\r\n" + FINE)
    assert answer.count(b"HTTP/1.1 422") == 2


def test_a_broken_body_is_answered_and_counted_once():
    front = Front()
    answer, _ = answers_to(HEAD + CHUNKED + b"zz\r\n", front=front)
    assert status_and_code(answer) == (400, "invalid_http")
    counted = [s for s in front.metrics.requests.collect()[0].samples if s.name.endswith("total")]
    assert [(s.labels["status"], s.value) for s in counted] == [("400", 1)]


@pytest.mark.parametrize("more", [0, 1])
def test_the_limit_of_headers_is_exact(more):
    limit = Front().limits.header
    start = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
    raw = start + b"y" * (limit - len(start) - 4 + more) + b"\r\n\r\n"
    answer, _ = answers_to(raw)
    assert answer.startswith(b"HTTP/1.1 431" if more else b"HTTP/1.1 200")


@pytest.mark.parametrize("count", [3000, 190])
def test_headers_that_are_too_many_are_not_parsed(count):
    last = CLOSE + b"\r\n"
    answer, parser = answers_to(HEAD.replace(b"POST", b"GET") + b"a:\r\n" * count + last)
    few = count < 200
    assert status_and_code(answer) == ((405, "wrong_method") if few else (431, "too_large"))
    assert parser.fields == (count + 3 if few else 201)


@pytest.mark.parametrize("host", [b"", b"host: localhost\r\nhost: localhost\r\n"])
def test_there_is_one_host(host):
    answer, _ = answers_to(b"GET /healthz HTTP/1.1\r\n" + host + b"\r\n")
    assert status_and_code(answer) == (400, "invalid_http")
    fine, _ = answers_to(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert fine.startswith(b"HTTP/1.1 200")


def test_other_versions_are_named():
    answer, _ = answers_to(b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n")
    assert status_and_code(answer) == (400, "invalid_http")
    assert b"HTTP/2.0 is not supported" in answer


def test_requests_behind_one_are_parsed_when_it_is_answered():
    """Thousands in one piece would otherwise all wait in memory."""
    one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    waited = []

    class Protocol(BoundedProtocol):
        def on_headers_complete(self):
            waited.append(self.idle)
            super().on_headers_complete()

    async def talk():
        async with Line(Front(), Protocol) as line:
            return await line.send(one * 200 + one.replace(b"\r\n\r\n", b"\r\n" + CLOSE + b"\r\n"))

    assert asyncio.run(talk()).count(b"HTTP/1.1 200") == 201
    assert waited == [True] * 201


def test_what_follows_chunks_in_the_same_piece_is_not_answered():
    """Where they end is known when it has been parsed; the connection is closed instead."""
    hidden = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(FINE), FINE)
    answer, _ = answers_to(HEAD + CHUNKED + body + hidden * 5)
    assert status_and_code(answer) == (422, "invalid_field")


def test_headers_behind_chunks_change_nothing():
    front = Front(key=KEY)
    body = b"%x\r\n%s\r\n0\r\n" % (len(FINE), FINE)
    late = b"authorization: Bearer " + KEY.encode() + b"\r\n"
    raw = HEAD + CLOSE
    answer, _ = answers_to(raw + CHUNKED + body + late + b"\r\n", front=front)
    assert status_and_code(answer) == (401, "wrong_key")
    answer, _ = answers_to(raw + late + CHUNKED + body + b"\r\n", front=front)
    assert status_and_code(answer) == (422, "invalid_field")


def test_a_proposal_to_upgrade_is_ignored_but_not_with_a_body():
    """The parser would take the body for the next request."""
    wish = b"connection: upgrade, close\r\nupgrade: h2c\r\n"
    answer, _ = answers_to(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + wish + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    hidden = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for size in (b"content-length: %d\r\n\r\n" % len(hidden), CHUNKED):
        answer, _ = answers_to(HEAD + wish + size + hidden)
        assert status_and_code(answer) == (400, "invalid_http")


@pytest.mark.parametrize(
    "body",
    ["[" + ",".join(["1"] * 50) + "]", json.dumps({str(i): i for i in range(50)}), "[" * 51,
     json.dumps([["a,b{["]] * 25), json.dumps([{"a\\": '"'}] * 25), '[{"":[]}' + ",[]" * 25],
)  # fmt: skip
def test_values_are_counted_without_parsing(body):
    assert _has_more_values(body.encode(), 49)
    assert not _has_more_values(body.encode(), 60)


@pytest.mark.parametrize("text", [",[{" * 1000, '\\",' * 1000, "\\" * 999 + ",", '\n",\n' * 500])
def test_marks_inside_of_texts_are_no_values(text):
    assert not _has_more_values(json.dumps({"prompt": [text, text]}).encode(), 5)
