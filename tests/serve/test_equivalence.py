"""The same request has the same answer: alone, among others, over HTTP, in Python, at the shell."""

import json
import math
import random
import subprocess
from itertools import zip_longest

import openai
import pytest

from limelight.explain.traced_text import TooLongError
from limelight.serve.worker.jobs import chat, complete
from limelight.tasks.search import rank_texts, why
from tests.serve.samples import all_at_once, exact

SOURCES = ["a b c", "c a", "b b a", "e d c b a", "a", "f a b c d e"]
WAYS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "sampled": {"temperature": 1.1, "top_k": 8, "seed": 7},
}


def python_answers(known, way):
    """Requests, and what Python says to them."""
    settings = WAYS[way]
    for text in SOURCES:
        asked = {"model": "reverse", "text": text, **settings}
        yield "/api/translate", asked, known["reverse"].translate(text, **settings).text
        if way == "beam":  # which is not for writing
            continue
        asked = {"model": "writer", "prompt": text, "max_tokens": 50, **settings}
        answer = known["writer"].write(text, max_tokens=50, **settings)
        yield "/v1/completions", asked, answer
    for said in ("hello", "a friend", "how are you?"):
        asked = {"model": "chat", "messages": [{"role": "user", "content": said}], **settings}
        yield "/v1/chat/completions", asked, known["chat"].chat(**settings).reply(said)


def text_of(response):
    assert response.status_code == 200, response.text
    told = response.json()
    if "choices" not in told:
        return told["text"]
    choice = told["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def test_words_are_kept_or_their_lack_is_told(service):
    wish = {"model": "reverse", "text": "a b", "beam": 4, "include": ["e d"]}
    assert "e d" in service.ask("/api/translate", **wish)["text"]
    refused = service.post("/api/translate", **wish, max_tokens=2)
    assert refused.status_code == 400
    assert "no translation with 'e d' was found" in refused.text
    refused = service.post("/api/translate", **wish, exclude=["d"])
    assert (refused.status_code, "and 'd' excluded" in refused.text) == (400, True)


def test_a_glossary_is_used_where_the_source_has_the_term(service):
    asked = {"model": "reverse", "texts": ["a b", "c d"], "beam": 4, "glossary": {"a": "x y"}}
    first, second = service.ask("/api/translate", **asked)["translations"]
    assert ("x y" in first["text"], second["text"]) == (True, "d c")
    assert "missing_terms" not in first
    first, _ = service.ask("/api/translate", **asked, max_tokens=2)["translations"]
    assert first["missing_terms"] == ["x y"]
    refused = service.post("/api/translate", **{**asked, "beam": 1})
    assert (refused.status_code, "need a beam" in refused.text) == (400, True)


@pytest.mark.parametrize("way", WAYS)
def test_alone_it_is_what_python_says(service, known, way):
    for path, asked, answer in list(python_answers(known, way))[::4]:
        assert text_of(service.post(path, **asked)) == answer


def test_among_many_others_it_is_the_same(service, known):
    requests = [each for way in WAYS for each in python_answers(known, way)] * 3
    random.Random(1).shuffle(requests)
    responses = all_at_once(service, [(path, asked) for path, asked, _ in requests])
    assert [text_of(response) for response in responses] == [answer for *_, answer in requests]


def test_at_the_shell_it_is_the_same(service, run, programs):
    def shell(command, name, *arguments):
        line = [programs / "limelight", command, exact(run(name)), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return done.stdout.removesuffix("\n")

    told = [service.ask("/api/translate", model="reverse", text=text)["text"] for text in SOURCES]
    assert shell("translate", "reverse", *SOURCES) == "\n".join(told)
    settings = {"temperature": 1.0, "seed": 5, "max_tokens": 40}
    told = service.ask("/v1/completions", model="writer", prompt="the", **settings)
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    assert shell("write", "writer", "the", *arguments) == "the" + told["choices"][0]["text"]


def pieces_of(service, path, **asked):
    """The events of a stream."""
    with service.client.stream("POST", path, json={**asked, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_the_whole_in_pieces(service, way):
    for path, asked in (
        ("/v1/completions", {"model": "writer", "prompt": "the", "max_tokens": 60, "n": 3}),
        ("/v1/completions", {"model": "reverse", "prompt": "a b c"}),
        ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "a"}]}),
    ):
        if (asked["model"], way) == ("writer", "beam"):
            refused = service.post(path, **asked, beam=4)
            assert (refused.status_code, "beam=4 is not" in refused.text) == (400, True)
            continue
        settings = {**asked, **WAYS[way]}
        whole = service.ask(path, **settings)
        events = pieces_of(service, path, **settings, stream_options={"include_usage": True})
        assert events[-1]["usage"] == whole["usage"]
        for choice in whole["choices"]:
            own = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
            joined = "".join(c.get("text", c.get("delta", {}).get("content") or "") for c in own)
            assert joined == choice.get("text", choice.get("message", {}).get("content"))
            assert own[-1]["finish_reason"] == choice["finish_reason"]
            deltas = [c["delta"] for c in own if "delta" in c]  # clients join all of their texts
            assert "".join(d.get("role", "") for d in deltas) == ("assistant" if deltas else "")


def test_n_texts_have_n_seeds(service, known):
    asked = {"model": "writer", "prompt": ["the", "a"], "max_tokens": 20, "temperature": 2.0}
    told = service.ask("/v1/completions", **asked, n=3, seed=5)
    texts = [choice["text"] for choice in told["choices"]]
    settings = {"max_tokens": 20, "temperature": 2.0}
    expected = [
        known["writer"].write(prompt, seed=5 + i, **settings)
        for prompt in ("the", "a")
        for i in range(3)
    ]
    assert texts == expected
    assert [choice["index"] for choice in told["choices"]] == list(range(6))


def test_stop_and_length_are_told(service, known):
    whole = known["writer"].write("the cat", max_tokens=30)
    asked = {"model": "writer", "prompt": "the cat", "max_tokens": 30}
    told = service.ask("/v1/completions", **asked, stop=[" by "])["choices"][0]
    assert told["text"] == whole.split(" by ")[0]
    assert told["finish_reason"] == "stop"
    told = service.ask("/v1/completions", **{**asked, "max_tokens": 3})
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 3


def test_a_translation_comes_with_all_that_was_asked_for(service, known):
    asked = {"model": "reverse", "text": "a b c", "nbest": 3, "beam": 4}
    told = service.ask("/api/translate", **asked, alternatives=2, alignment=True, tree=True)
    best = known["reverse"].translate("a b c", nbest=3, beam=4)
    assert [output["text"] for output in told["outputs"]] == [out.text for out in best.outputs]
    assert [output["score"] for output in told["outputs"]] == pytest.approx(
        [out.score for out in best.outputs]
    )
    assert len(told["alternatives"]) == len(told["outputs"][0]["tokens"]) + 1
    assert all(len(place) == 2 for place in told["alternatives"])
    alignment = told["alignment"]
    assert (
        len(alignment["weights"]) == len(alignment["target"]) == len(told["outputs"][0]["tokens"])
    )
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in alignment["weights"])
    assert len(told["tree"]) >= len(told["outputs"][0]["tokens"])
    forced = service.ask("/api/translate", model="reverse", text="a b c", prefix="b")
    assert forced["text"].startswith("b")


def test_a_choice_can_be_made_and_its_prefix_is_aligned_too(service, known):
    asked = {"model": "reverse", "text": "a b c", "beam": 1}
    told = service.ask("/api/translate", **asked, alternatives=3, alignment=True)
    other = next(c for c in told["alternatives"][1][1:] if c["piece"] != "⟨end⟩")
    forced = service.ask("/api/translate", **asked, prefix=other["begin"], alignment=True)
    assert forced["text"] == other["text"] != told["text"]
    tokenizer = known["reverse"].tokenizer
    given = tokenizer.pieces(tokenizer.encode(other["begin"]))
    assert forced["alignment"]["target"] == [*given, *forced["outputs"][0]["tokens"]]
    # What a token looks at depends on what comes before it, and on nothing after it.
    assert forced["alignment"]["weights"][0] == told["alignment"]["weights"][0]
    assert service.client.get("/api/model", params={"model": "chat"}).json()["history"] == 3


def test_a_search_finds_what_python_finds(service, known):
    texts = ["the cat sleeps", "a dog", "", "the river"]
    asked = {"model": "writer", "query": "the cat", "texts": texts}
    told = service.ask("/api/search", **asked, top=2, why=True)["matches"]
    best = rank_texts(known["writer"], "the cat", texts, 2)
    assert [match["index"] for match in told] == [index for _, index in best]
    assert [match["score"] for match in told] == pytest.approx([score for score, _ in best])
    similar = why(known["writer"], "the cat", told[0]["text"])
    pairs = told[0]["why"]
    assert [(m["query"], m["text"]) for m in pairs] == [m[:2] for m in similar.best]
    assert [m["query_span"] for m in pairs] == [list(span) for span in similar.query_spans]
    spans = [list(similar.text_spans[j]) for j in similar.closest]
    assert [m["text_span"] for m in pairs] == spans
    words = [told[0]["text"][slice(*m["text_span"])] for m in pairs]
    assert words == [m["text"] for m in pairs]
    plain = service.ask("/api/search", **asked)["matches"]
    assert len(plain) == 4
    assert "why" not in plain[0]
    for wrong in ({"texts": []}, {"texts": ["a"] * 257}, {"top": 0}, {"query": ""}):
        assert service.post("/api/search", **{**asked, **wrong}).status_code == 422


def test_what_a_model_cannot_do_is_said(service):
    for path, asked in (
        ("/api/fill", {"model": "writer", "text": "a ___"}),
        (
            "/v1/chat/completions",
            {"model": "writer", "messages": [{"role": "user", "content": ""}]},
        ),
        ("/api/suggest", {"model": "reverse", "text": "a"}),
        ("/api/classify", {"model": "chat", "texts": ["a"]}),
    ):
        response = service.post(path, **asked)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "not_for_this_model"


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_cannot_read_whole_is_refused_and_not_cut(service, known, stream):
    longest = known["reverse"].max_len - 1  # the end is read too
    fits, long = "a" * longest, "a" * (longest + 1)
    refused = service.post("/v1/completions", model="reverse", prompt=["a", long], stream=stream)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_long")
    said = refused.json()["error"]["message"]
    assert f"the prompt comes to {longest + 1} tokens, and the model reads {longest}" in said
    turn = {"role": "user", "content": long}
    refused = service.post("/v1/chat/completions", model="reverse", messages=[turn], stream=stream)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_long")
    assert "the last turn comes to" in refused.json()["error"]["message"]
    if not stream:  # the control: what just fits is read whole, and what was said before may be cut
        read = service.ask("/v1/completions", model="reverse", prompt=fits)["usage"]
        assert read["prompt_tokens"] == longest + 1
        turns = [turn, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        told = service.ask("/v1/chat/completions", model="reverse", messages=turns)
        alone = service.ask("/v1/chat/completions", model="reverse", messages=turns[2:])
        assert told["choices"] == alone["choices"]


def test_a_tag_takes_its_room_in_what_is_read(model):
    tagged = model("tagged")
    longest = tagged.max_len - 2  # less the end and the tag
    asked = {"n": 1, "stop": [], "top": 0, "stream": False, "logprobs": False, "tag": "back"}
    complete(tagged, {**asked, "prompts": ["a" * longest]})
    chat(tagged, {**asked, "turns": ["a" * longest]})
    for do, texts in ((complete, "prompts"), (chat, "turns")):
        with pytest.raises(TooLongError, match=rf"the model reads {longest}: shorten it"):
            do(tagged, {**asked, texts: ["a" * (longest + 1)]})


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "the"}),
        ("/api/trace", {"text": "the"}),
        ("/api/teacher", {"source": "the", "target": " cat"}),
        ("/api/score", {"texts": [["the"]]}),
    ],
)
def test_a_tag_is_refused_by_a_model_that_learned_none(path, asked, service):
    response = service.post(path, model="writer", tag="de", **asked)
    assert response.status_code == 400
    said = response.json()["error"]["message"]
    assert said == "this model learned no tags, so there is no 'de'"


def test_the_official_client_works_unchanged(service, known):
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
    assert {"reverse", "writer", "chat", "draw"} == {model.id for model in client.models.list()}
    assert client.models.retrieve("chat").id == "chat"
    done = client.completions.create(
        model="writer", prompt="the", max_tokens=10, temperature=0, logprobs=3, seed=1
    )
    assert done.choices[0].text == known["writer"].write("the", max_tokens=10)
    assert done.usage.completion_tokens == len(done.choices[0].logprobs.tokens)
    assert len(done.choices[0].logprobs.top_logprobs[0]) == 3
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    said = client.chat.completions.create(
        model="chat", messages=messages, logprobs=True, top_logprobs=2, extra_body={"beam": 1}
    )
    assert said.choices[0].message.content == known["chat"].chat(beam=1).reply("hello")
    assert len(said.choices[0].logprobs.content[0].top_logprobs) == 2
    pieces = client.chat.completions.create(model="chat", messages=messages, stream=True)
    joined = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert joined == known["chat"].chat().reply("hello")
    counts, asked = [], {"model": "chat", "messages": messages, "temperature": 2}
    for seed in range(6):  # some are long enough for several pieces
        with client.chat.completions.stream(**asked, seed=seed, extra_body={"beam": 1}) as events:
            counts.append(sum(event.type == "chunk" for event in events))
            (joined,) = events.current_completion_snapshot.choices
            assert joined.message.role == "assistant"
    assert max(counts) > 2
    vectors = client.embeddings.create(model="writer", input=["the cat", "a dog"])
    expected = known["writer"].embed("the cat")
    assert vectors.data[0].embedding == pytest.approx(expected, abs=1e-6)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="")
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model="writer", prompt="", temperature=-1)


HELLO = [{"role": "user", "content": "hello"}]
NEUTRAL = {  # what OpenAI's clients and the programs above them send as defaults
    "n": 1, "stop": None, "seed": None, "user": "me", "logit_bias": {}, "stream_options": None,
    "frequency_penalty": 0, "presence_penalty": 0.0, "response_format": {"type": "text"},
    "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "functions": [],
    "function_call": "auto", "store": False, "metadata": {}, "modalities": ["text"],
    "service_tier": "auto", "reasoning_effort": "none", "verbosity": "medium", "audio": None,
    "prediction": None, "safety_identifier": "x", "prompt_cache_key": "y", "top_logprobs": None,
    "prompt_cache_retention": "in_memory", "logprobs": False, "max_completion_tokens": None,
}  # fmt: skip
DEMANDING = {
    "response_format": {"type": "json_object"}, "tool_choice": "required", "logit_bias": {"50": 1},
    "tools": [{"type": "function", "function": {"name": "f"}}], "functions": [{"name": "f"}],
    "function_call": {"name": "f"}, "store": True, "metadata": {"a": "b"}, "modalities": ["audio"],
    "service_tier": "flex", "reasoning_effort": "high", "verbosity": "low", "prediction": {},
    "audio": {"voice": "alloy", "format": "wav"}, "web_search_options": {}, "moderation": {},
    "frequency_penalty": 0.1, "presence_penalty": -1, "prompt_cache_retention": "24h",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(service):
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def test_what_asks_for_nothing_changes_nothing(client):
    plain = client.chat.completions.create(model="chat", messages=HELLO)
    said = client.chat.completions.create(model="chat", messages=HELLO, **NEUTRAL)
    assert said.choices == plain.choices
    for name in NEUTRAL:  # nothing at all asks for nothing too
        client.chat.completions.create(model="chat", messages=HELLO, extra_body={name: None})
    turns = [*HELLO, plain.choices[0].message.model_dump(), *HELLO]  # with refusal: null and more
    client.chat.completions.create(model="chat", messages=turns)
    asked = {"model": "writer", "prompt": "the", "max_tokens": 5, "n": 2}
    neutral = {"best_of": 2, "suffix": "", "logit_bias": {"50": 0}, "echo": False}
    done = client.completions.create(**asked, **neutral)
    assert done.choices == client.completions.create(**asked).choices
    (vector,) = client.embeddings.create(model="writer", input="the").data
    asked = {"model": "writer", "input": "the", "dimensions": len(vector.embedding)}
    assert client.embeddings.create(**asked).data == [vector]


@pytest.mark.parametrize("name", DEMANDING)
def test_what_asks_for_more_is_refused_by_name(client, name):
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(
            model="chat", messages=HELLO, extra_body={name: DEMANDING[name]}
        )
    error = refused.value
    assert (error.param or "").split(".")[0] == name
    assert error.body["message"].startswith(name)
    assert (error.type, error.code) == ("invalid_request_error", "invalid_field")


def test_more_candidates_and_other_widths_are_refused_by_name(client):
    for ask, name in (
        (lambda: client.completions.create(model="writer", prompt="a", best_of=3), "best_of"),
        (lambda: client.completions.create(model="writer", prompt="a", suffix="b"), "suffix"),
        (
            lambda: client.embeddings.create(model="writer", input="a", dimensions=1),
            "dimensions",
        ),
    ):
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            ask()
        assert refused.value.param == name
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="")
    error = missing.value
    assert (error.type, error.param, error.code) == (
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert "'other'" in error.message
    with pytest.raises(openai.BadRequestError) as wrong:  # the control: no single field is wrong
        client.completions.create(model="writer", prompt="", extra_body={"beam": 4})
    assert (wrong.value.type, wrong.value.param) == ("invalid_request_error", None)


def test_logprobs_need_no_other_setting(client, known):
    assert known["chat"].recipe.decode.beam > 1
    asked = {"model": "chat", "messages": HELLO, "logprobs": True}
    said = client.chat.completions.create(**asked, top_logprobs=2).choices[0]
    assert said.message.content == known["chat"].chat(beam=1).reply("hello")
    assert {len(token.top_logprobs) for token in said.logprobs.content} == {2}
    # Without alternatives, the recipe's beam is used as ever.
    said = client.chat.completions.create(**asked).choices[0]
    assert said.message.content == known["chat"].chat().reply("hello")
    assert said.logprobs.content[0].top_logprobs == []
    streamed = client.chat.completions.create(**asked, top_logprobs=2, stream=True)
    parts = [event.choices[0] for event in streamed]
    tokens = [token for part in parts if part.logprobs for token in part.logprobs.content]
    assert {len(token.top_logprobs) for token in tokens} == {2}
    asked = {"model": "writer", "prompt": "the", "max_tokens": 40, "logprobs": 0, "seed": 3}
    (whole,) = client.completions.create(**asked).choices
    streamed = [event.choices[0] for event in client.completions.create(**asked, stream=True)]
    offsets = [at for part in streamed if part.logprobs for at in part.logprobs.text_offset]
    assert offsets == whole.logprobs.text_offset
    asked = {"model": "chat", "messages": HELLO, "logprobs": True}
    with pytest.raises(openai.BadRequestError, match="a beam of 4 does not report"):
        client.chat.completions.create(**asked, top_logprobs=2, extra_body={"beam": 4})


def test_errors_of_a_stream_have_the_same_form(service):
    asked = {"model": "writer", "prompt": "the", "max_tokens": 4000, "temperature": 2.0}
    with service.client.stream(
        "POST", "/v1/completions", json={**asked, "n": 16, "stream": True, "timeout": 0.3}
    ) as response:
        last = [line for line in response.iter_lines() if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, "timeout")


def test_one_text_or_several_are_asked_for_in_the_same_way(service, known):
    asked = {"model": "reverse", "nbest": 2, "beam": 4}
    each = [service.ask("/api/translate", **asked, text=text) for text in (*SOURCES, "")]
    told = service.ask("/api/translate", **asked, texts=[*SOURCES, ""])
    assert [done["text"] for done in told["translations"]] == [done["text"] for done in each]
    assert told == {**told["translations"][0], "translations": told["translations"]}
    assert set(each[0]) == {"text", "parts", "outputs"}
    for done, one in zip(told["translations"], each, strict=True):
        assert [o["tokens"] for o in done["outputs"]] == [o["tokens"] for o in one["outputs"]]
    pair = ["a b", "b a"]
    told = service.ask("/api/score", model="reverse", texts=[pair])
    assert service.ask("/api/score", model="reverse", text=pair) == told
    told = service.ask("/api/score", model="writer", texts=[["the cat"]])
    assert service.ask("/api/score", model="writer", text="the cat") == told
    for path in ("/api/translate", "/api/fill", "/api/classify", "/api/score"):
        for wrong in ({}, {"text": "a", "texts": ["a"]}, {"texts": []}, {"text": None}):
            refused = service.post(path, **wrong)
            assert refused.status_code == 422
            assert "text" in refused.json()["error"]["message"]
    refused = service.post("/api/translate", model="reverse", texts=["a", "b"], alignment=True)
    assert (refused.status_code, "one text at a time" in refused.text) == (400, True)
    refused = service.post("/api/translate", model="reverse", texts=["a"] * 65)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_many_texts")


def test_readers_accept_one_text_or_several_too(as_trained):
    texts, ask = ["the ___ sat", "a ___ ___"], as_trained.ask
    told = ask("/api/fill", model="bert", texts=texts, count=2)
    each = [ask("/api/fill", model="bert", text=text, count=2) for text in texts]
    assert told == {**each[0], "filled": each}
    told = ask("/api/classify", model="classifier", texts=["good"])
    assert ask("/api/classify", model="classifier", text="good") == told


@pytest.mark.parametrize("way", WAYS)
def test_a_log_probability_is_a_sum_whatever_the_search(service, known, way):
    told = service.ask("/api/translate", model="reverse", text="e d c b a", **WAYS[way])
    (output,) = told["outputs"]
    given = f"e d c b a\t{told['text']}".split("\t")
    (scored,) = service.ask("/api/score", model="reverse", texts=[given])["scores"]
    assert output["log_probability"] == pytest.approx(sum(output["logprobs"]))
    assert output["log_probability"] == pytest.approx(scored["log_probability"], abs=1e-4)
    assert scored["total"] == scored["log_probability"]
    found = known["reverse"].translate("e d c b a", **WAYS[way]).outputs[0]
    assert found.log_probability == pytest.approx(output["log_probability"])
    length = len(output["logprobs"])
    penalty = ((5 + length) / 6) ** known["reverse"].recipe.decode.length_penalty
    ranked = output["log_probability"] / (penalty if way == "beam" else 1)
    assert output["score"] == pytest.approx(ranked)


def test_the_tree_sums_too(service):
    asked = {"model": "reverse", "text": "a b c", "beam": 4, "tree": True}
    told = service.ask("/api/translate", **asked)
    ends = [node for step in told["tree"] for node in step if node["ended"]]
    best = max(ends, key=lambda node: node["score"])
    assert best["log_probability"] == pytest.approx(told["outputs"][0]["log_probability"])
    assert best["score"] == pytest.approx(told["outputs"][0]["score"])


def test_a_suggestion_has_its_own_probability_and_that_of_its_first_token(service, known):
    told = service.ask("/api/suggest", model="writer", text="the cat", n=3, max_tokens=6)
    tokenizer = known["writer"].tokenizer
    for one in told["suggestions"]:
        text = "the cat" + one["text"]
        (scored,) = service.ask("/api/score", model="writer", text=text)["scores"]
        read = len(tokenizer.encode("the cat"))
        own = scored["logprobs"][read : read + 6]
        assert one["first_token_probability"] == pytest.approx(math.exp(own[0]))
        assert one["probability"] == pytest.approx(math.exp(sum(own)))
        assert one["probability"] < one["first_token_probability"]


def test_what_cannot_be_scored_is_told_in_words_that_are_true_here(service):
    for name, texts, sentence in (
        ("reverse", ["a"], "this model scores a source and a target, got 1 text"),
        ("writer", ["a", "b"], "this model scores one text, got 2 texts"),
    ):
        told = service.ask("/api/score", model=name, texts=[texts])["scores"][0]
        assert (told["total"], told["problem"].startswith(sentence)) == (None, True)


def test_a_vector_tells_how_much_of_its_text_was_read(service, known):
    room = known["writer"].max_len - 2
    fits, long = "a" * room, "a" * room + "the cat"
    told = service.ask("/v1/embeddings", model="writer", input=[fits, long])
    assert told["data"][0]["embedding"] == pytest.approx(told["data"][1]["embedding"])
    read = {"prompt_tokens": 2 * room, "total_tokens": 2 * room}
    assert told["usage"] == {**read, "left_out": len("the cat")}
    short = service.ask("/v1/embeddings", model="writer", input=[fits[1:], "the cat"])
    assert short["data"][0]["embedding"] != pytest.approx(told["data"][0]["embedding"])
    assert short["usage"]["prompt_tokens"] == room - 1 + len("the cat")
    assert short["usage"]["left_out"] == 0


def test_an_answer_too_late_is_none(service):
    asked = {"model": "writer", "prompt": "the", "max_tokens": 4000, "temperature": 2.0}
    response = service.post("/v1/completions", **asked, n=16, timeout=0.05)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"


def test_runs_and_models_are_told(service):
    runs = service.client.get("/api/runs").json()["runs"]
    assert [each["name"] for each in runs] == ["reverse", "writer", "chat", "draw"]
    assert all(each["ready"] and each["last"]["loss"] > 0 for each in runs)
    entries = service.client.get("/api/runs/writer/metrics", params={"after": 10}).json()["entries"]
    assert entries
    assert all(entry["step"] > 10 for entry in entries)
    facts = service.client.get("/api/model", params={"model": "chat"}).json()
    assert facts["kind"] == "dialogues"
    page = service.client.get("/about")
    assert page.status_code == 200
    assert "chatbot" in page.text or "chat" in page.text
    assert "<script" not in page.text + service.client.get("/docs").text


def test_in_float32_it_differs_only_at_near_ties(as_trained, model):
    """A batch rounds differently than a text alone: counted, and only where two tokens are even."""
    alone = model("writer")
    prompts = [f"the {who} {i}" for who in ("cat", "dog") for i in range(40)]
    asked = {"model": "writer", "max_tokens": 40, "beam": 1, "logprobs": 2}
    requests = [("/v1/completions", {"prompt": prompt, **asked}) for prompt in prompts]
    choices = [r.json()["choices"][0] for r in all_at_once(as_trained, requests)]
    different = 0
    for prompt, choice in zip(prompts, choices, strict=True):
        text = alone.write(prompt, max_tokens=40, beam=1)
        if choice["text"] == text:
            continue
        different += 1
        pairs = enumerate(zip_longest(choice["text"], text))  # tokens are characters here
        same = next(place for place, (one, other) in pairs if one != other)
        first, second = sorted(choice["logprobs"]["top_logprobs"][same].values(), reverse=True)
        assert first - second < 1e-4
    assert different <= 2


def test_text_to_text_is_what_python_says(service, known):
    reverse, text = known["reverse"], "e d c b a"
    asked = service.ask("/api/ask", model="reverse", question="a b", context="c d")
    assert asked["text"] == reverse.ask("a b", "c d").text
    summary = service.ask("/api/summarise", model="reverse", texts=[text, "a b"])
    assert summary["text"] == reverse.summarise(text).text
    assert [one["text"] for one in summary["translations"]][1] == reverse.summarise("a b").text
    other = service.ask("/api/paraphrase", model="reverse", text="a")
    assert other["text"] == reverse.paraphrase("a").text
    assert len(other["outputs"]) == reverse.decode.beam


def test_text_to_text_is_refused_with_a_reason(service):
    long = service.post("/api/ask", model="reverse", question="a", context="b " * 200)
    assert (long.status_code, "shorten it" in long.text) == (413, True)
    empty = service.post("/api/ask", model="reverse", question="a", context="")
    assert empty.status_code == 422
    writer = service.post("/api/summarise", model="writer", text="a")
    assert (writer.status_code, "this model cannot summarise" in writer.text) == (400, True)
