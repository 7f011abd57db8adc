"""Weights, taps, run folders and the HTTP API are other people's ground: they only ever grow."""

import json

import pytest

from tests.interfaces import GOLDEN, lines, now


def known():
    return {
        tuple(json.loads(line)[:2]): json.loads(line)[2] for line in GOLDEN.read_text().splitlines()
    }


ADDED: dict[tuple[str, str], str] = {  # what was added since, by (part, name), and why
    **{key: "errors: type and param, as OpenAI's" for key in known() if key[0] == "routes"},
    ("run folder", "all"): "what an imported model brings along, and its certificate; and draw's "
    "image tokenizer and sheets of pictures; what other programs log, and their ids",
    ("routes", "GET /healthz"): "devices: where the workers of each model run",
    ("routes", "GET /readyz"): "devices, as /healthz",
    ("routes", "GET /api/model"): "device and precision of the model; images",
    ("routes", "GET /api/runs"): "unreadable: lines of the log that are skipped",
    ("routes", "POST /v1/completions"): "best_of, suffix, logit_bias that ask for nothing",
    ("routes", "POST /v1/chat/completions"): "OpenAI's other fields, if they ask for nothing",
    ("routes", "POST /v1/embeddings"): "dimensions, if they are the model's",
    ("routes", "POST /api/translate"): "log_probability; texts, and their translations; glossary",
    ("routes", "POST /api/suggest"): "first_token_probability",
    ("routes", "POST /api/fill"): "texts, and what fills them",
    ("routes", "POST /api/classify"): "text",
    ("routes", "POST /api/score"): "log_probability; text",
    ("routes", "POST /v1/images/generations"): "draw: pictures, as OpenAI's clients ask for them",
    ("routes", "POST /api/draw"): "draw: pictures, patch by patch",
    ("routes", "POST /api/draw/patch"): "draw: candidates and attention of a patch",
    ("routes", "POST /api/search"): "search by meaning, in texts that are sent",
    ("routes", "GET /api/trace/{trace}/map"): "tokens on a plane, by their embeddings",
    ("routes", "GET /api/trace/{trace}/heads"): "which head matters: each one off once",
    ("routes", "GET /api/trace/{trace}/html"): "the walk as one file",
    ("routes", "GET /api/trace/{trace}/animation"): "the walk as an animated SVG",
    ("routes", "POST /api/ask"): "text to text: a question about a paragraph",
    ("routes", "POST /api/paraphrase"): "text to text: in other words",
    ("routes", "POST /api/summarise"): "text to text: summaries",
    ("routes", "POST /api/trace"): "change: changes of the model; step: a checkpoint of the run",
    ("routes", "GET /api/runs/{name}/steps"): "the checkpoints that can be traced",
}


@pytest.fixture(scope="module")
def facts():
    return {tuple(json.loads(line)[:2]): json.loads(line)[2] for line in lines(now())}


def test_nothing_is_missing_and_additions_are_listed(facts):
    assert facts.keys() - known().keys() == {key for key in ADDED if key not in known()}
    assert known().keys() - facts.keys() == set()


def lost(old, new, way="", request=False):
    """What is not there any more, or is of another type; a request may not demand more either."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            inside = request or key in ("body", "parameters")
            if key == "required":
                less, more = (new.get(key, []), value) if request else (value, new.get(key, []))
                yield from (f"{way} required: {name}" for name in {*less} - {*more})
            elif key not in new:
                yield f"{way} {key}"
            else:
                yield from lost(value, new[key], f"{way} {key}", inside)
        if request:
            yield from (f"{way} required: all" for _ in {"required"} & {*new} - {*old})
    elif isinstance(old, list) and isinstance(new, list):
        for value in old:
            if all(any(lost(value, other, request=request)) for other in new):
                yield f"{way} {value!s:.80}"
    elif old != new:
        yield f"{way}: {old} is now {new!s:.80}"


@pytest.mark.parametrize("key", known(), ids=" ".join)
def test_interfaces_are_as_they_were_or_have_grown(facts, key):
    assert list(lost(known()[key], facts[key])) == []
    if key in ADDED:
        assert facts[key] != known()[key], f"{key} did not change: take it off the list"
    else:
        assert facts[key] == known()[key]


FIELDS = {"fields": {"a": {"type": "string"}}, "required": ["a"]}
WITH_B = {"fields": {**FIELDS["fields"], "b": {"type": "string"}}, "required": ["a"]}
WITHOUT = {"fields": {}, "required": []}
RETYPED = {"fields": {"a": {"type": "integer"}}, "required": ["a"]}
DEMANDS = {**WITH_B, "required": ["a", "b"]}
OPTIONAL = {**FIELDS, "required": []}


@pytest.mark.parametrize(
    ("side", "new", "grown"),
    [
        *(
            (side, new, new in (FIELDS, WITH_B))
            for side in ("answers", "body")
            for new in (FIELDS, WITH_B, WITHOUT, RETYPED)
        ),
        ("answers", DEMANDS, True),
        ("body", DEMANDS, False),
        ("answers", OPTIONAL, False),
        ("body", OPTIONAL, True),
    ],
)
def test_only_growth_is_let_through(side, new, grown):
    """The control of the comparison: fields may come, but not go, and types stay."""
    assert (not list(lost({side: FIELDS}, {side: new}))) is grown
    assert (not list(lost({side: [FIELDS]}, {side: [new, WITHOUT | {"x": 1}]}))) is grown
    assert list(lost(["encoder.input", "logits"], ["logits"]))
    assert list(lost({"w": [2, 3]}, {"w": [2, 4]}))
