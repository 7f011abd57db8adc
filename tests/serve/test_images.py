"""Pictures over HTTP are those of Python, whoever else is served."""

import base64
import io
import json

import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import limelight
from limelight.serve.ipc import HEAD, length_of, unpacked
from limelight.serve.worker.scheduler import Scheduler
from tests.serve.samples import all_at_once
from tests.serve.test_fuzz import VALUES, fuzz

CAPTION = "a small red circle above a large blue square"
PATH = "/v1/images/generations"
NEW = {"n", "prompt", "size", "seed", "guidance", "temperature", "top_k", "top_p", "best_of"}
OURS = {"response_format", "quality", "style", "user", "stream", "patches", "patch", "count"}


@pytest.fixture(scope="module")
def python(run):
    return limelight.load(run("draw"))


def pixels_of(text):
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        return np.asarray(image)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"seed": 7, "n": 3},
        {"seed": 2, "n": 2, "best_of": 3, "guidance": 4.0},
        {"temperature": 0.0},
        {"temperature": 1.5, "top_k": 20, "seed": 5},
        {"n": 20},  # more than are drawn at once
    ],
    ids=str,
)
def test_a_picture_is_what_python_draws(service, python, settings):
    told = service.ask(PATH, model="draw", prompt=CAPTION, **settings)
    drawn = python.draw(CAPTION, **settings).pixels
    assert np.array_equal([pixels_of(one["b64_json"]) for one in told["data"]], drawn)
    assert told["notes"] == []


def test_openais_client_draws(service, python):
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
    asked = {"model": "draw", "prompt": CAPTION, "response_format": "b64_json"}
    for size in ("32x32", "auto", openai.omit):
        told = client.images.generate(**asked, n=2, size=size, extra_body={"seed": 4})
        drawn = python.draw(CAPTION, n=2, seed=4).pixels
        assert np.array_equal([pixels_of(one.b64_json) for one in told.data], drawn)
        assert told.created > 0
    with pytest.raises(openai.UnprocessableEntityError, match="no picture is stored"):
        client.images.generate(**{**asked, "response_format": "url"})


def test_unknown_words_are_named(service):
    told = service.ask(PATH, model="draw", prompt="a red zebra, a quagga")
    assert told["notes"] == [
        "the model has not learned 'zebra', 'quagga': the picture may ignore what it cannot read"
    ]


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"response_format": "url"}, 422, "response_format: no picture is stored: ask for b64_js"),
        ({"size": "1024x1024"}, 422, "size: this model draws pictures of 32x32"),
        ({"style": "vivid"}, 422, "style: not supported: leave it out"),
        ({"quality": "hd"}, 422, "quality: not supported: leave it out, or send"),
        ({"output_format": "webp"}, 422, "output_format: not supported"),
        ({"background": "transparent"}, 422, "background: not supported"),
        ({"stream": True}, 422, "stream: not supported"),
        ({"beam": 2}, 422, "beam: there is no such field"),
        ({"n": 0}, 422, "n: "),
        ({"guidance": -1}, 422, "guidance: "),
        ({"n": 41}, 413, "the request asks for 41 texts"),
        ({"n": 10, "best_of": 5}, 413, "the request asks for 50 texts"),
        ({"prompt": "red " * 17}, 400, "has 17 tokens, and this model reads 16 at most"),
        ({"prompt": "x" * 60_000}, 413, "a text has 60,000 characters"),
        ({"model": "writer"}, 400, "this model cannot draw"),
    ],
    ids=str,
)
def test_what_is_not_possible_is_refused_by_name(service, asked, status, sentence):
    refused = service.post(PATH, **{"model": "draw", "prompt": CAPTION, **asked})
    assert (refused.status_code, sentence in refused.text) == (status, True), refused.text


def test_other_routes_say_what_the_model_is_for(service):
    facts = service.client.get("/api/model", params={"model": "draw"}).json()
    assert facts["abilities"] == ["draw"]
    sizes = {"size": 32, "tokens": 64, "codes": 1000, "caption_tokens": 16}
    assert facts["images"] == sizes
    assert service.client.get("/api/model", params={"model": "writer"}).json()["images"] is None
    assert "draw" in [one["id"] for one in service.client.get("/v1/models").json()["data"]]
    for path, asked in (
        ("/api/trace", {"text": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/api/next", {"text": "a"}),
        ("/api/score", {"texts": [["a"]]}),
    ):
        refused = service.post(path, model="draw", **asked)
        assert refused.json()["error"]["code"] == "not_for_this_model", path


def streamed(service, **asked):
    asked = {"model": "draw", "prompt": CAPTION, **asked}
    with service.client.stream("POST", "/api/draw", json=asked) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_stream_paints_patch_by_patch(service, python):
    *parts, last = streamed(service, n=2, seed=3)
    drawer, config = python.drawer(), python.settings(seed=3)
    *steps, finished, drawing = drawer.draw_in_steps(CAPTION, 2, 1, config)
    assert [part["patches"] for part in parts] == list(range(1, 64)) == [s.size(1) for s in steps]
    assert finished.tolist() == drawing.tokens
    for part, ids in zip(parts[::9], steps[::9], strict=True):
        shown = [pixels_of(one) for one in part["pictures"]]
        assert np.array_equal(shown, drawer.pixels(ids))
    assert [one["tokens"] for one in last["pictures"]] == drawing.tokens
    assert [one["seed"] for one in last["pictures"]] == [3, 4]
    shown = [pixels_of(one["b64_json"]) for one in last["pictures"]]
    assert np.array_equal(shown, drawing.pixels)


def test_a_patch_can_be_chosen_otherwise(service):
    tokens = streamed(service, seed=3)[-1]["pictures"][0]["tokens"]
    same = streamed(service, seed=3, patches=tokens[:21])[-1]["pictures"][0]["tokens"]
    assert same == tokens
    other = (tokens[20] + 1) % 1000
    found = streamed(service, seed=3, patches=[*tokens[:20], other])[-1]["pictures"][0]["tokens"]
    assert found[:21] == [*tokens[:20], other]
    assert found[21:] != tokens[21:]


def test_candidates_and_attention_are_pythons(service, python):
    drawing = python.draw(CAPTION, seed=3)
    asked = {"model": "draw", "prompt": CAPTION, "patches": drawing.tokens[0], "patch": 27}
    told = service.ask("/api/draw/patch", **asked, count=5, guidance=3.0)
    config = python.settings(guidance=3.0)
    view = python.drawer().inspect(CAPTION, drawing.tokens[0], 27, 5, config)
    assert [one["token"] for one in told["candidates"]] == view.tokens
    shares = [one["probability"] for one in told["candidates"]]
    assert shares == pytest.approx(view.probabilities, rel=1e-4)
    shown = [pixels_of(one["b64_json"]) for one in told["candidates"]]
    assert np.array_equal(shown, view.pixels)
    assert told["words"] == CAPTION.split()
    for layer, wanted in zip(told["attention"], view.attention, strict=True):
        assert layer["patches"] == pytest.approx(wanted.patches, abs=1e-6)
    read = python.drawer().read(CAPTION, drawing.tokens[0], config)
    for n, shares in enumerate(told["maps"]):
        assert shares == pytest.approx(read.weights[:, :, :, n].mean(dim=(0, 1)).tolist(), abs=1e-6)
    for wrong in ({"patch": 64}, {"patches": [1] * 63}, {"patches": [1000] * 64}):
        refused = service.post("/api/draw/patch", **{**asked, **wrong})
        assert refused.status_code == 400, refused.text


class Worker:
    """A scheduler whose messages are read."""

    def __init__(self, loaded):
        self.answers = {}
        self.scheduler = Scheduler(loaded, 64, 64, 64, self.read)

    def read(self, frames):
        while frames:
            end = HEAD + length_of(frames[:HEAD])
            message = unpacked(frames[HEAD:end])
            frames = frames[end:]
            if "done" in message:
                self.answers[message["id"]] = message["done"]

    def draw(self, number, n=1, **settings):
        message = {"prompt": CAPTION, "n": n, "best_of": 1, "given": (), "stream": False}
        self.scheduler.on_message({"id": number, "op": "draw", **message, "settings": settings})

    def run_until(self, *numbers):
        while not {*numbers} <= self.answers.keys():
            assert self.scheduler.busy
            self.scheduler.step()


def test_a_long_drawing_lets_others_have_their_turn(python):
    worker = Worker(python)
    worker.draw(1, n=48)
    worker.scheduler.step()
    worker.draw(2, seed=9)
    worker.scheduler.on_message({"id": 3, "op": "neighbours", "text": "red", "count": 2})
    worker.run_until(3)
    assert 2 not in worker.answers  # it waits for one block, and not for all three
    worker.run_until(2)
    assert 1 not in worker.answers
    worker.run_until(1)
    tokens = [one["tokens"] for one in worker.answers[1]["pictures"]]
    assert tokens == python.draw(CAPTION, n=48).tokens
    assert worker.answers[2]["pictures"][0]["tokens"] == python.draw(CAPTION, seed=9).tokens[0]


def test_a_cancelled_drawing_ends_at_once(python):
    worker = Worker(python)
    worker.draw(1, n=16)
    worker.draw(2)
    worker.scheduler.step()
    assert worker.scheduler.pictures.busy
    worker.scheduler.on_message({"id": 1, "op": "cancel"})
    assert not worker.scheduler.pictures.busy
    worker.run_until(2)
    assert not worker.scheduler.busy
    assert 1 not in worker.answers


def test_among_others_it_is_the_same(service, python):
    asked = [{"model": "draw", "prompt": CAPTION, "seed": seed, "n": seed} for seed in (1, 2, 3)]
    requests = [(PATH, one) for one in asked]
    requests += [("/v1/completions", {"model": "writer", "prompt": "the", "max_tokens": 9})] * 4
    answers = [response.json() for response in all_at_once(service, requests)]
    for one, told in zip(asked, answers, strict=False):
        drawn = python.draw(CAPTION, n=one["n"], seed=one["seed"]).pixels
        assert np.array_equal([pixels_of(x["b64_json"]) for x in told["data"]], drawn)
    assert all("choices" in told for told in answers[3:])


def test_nothing_that_is_sent_breaks_it(service):
    paths = st.sampled_from([PATH, "/api/draw", "/api/draw/patch"])
    known = {"prompt": CAPTION, "patches": [1] * 64, "patch": 3}

    @fuzz(150)
    @given(paths, st.dictionaries(st.sampled_from(sorted(NEW | OURS)), VALUES, max_size=3))
    def check(path, wrong):
        fields = known if path.endswith("patch") else {"prompt": CAPTION}
        content = json.dumps({"model": "draw", **fields, **wrong}).encode()
        headers = {"content-type": "application/json"}
        response = service.client.post(path, content=content, headers=headers)
        assert response.status_code < 500, response.text
        assert response.status_code != 200 or "[DONE]" in response.text or response.json()

    check()
    assert service.ask(PATH, model="draw", prompt=CAPTION)["data"]
