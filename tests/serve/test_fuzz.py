"""Requests that nobody would send, by the hundred: every one has an answer, and none is a 5xx."""

import json
import random
import time
from contextlib import suppress
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
from tests.serve.samples import JSON, Served, memory_of
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
    with Served(run("writer"), run("chat"), seconds=2, tokens=100) as served:
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
          "tag", "count", "alternatives", "tree", "target", "source", "mode", "top_k")  # fmt: skip
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/api/translate", "/api/fill",
         "/api/suggest", "/api/classify", "/api/score", "/api/neighbours", "/api/trace",
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
