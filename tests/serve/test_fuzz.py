"""Requests that nobody would send, by the hundred: every one has an answer, and none is a 5xx."""

import json
import random
import socket
import time
from contextlib import suppress
from itertools import pairwise
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from pydantic import ValidationError
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from limelight.serve.schemas.trace import TraceToken
from limelight.serve.trace_token import name_of
from tests.serve.samples import JSON, Served, memory_of, until
from tests.serve.test_middleware import LEAKS

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SLOWEST = 5  # seconds


@pytest.fixture(scope="module")
def victim(run):
    """Short deadlines, so that what asks for much does not take long."""
    limits = {"seconds": 2, "tokens": 100, "worker_seconds": 10}
    with Served(run("writer"), run("chat"), **limits) as served:
        yield served


def fuzz(examples):
    """So many examples, and none of Hypothesis' opinions about slow ones."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        derandomize=True,
    )


def check_schema(victim, examples):
    schema = schemathesis.openapi.from_url(f"{victim.url}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:

            @fuzz(examples)
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                began = time.monotonic()
                response = case.call(base_url=victim.url)
                assert time.monotonic() - began < SLOWEST
                if response.status_code not in (503, 504):  # these are answers, and declared
                    case.validate_response(response, checks=CHECKS)
                assert response.status_code == 200 or not LEAKS.search(response.text)

            with suppress(Unsatisfiable):  # what has no parameters cannot be asked wrongly
                check()


TEXTS = st.text(max_size=30) | st.sampled_from(
    ["\x00", "\ud800", "🍌" * 9, "⟨end⟩", "\u202e", " " * 99]
)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
FIELDS = ("prompt", "messages", "text", "texts", "input", "model", "n", "stop", "seed", "beam",
          "max_tokens", "temperature", "top_p", "logprobs", "stream", "nbest", "prefix", "include",
          "tag", "count", "alternatives", "tree", "target", "source", "mode", "top_k", "query",
          "top", "why")  # fmt: skip
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/api/translate", "/api/fill",
         "/api/suggest", "/api/classify", "/api/score", "/api/neighbours", "/api/trace",
         "/api/search",
         "/api/teacher", "/api/next")  # fmt: skip
GOOD = {
    "prompt": "the", "messages": [{"role": "user", "content": "hello"}], "text": "a",
    "texts": ["a"], "input": "a", "model": "chat", "max_tokens": 3,
}  # fmt: skip


def check_fields(victim, examples):
    """Fields with any values at all, among good ones."""

    @fuzz(examples)
    @given(
        st.sampled_from(PATHS), st.dictionaries(st.sampled_from(FIELDS), VALUES), st.booleans(),
        st.sampled_from(["POST", "PUT", "GET", "DELETE", "PATCH", "OPTIONS"]) | st.just("POST"),
    )  # fmt: skip
    def check(path, wrong, good, method):
        known = ("prompt", "max_tokens") if "completions" in path else ("text",)
        body = {**({k: GOOD[k] for k in known} if good else {}), **wrong}
        began = time.monotonic()
        content = json.dumps(body).encode()
        response = victim.client.request(method, path, content=content, headers=JSON)
        assert response.status_code < 500 or response.status_code in (503, 504), response.text
        assert response.status_code != 503, response.text
        assert time.monotonic() - began < SLOWEST
        assert response.status_code == 200 or not LEAKS.search(response.text)

    check()


LOOKS = ("thumbs", "tensor/{name}?head={n}&rows={n}:{m}&as=f16", "focus?at={name}&head={n}",
         "logits?row={n}", "token?side=decoder&row={n}", "stop/{name}?layer={n}&word={word}",
         "stop/mask?head={n}&source={m}", "tensor/decoder.0.self.weights?rows={n}:{m}",
         "tensor/logits?head={n}")  # fmt: skip


def check_traces(victim, examples):
    """Names of traces that nobody was given, and questions that make no sense."""
    numbers = st.integers(0, 12) | st.integers(0, 10**6)

    @fuzz(examples)
    @given(
        text=st.text(max_size=12), name=TEXTS.filter(bool), n=numbers, m=numbers,
        look=st.sampled_from(LOOKS), model=st.sampled_from(["writer", "chat"]),
        settings=st.fixed_dictionaries({}, optional={
            "mode": st.sampled_from(["greedy", "beam", "sample"]), "beam": st.integers(1, 16),
            "temperature": st.floats(0, 2), "top_p": st.floats(0.01, 1), "seed": numbers,
            "max_tokens": st.integers(1, 100), "target": st.text(max_size=9), "tag": TEXTS,
        }),
    )  # fmt: skip
    def check(text, name, n, m, look, model, settings):
        try:
            ticket = name_of(TraceToken(text=text, model=model, **settings))
        except (ValidationError, UnicodeEncodeError):
            return
        word = quote(name.encode("utf-8", "replace"), safe="")
        path = look.format(name=word, n=n, m=m, word=word)
        response = victim.client.get(f"/api/trace/{ticket}/{path}")
        assert response.status_code < 500 or response.status_code == 504, response.text
        assert response.status_code == 200 or not LEAKS.search(response.text)

    check()


def check_bytes(victim, count):
    """Good requests with bytes changed, cut or doubled."""
    dice = random.Random(1)
    good = json.dumps(GOOD | {"stop": ["x"], "temperature": 0.5}).encode()
    for _ in range(count):
        body = bytearray(good)
        for _ in range(dice.randint(1, 8)):
            place = dice.randrange(len(body))
            change = dice.choice(["set", "cut", "double"])
            if change == "set":
                body[place] = dice.randrange(256)
            elif change == "cut":
                del body[place : place + dice.randint(1, 9)]
            else:
                body[place:place] = body[place : place + 20]
        response = victim.client.post(dice.choice(PATHS), content=bytes(body), headers=JSON)
        assert response.status_code < 500, response.text


CLOSE = b"connection: close\r\n"  # of what is read to its end, and would keep its connection


def head(path="/v1/completions", method="POST", version="1.1", more=b""):
    """The beginning of a request, up to its last header."""
    start = f"{method} {path} HTTP/{version}\r\nhost: localhost\r\n"
    return start.encode() + b"content-type: application/json\r\n" + more


def sized(body, path="/v1/completions"):
    return head(path, more=CLOSE) + b"content-length: %d\r\n\r\n" % len(body) + body


LARGE, HEADERS, BROKEN, FIELD, FINE = (
    *("413 too_large", "431 too_large", "400 invalid_http", "422 invalid_field", "200"),
)


def chunked_bodies(dice):
    """More chunks than are allowed, or more around them, in all sizes; the last are fair."""
    fair = head(more=CLOSE + b"transfer-encoding: chunked\r\n\r\n")
    start, end = fair.replace(CLOSE, b""), b"0\r\n\r\n"
    for count in (1001, 1002, 1500, 5000, 20_000, 170_000):
        yield LARGE, start + b"1\r\nx\r\n" * count + end
        yield LARGE, start + b"2;a=b\r\nxy\r\n" * count  # and never ends
        yield LARGE, start + b"".join(b"%X\r\n%s\r\n" % (n, b"x" * n) for n in (1, 2, 3)) * count
    for size in (2**20 + 1, 2**21):
        yield LARGE, start + b"%x\r\n" % size + b" " * size + b"\r\n" + end
        yield LARGE, start + (b"400;" + b"x" * size + b"\r\n" + b" " * 1024 + b"\r\n") * 3 + end
        yield LARGE, start + (b"4;" + b"x" * 10_000 + b"\r\n    \r\n") * (size // 8000) + end
    for count in (4000, 60_000):
        yield HEADERS, fair + b"0\r\n" + b"a: b\r\n" * count + b"\r\n"
    for wrong in (b"g\r\n", b"-1\r\n", b"1\r\nxy\r\n", b"f" * 21 + b"\r\n", b"\r\n", b"1\nx\n"):
        yield BROKEN, start + wrong + end
    for count in (1, 10, 999):
        body = b'{"prompt":"a","user":1}'.ljust(count)
        chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
        yield FIELD, fair + chunks + end


def many_fields(dice):
    """Objects of thousands of fields, at the top and inside; the last are fair, and wrong."""
    values = (b"1", b'"a"', b"null", b"[]", b"{}", b'{"a":"b"}')
    for value in values:
        for count in (3001, dice.randint(3500, 20_000), 60_000):
            field = b",".join(b'"%x":%s' % (i, value) for i in range(count))[: 2**20 - 99]
            inside = dice.choice((b"{%s}", b'{"prompt":"a",%s}', b'{"messages":[{%s}]}', b"[{%s}]"))
            yield LARGE, sized(inside % field, dice.choice(PATHS))
    for count in (2, 100, 1000, 2900):
        keys = b",".join(b'"x%x":1' % i for i in range(count))
        yield FIELD, sized(b"{" + keys + b"}", dice.choice(PATHS))


def nested_lists(dice):
    """Lists of anything, long or deep, in every shape that a megabyte has room for."""
    parts = (b"[1]", b"{}", b'{"":1}', b"[]", b"1", b'"a"', b"null", b"[[]]", b'{"a":[1,"b"]}')
    for part in parts:
        for count in (3001, dice.randint(3500, 20_000), 2**20 // (len(part) + 2)):
            field = dice.choice(("texts", "prompt", "messages", "input", "odd"))
            body = b'{"%s":[%s]}' % (field.encode(), b",".join([part] * count))
            yield LARGE, sized(body[: 2**20], dice.choice(PATHS))
    for depth in (3001, 100_000, 500_000):
        yield LARGE, sized(b"[" * depth)
        yield LARGE, sized((b'{"a":' * depth)[: 2**20])
    for count in (1, 100, 2900):
        yield FIELD, sized(b'{"texts":[' + b",".join([b"1"] * count) + b"]}", "/api/score")
    yield FIELD, sized(b'{"prompt":"' + b",[{" * 10_000 + b'","user":1}')


def header_sizes(dice):
    """Addresses and headers beyond the limit, in one and in many."""
    for size in (2**14, 20_000, 50_000, 10**6):
        yield HEADERS, head("/" + "a" * size) + b"\r\n"
        yield HEADERS, head("/?" + "a=b&" * (size // 4)) + b"\r\n"
        yield HEADERS, head("/healthz", "GET", more=b"x: " + b"y" * size + b"\r\n") + b"\r\n"
        yield HEADERS, head("/healthz", "GET", more=b"a:\r\n" * (size // 4)) + b"\r\n"
        yield HEADERS, head("/healthz", "GET", more=b"x:" + b" " * size + b"y\r\n") + b"\r\n"
        yield HEADERS, head("/healthz", "G" * size) + b"\r\n"
    for size in (100, 8000, 15_000):
        yield FINE, head("/healthz", "GET", more=CLOSE + b"x: " + b"y" * size + b"\r\n") + b"\r\n"


def both_lengths(dice):
    """Two ways to say where a body ends; and a second request hidden behind it."""
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    body = b"0\r\n\r\n" + hidden
    for length in (0, 1, 5, len(body), 10**6):
        own, other = b"content-length: %d\r\n" % length, b"transfer-encoding: chunked\r\n"
        yield BROKEN, head(more=own + other) + b"\r\n" + body
        yield BROKEN, head(more=other + own) + b"\r\n" + body
        yield BROKEN, head(more=own.upper() + b"x: y\r\n" + other.title()) + b"\r\n" + body
        yield BROKEN, head("/healthz", "GET", more=other + own) + b"\r\n" + body
    chunked = b"transfer-encoding: chunked\r\n"
    for more in (chunked * 2, b"transfer-encoding: gzip, chunked\r\n", b"content-length: 1, 2\r\n",
                 b"content-length: 1\r\ncontent-length: 2\r\n", b"content-length: +5\r\n",
                 b"content-length: 5\r\ntransfer-encoding: identity\r\n"):  # fmt: skip
        yield BROKEN, head(more=more) + b"\r\n" + body
    yield BROKEN, head(version="1.0", more=chunked) + b"\r\n" + body


def odd_versions(dice):
    """HTTP/1.0 and HTTP/1.1 are all there is."""
    odd = ("9.9", "0.9", "2.0", "3.0", "1.2", "1.9", "0.0", "2.1", "1", "11", "1.10", "01.1", "x.y",
           "", "1.1.1", "-1.1", "1.1 ", "1,1", "1.", ".1", "1.\u0661", "1.1\t")  # fmt: skip
    for version in odd:
        yield BROKEN, head("/healthz", "GET", version) + b"\r\n"
    yield BROKEN, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield BROKEN, b"GET /healthz\r\n\r\n"
    for version in ("1.0", "1.1"):
        yield FINE, head("/healthz", "GET", version, CLOSE) + b"\r\n"


def answer_to(victim, raw, dice):
    """What comes back for bytes in a few pieces, until the service ends the connection."""
    host, port = victim.url.removeprefix("http://").split(":")
    cuts = sorted(dice.choices(range(min(len(raw), 5000)), k=2))
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # it is closed before all is sent
            for begin, end in pairwise([0, *cuts, len(raw)]):
                connection.sendall(raw[begin:end])
        with suppress(ConnectionError):
            while piece := connection.recv(2**16):
                answer += piece
                if answer.endswith(b"}"):  # that is all: the other side need not wait
                    connection.shutdown(socket.SHUT_WR)
    return answer


@pytest.mark.parametrize(
    "kind", [chunked_bodies, many_fields, nested_lists, header_sizes, both_lengths, odd_versions]
)
def test_hostile_requests_and_their_neighbours_are_refused_once_and_closed(victim, kind):
    dice = random.Random(kind.__name__)
    variants = list(kind(dice))
    assert len(variants) >= 20
    for expected, raw in variants:
        answer = answer_to(victim, raw, dice)
        start, _, body = answer.partition(b"\r\n\r\n")
        assert answer.count(b"HTTP/1.1 ") == 1, raw[:200]  # and nothing that was hidden in it
        status, told = start.split()[1].decode(), json.loads(body)
        found = f"{status} {told['error']['code']}" if "error" in told else status
        assert found.startswith(expected), (raw[:200], answer[:300])
    assert victim.number("worker_deaths_total") == 0
    assert victim.number("requests_total", status="500") == 0
    until(lambda: victim.number("requests_open") == 1, 20)  # the one that asks


def test_hundreds_of_odd_requests_do_no_harm(victim):
    check_schema(victim, examples=4)
    check_fields(victim, examples=250)
    check_traces(victim, examples=100)
    check_bytes(victim, count=100)
    assert victim.number("worker_deaths_total") == 0
    assert victim.number("requests_total", status="500") == 0
    assert victim.client.get("/readyz").status_code == 200


@pytest.mark.soak
def test_ten_thousand_odd_requests_do_no_harm(victim):
    check_fields(victim, examples=500)
    before = memory_of(victim)
    check_schema(victim, examples=100)
    check_fields(victim, examples=4000)
    check_traces(victim, examples=2000)
    check_bytes(victim, count=3000)
    assert victim.number("worker_deaths_total") == 0
    assert victim.number("requests_total", status="500") == 0
    assert memory_of(victim) < 1.05 * before + 20_000
