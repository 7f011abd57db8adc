"""What is told of a model's inside over HTTP is what Python says of it, to the last bit."""

import copy
import json
import math
import os
import shutil
import signal
from itertools import count

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

import limelight
from limelight.decode.accel import changes
from limelight.errors import UserError
from limelight.explain.explanation import explain
from limelight.explain.focus import focus_on
from limelight.explain.render import serialize
from limelight.explain.stages import all_stages, stage_at
from limelight.explain.traced_text import TooLongError
from limelight.serve.ipc import unpacked
from limelight.serve.schemas.trace import TraceToken
from limelight.serve.trace_token import name_of, token_of
from limelight.serve.worker.jobs import error_code
from limelight.serve.worker.scheduler import Scheduler
from limelight.serve.worker.trace_cache import (
    ExpiredError,
    TraceCache,
    example_for,
    next_logits,
    teacher,
    vocabulary,
)
from limelight.tasks.text_model import networks_of
from tests.serve.samples import Served, all_at_once, until
from tests.training.samples import tiny, train_in

NAMES = ("reverse", "writer", "bert", "rnn")
TEXTS = {"reverse": "a b c", "writer": "the cat", "bert": "the ___ sits here."}
WAYS = {
    "as the recipe says": {},
    "greedy": {"mode": "greedy"},
    "beam": {"mode": "beam", "beam": 3},
    "drawn": {"mode": "sample", "temperature": 1.2, "top_k": 5, "seed": 4},
}
SAME = {  # the same in Python
    "as the recipe says": {},
    "greedy": {"beam": 1, "beam_groups": 1, "temperature": 0.0},
    "beam": {"beam": 3, "beam_groups": 1, "temperature": 0.0},
    "drawn": {"beam": 1, "beam_groups": 1, "temperature": 1.2, "top_k": 5, "seed": 4},
}


@pytest.fixture(scope="module")
def models(run):
    """The same in this process."""
    return {name: limelight.load(run(name)) for name in NAMES}


def plain(facts):
    """As it is after a journey."""
    return json.loads(serialize.as_json(facts))


def parts(response):
    """Numbers as a page reads them."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    kind = {"f32": "<f4", "f16": "<f2", "u8": "u1"}[response.headers["x-limelight-kind"]]
    numbers, found = np.frombuffer(response.content, kind), {}
    for name, shape in json.loads(response.headers["x-limelight-parts"]):
        found[name], numbers = np.split(numbers, [math.prod(shape)])
        found[name] = found[name].reshape(shape)
    assert not len(numbers)
    return found


def equal(response, blob):
    """The very bytes."""
    found = parts(response)
    assert response.content == blob.blob
    assert response.headers["x-limelight-kind"] == blob.kind
    assert [(name, value.shape) for name, value in found.items()] == list(blob.parts)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TEXTS)
def test_a_trace_is_the_one_that_python_makes(as_trained, models, name, way):
    told = as_trained.ask("/api/trace", model=name, text=TEXTS[name], **WAYS[way])
    trace = models[name].explain(TEXTS[name], **SAME[way])
    assert told["manifest"] == plain(serialize.manifest(trace))
    assert told["manifest"]["how"] == trace.traced_text.mode


def test_a_given_target_is_taken_for_the_answer(as_trained, models):
    told = as_trained.ask("/api/trace", model="reverse", text="a b c", target="c x a")
    trace = models["reverse"].explain("a b c", target="c x a")
    assert told["manifest"] == plain(serialize.manifest(trace))
    assert told["manifest"]["how"] == "given"


@pytest.mark.parametrize("name", TEXTS)
def test_every_part_of_a_trace_is_the_one_that_python_has(as_trained, models, name):
    told = as_trained.ask("/api/trace", model=name, text=TEXTS[name])
    trace = models[name].explain(TEXTS[name])
    base, get = f"/api/trace/{told['trace']}", as_trained.client.get
    for value in trace.names:
        equal(get(f"{base}/tensor/{value}"), serialize.tensor(trace, value))
    at = serialize.attentions(trace)[-1]
    for begin, end in ((1, 3), (500, 600)):  # behind the last row there is none
        window = {"head": 2, "rows": f"{begin}:{end}", "as": "f16"}
        blob = serialize.tensor(trace, f"{at}.weights", 2, slice(begin, end), "f16")
        equal(get(f"{base}/tensor/{at}.weights", params=window), blob)
    for here in serialize.attentions(trace):
        blob = serialize.attention_head(trace, here, 2)
        equal(get(f"{base}/focus", params={"at": here, "head": 2}), blob)
    equal(get(f"{base}/thumbs"), serialize.thumbnails(trace))
    equal(get(f"{base}/logits", params={"row": 1}), serialize.logits(trace, 1))
    side = "encoder" if name == "bert" else "decoder"
    blob = serialize.token(trace, side, 1)
    equal(get(f"{base}/token", params={"side": side, "row": 1}), blob)


@pytest.mark.parametrize("name", TEXTS)
def test_every_stop_is_the_one_that_python_tells(as_trained, models, name):
    told = as_trained.ask("/api/trace", model=name, text=TEXTS[name])
    trace, base = models[name].explain(TEXTS[name]), f"/api/trace/{told['trace']}/stop"
    for stop in told["manifest"]["stops"]:
        places = {"layer": 1, "head": 2, "source" if name != "writer" else "target": 1}
        rows = (places.get("source"), places.get("target"))
        answer = as_trained.client.get(f"{base}/{stop}", params=places)
        known = stage_at(trace, stop, focus_on(trace, 1, 2, None, rows))
        assert answer.json() == plain(serialize.stage_data(known)), stop
        assert all(check["passed"] for check in answer.json()["checks"])
    by_word = as_trained.client.get(
        f"{base}/softmax",
        params={"word": trace.source.labels[1]}
        if name != "writer"
        else {"word": trace.target.labels[1]},
    )
    assert by_word.status_code == 200


CHANGES = {
    "reverse": ["decoder.0.cross@1=off", "source:2=hide", "target:1=d", "logits=from:c a b"],
    "writer": ["decoder.0.feed_forward=off", "decoder.0.self@1=uniform"],
    "bert": ["encoder.0.self.weights@2=uniform", "encoder.output=scale:0.5"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_trace_is_the_one_that_python_makes(as_trained, models, name):
    text, change = TEXTS[name], CHANGES[name]
    plain_one = as_trained.ask("/api/trace", model=name, text=text)
    told = as_trained.ask("/api/trace", model=name, text=text, change=change)
    trace = models[name].explain(text, change=change)
    assert told["manifest"] == plain(serialize.manifest(trace, trace.comparison))
    assert told["manifest"]["changes"] == change
    url = "/api/trace/{}/tensor/logits"
    equal(as_trained.client.get(url.format(told["trace"])), serialize.tensor(trace, "logits"))
    unchanged = as_trained.client.get(url.format(plain_one["trace"]))
    assert unchanged.content != as_trained.client.get(url.format(told["trace"])).content
    assert "changes" not in plain_one["manifest"]
    again = as_trained.ask("/api/trace", model=name, text=text)
    assert again["manifest"] == plain_one["manifest"]


def test_changes_are_bounded_and_explained(as_trained):
    def refused(change):
        response = as_trained.post("/api/trace", model="reverse", text="a b", change=change)
        return response.status_code, response.json()["error"]["message"]

    for change, status, sentence in (
        (["decoder.0.cros=off"], 400, "did you mean 'decoder.0.cross'"),
        (["decoder.0.cross@99=off"], 400, "there is no head 99"),
        (["decoder.0.cross"], 400, "is not a change"),
        (["source:9=hide"], 400, "there is no source token 9"),
        (["source:1=hide"] * 17, 422, "change"),
        (["a" * 1001], 422, "change"),
        ("decoder.0=off", 422, "change"),
        ([1], 422, "change"),
    ):
        code, message = refused(change)
        assert (code, sentence in message) == (status, True), (change, message)


def test_other_requests_see_no_change(as_trained):
    text = "a b c d e"
    before = as_trained.ask("/api/translate", model="reverse", text=text)
    changed = ("/api/trace", {"model": "reverse", "text": text, "change": ["decoder.0=off"]})
    other = ("/api/translate", {"model": "reverse", "text": text})
    answers = [response.json() for response in all_at_once(as_trained, [changed, other] * 4)]
    (own,) = before["outputs"]
    for answer in answers[1::2]:  # as batches round differently, not to the last bit
        (found,) = answer["outputs"]
        assert found["text"] == own["text"]
        assert found["logprobs"] == pytest.approx(own["logprobs"], abs=1e-4)
    steps = answers[0]["manifest"]["comparison"]["tokens"]
    assert any(abs(before - after) > 1e-2 for _, before, after, _ in steps)


def test_what_there_is_not_is_said(as_trained):
    told = as_trained.ask("/api/trace", model="reverse", text="a b")
    base = f"/api/trace/{told['trace']}"
    for question in (
        "tensor/nothing",
        "focus?at=decoder.9.self",
        "focus?at=decoder.0.self&head=99",
        "logits?row=99",
        "token?row=99",
        "stop/nowhere",
        "stop/mask?layer=9",
        "stop/mask?word=zebra",
        "stop/mask?source=99",
        "tensor/encoder.input?head=1",
    ):
        response = as_trained.client.get(f"{base}/{question}")
        assert response.status_code == 400, question
        assert response.json()["error"]["code"] == "invalid_request"
    response = as_trained.post("/api/trace", model="reverse", text="a " * 500)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_long")
    response = as_trained.post("/api/trace", model="reverse", text="")
    assert response.status_code == 400
    response = as_trained.post("/api/teacher", model="bert", target="a")
    assert response.json()["error"]["code"] == "not_for_this_model"


def test_a_recurrent_model_is_traced_with_all_its_stages(as_trained, models):
    trace = models["rnn"].explain("the cat")
    told = as_trained.post("/api/trace", model="rnn", text="the cat").json()
    base = f"/api/trace/{told['trace']}"
    assert told["manifest"]["stops"] == all_stages(trace)
    assert not told["manifest"]["thumbs"]
    equal(as_trained.client.get(f"{base}/logits?row=1"), serialize.logits(trace, 1))
    view = focus_on(trace, 1, None, None, (None, 2))
    wanted = serialize.stage_data(stage_at(trace, "recurrence", view))
    found = as_trained.client.get(f"{base}/stop/recurrence?layer=1&target=2").json()
    assert found["exhibits"][0]["values"] == wanted["exhibits"][0]["values"]
    gates = grid_of_values(stage_at(trace, "recurrence", view))
    assert np.allclose(found["exhibits"][0]["values"], gates, atol=1e-5)


def grid_of_values(stage):
    return next(figure.values for figure in stage.figures if figure.names == ("cell",))


def test_the_map_is_the_plane_in_which_embeddings_differ_most(as_trained, models):
    told = as_trained.post("/api/trace", model="rnn", text="the cat").json()
    found = as_trained.client.get(f"/api/trace/{told['trace']}/map?side=decoder").json()
    table = models["rnn"].model.get_parameter("target.weight").detach().double().numpy()
    rows = table[found["tokens"]]
    assert sorted(found["tokens"]) == list(range(len(table)))  # there are fewer than 2,000
    own = dict.fromkeys(told["manifest"]["target"]["ids"])
    assert found["tokens"][: found["own"]] == list(own)
    centred = rows - rows.mean(axis=0)
    values, axes = np.linalg.eigh(centred.T @ centred)
    assert np.allclose(found["shares"], values[::-1][:2] / values.sum(), rtol=1e-3)
    shown = np.array(found["points"])
    for axis in (0, 1):
        plane = centred @ axes[:, -1 - axis]
        assert np.allclose(np.abs(shown[:, axis]), np.abs(plane), atol=2e-3 * np.abs(plane).max())
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    cosine = unit @ unit.T - 2 * np.eye(len(unit))
    for i, near in enumerate(found["near"]):
        best = np.sort(cosine[i])[::-1][: len(near)]
        assert np.allclose(cosine[i][near], best, atol=1e-5)


def test_many_traces_at_once_are_not_mixed_up(as_trained, models):
    letters = "abcdefghij"
    texts = [" ".join(letters[i : i + 1 + i % 3]) for i in range(10)] * 3
    asked = [("/api/trace", {"model": "reverse", "text": text}) for text in texts]
    for text, response in zip(texts, all_at_once(as_trained, asked), strict=True):
        pieces = response.json()["manifest"]["source"]["pieces"]
        assert "".join(pieces[:-1]) == text
        base = f"/api/trace/{response.json()['trace']}"
        expected = serialize.logits(models["reverse"].explain(text), 0)
        equal(as_trained.client.get(f"{base}/logits?row=0"), expected)


def test_of_a_model_that_has_changed_nothing_is_told(as_trained):
    told = as_trained.ask("/api/trace", model="reverse", text="a b")
    token = token_of(told["trace"])
    other = name_of(token.model_copy(update={"fingerprint": "0" * 16}))
    response = as_trained.client.get(f"/api/trace/{other}/thumbs")
    assert (response.status_code, response.json()["error"]["code"]) == (410, "trace_expired")
    assert as_trained.client.get(f"/api/trace/{told['trace']}/thumbs").status_code == 200


@pytest.mark.system
def test_a_trace_outlives_the_worker_and_the_service(run):
    with Served(run("reverse")) as service:
        trace = service.ask("/api/trace", text="a b c", mode="sample", temperature=1.0, seed=2)
        question = f"/api/trace/{trace['trace']}/focus?at=decoder.0.cross&head=1"
        before = service.client.get(question).content
        os.kill(service.worker()[0], signal.SIGKILL)
        until(lambda: service.client.get("/readyz").status_code == 503, 5)
        until(lambda: service.client.get("/readyz").status_code == 200, 60)
        assert service.client.get(question).content == before
    with Served(run("reverse")) as service:
        assert service.client.get(question).content == before


def test_the_table_of_teacher_forcing(as_trained, models):
    told = as_trained.ask("/api/teacher", model="reverse", source="a b", target="b a")
    loaded = models["reverse"]
    words = loaded.tokenizer
    source, target = words.encode("a b"), words.encode("b a")
    read, wanted = [words.start, *target], [*target, words.end]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([[*source, words.end]]), torch.tensor([read]))[0]
    losses = F.cross_entropy(logits.double(), torch.tensor(wanted), reduction="none")
    assert told["input"] == words.pieces(read)
    assert told["target"] == words.pieces(wanted)
    assert told["loss"] == pytest.approx(losses.tolist(), rel=1e-6)
    assert told["p_target"] == pytest.approx(losses.neg().exp().tolist(), rel=1e-6)
    assert told["best"] == words.pieces(logits.argmax(dim=1).tolist())
    assert told["mean"] == pytest.approx(losses.mean().item())
    share = loaded.recipe.train.label_smoothing
    smooth = F.cross_entropy(logits.double(), torch.tensor(wanted), label_smoothing=share)
    assert (told["smoothing"], told["smoothed"]) == (share, pytest.approx(smooth.item()))


@pytest.mark.parametrize("name", ["writer", "rnn"])
def test_the_table_of_a_text_alone_is_its_score(as_trained, models, name):
    told = as_trained.ask("/api/teacher", model=name, target="the cat sits")
    scored = models[name].score("the cat sits")
    assert told["loss"] == pytest.approx([-value for value in scored.logprobs], abs=1e-4)
    assert "".join(told["target"][:-1]) == "the cat sits"


@pytest.mark.parametrize("name", ["writer", "rnn"])
def test_the_next_tokens_scores(as_trained, models, name):
    loaded = models[name]
    response = as_trained.post("/api/next", model=name, text="the cat ")
    (scores,) = parts(response).values()
    read = [loaded.tokenizer.end, *loaded.tokenizer.encode("the cat ")]
    with torch.no_grad():
        expected = loaded.model(torch.tensor([read]))[0, -1]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    pieces = as_trained.client.get("/api/vocabulary", params={"model": name}).json()
    assert len(pieces) == len(scores)
    assert pieces[scores.argmax()] == loaded.write("the cat ", max_tokens=1, temperature=0)
    long = parts(as_trained.post("/api/next", model=name, text="the cat " * 50))["logits"]
    assert np.isfinite(long).all()


def test_there_is_an_example_for_everybody(as_trained):
    for name in NAMES:
        example = as_trained.client.get("/api/example", params={"model": name}).json()
        assert example["text"]
        if name != "rnn":
            told = as_trained.ask("/api/trace", model=name, text=example["text"])
            assert told["manifest"]["steps"]
    assert as_trained.client.get("/api/example", params={"model": "x"}).status_code == 404


def test_examples_are_for_what_a_model_learned():
    helper, language = limelight.load("helper"), limelight.load("language")
    example = example_for(helper)
    question, _, context = example["text"].partition("? ")
    assert example["tag"] == "ask"
    assert helper.ask(f"{question}?", context).text == "Mary is in the office."
    named = {one["text"]: one["name"] for one in example_for(language)["more"]}
    assert len(named) == 5
    for text, name in named.items():
        found = language.classify(text)
        assert max(found, key=found.get) == name


def test_a_run_that_trains_is_traced_at_every_checkpoint(tmp_path):
    run, recipe = tmp_path / "growing", tiny(steps=30, checkpoint_every=10, keep_checkpoints=9)
    train_in(run, recipe)
    last = run / "checkpoints" / "step-000030"
    shutil.rmtree(run / "finished")
    last.rename(tmp_path / "later")
    texts = {"text": "a b c", "target": "c b a"}
    with Served(run) as served:
        known = served.client.get("/api/runs/growing/steps").json()
        assert known == {"name": "growing", "loaded": 20, "steps": [10, 20]}
        (tmp_path / "later").rename(last)  # the training has saved another one
        assert served.client.get("/api/runs/growing/steps").json()["steps"] == [10, 20, 30]
        found = {}
        for step in (30, 10, None, 30):
            told = served.ask("/api/trace", **texts, **({} if step is None else {"step": step}))
            trace = limelight.load(run, step=step or 20).explain(**texts)
            assert told["manifest"] == plain(serialize.manifest(trace))
            path = f"/api/trace/{told['trace']}/tensor/decoder.0.cross.weights"
            found[step] = served.client.get(path)
            equal(found[step], serialize.tensor(trace, "decoder.0.cross.weights"))
        assert len({response.content for response in found.values()}) == 3
        changed = {"change": ["decoder.0.cross@1=off"], "step": 10}
        told = served.ask("/api/trace", **texts, **changed)["manifest"]
        assert told["comparison"]
        assert told["changes"] == changed["change"]
        refused = served.post("/api/trace", **texts, step=15)
        assert refused.status_code == 400
        assert "no checkpoint of step 15: it has 10, 20, 30" in refused.text


def test_few_checkpoints_are_cached_and_a_large_one_is_refused(run, monkeypatch):
    path = run("reverse")
    loaded = limelight.load(path)
    traces, loads = TraceCache(loaded, 64, run=str(path)), []

    def load(*_, step, **__):
        loads.append(step)
        return loaded

    monkeypatch.setattr("limelight.serve.worker.trace_cache.load", load)
    for step in (*range(12), 11, 4, 0):
        assert traces.at_step(step).loaded is loaded
    assert loads == [*range(12), 0]
    assert [*traces.checkpoints] == [5, 6, 7, 8, 9, 10, 11, 4, 0][1:]
    monkeypatch.setattr("limelight.serve.worker.trace_cache._CHECKPOINTS", 1000)
    with pytest.raises(UserError, match="explain --step 12"):
        traces.at_step(12)


class Heard:
    """A worker in this process, and all that it says."""

    def __init__(self, loaded):
        self.said, self.numbers = [], count(1)
        self.worker = Scheduler(loaded, 8, 8, 64, self.hear)

    def hear(self, told):
        while told:
            length = int.from_bytes(told[:4], "big")
            message, told = unpacked(told[4 : 4 + length]), told[4 + length :]
            told = told[message.get("bytes", 0) :]
            for number, _, _, tokens in message.get("pieces", ()):
                self.said += [{"id": number, "token": token} for token in tokens]
            self.said.append(message)

    def trace(self, text, **fields):
        asked = {"text": text, "target": None, "tag": "", "settings": {}, "print": ""}
        number = next(self.numbers)
        self.worker.on_message({"id": number, "op": "trace", "what": "manifest", **asked, **fields})
        return number

    def write(self, prompt, tokens):
        asked = {"prompts": [prompt], "n": 1, "stop": [], "top": 0, "stream": True, "tag": ""}
        settings = {"max_tokens": tokens, "temperature": 1.0}
        number = next(self.numbers)
        asked |= {"logprobs": True, "settings": settings}
        self.worker.on_message({"id": number, "op": "complete", **asked})
        return number

    def of(self, number):
        return [message for message in self.said if message.get("id") == number]


def test_while_somebody_looks_inside_others_get_their_tokens(models):
    heard = Heard(models["writer"])
    writing = heard.write("the", 100)
    heard.worker.step()
    before = len(heard.of(writing))
    looking = heard.trace("the cat", settings={"max_tokens": 12})
    turns = 0
    while not heard.of(looking):
        heard.worker.step()
        turns += 1
    assert turns >= 12  # a token of the trace, then a token for the others, and so on
    assert len(heard.of(writing)) - before >= turns - 2
    assert "done" in heard.of(looking)[0]


def test_one_who_leaves_while_looking_keeps_nobody_out(models):
    heard = Heard(models["writer"])
    leaving = heard.trace("the cat", settings={"max_tokens": 12})
    staying = heard.trace("the dog", settings={"max_tokens": 3})
    for _ in range(3):
        heard.worker.step()
    assert heard.worker.traces.busy
    heard.worker.on_message({"id": leaving, "op": "cancel"})
    for _ in range(10):
        heard.worker.step()
    assert "done" in heard.of(staying)[0]
    assert not heard.of(leaving)
    assert not heard.worker.traces.busy


def finish(work):
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def test_what_is_kept_stays_within_its_room_and_changes_no_number(models):
    asked = {"target": None, "tag": "", "settings": {"beam": 1}, "print": ""}
    wide, narrow = (
        TraceCache(models["reverse"], 64),
        TraceCache(models["reverse"], 64, budget=20_000),
    )
    none = TraceCache(models["reverse"], 64, budget=0)
    for text in ("a b c", "b c", "c a b", "a b c"):
        for what in (
            {"what": "manifest"},
            {"what": "thumbs"},
            {"what": "focus", "at": "decoder.0.cross", "head": 2},
        ):
            answers = []
            for traces in (wide, narrow, none):
                with torch.inference_mode():
                    answer = finish(traces.view({"text": text, **asked, **what}))
                answers.append({k: v for k, v in answer.items() if k != "seconds"})
            assert answers[0] == answers[1] == answers[2]
            kept = sum(trace.size for trace in narrow.traces.values())
            assert kept <= narrow.budget or len(narrow.traces) == 1
            held = {"what": "stop", "layer": 1, "head": 2, "word": None}
            held |= {"source_row": None, "target_row": None, "text": text, **asked}
            for stop in ("softmax", "cross", "stack", "classifier", "follow", "loop"):
                with torch.inference_mode():
                    told = [finish(traces.view({**held, "name": stop})) for traces in (wide, none)]
                assert told[0]["stop"] == told[1]["stop"]
            assert len(none.traces) == 1
    assert len(wide.traces) == len(wide.passages) == 3


def scaled(loaded):
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(-1.5)


def hooked(loaded):
    first = next(module for module in loaded.model.modules() if not [*module.children()])
    first.register_forward_hook(lambda *given: -1.5 * given[-1])


def hooked_everywhere(loaded):
    kind = next(type(module) for module in loaded.model.modules() if not [*module.children()])

    def hook(module, _, output):
        return -1.5 * output if type(module) is kind else None

    loaded.remove = register_module_forward_hook(hook).remove


def replaced(loaded):
    loaded.model = copy.deepcopy(loaded.model)
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(-1.5)


@pytest.mark.parametrize("change", [scaled, hooked, hooked_everywhere, replaced])
@pytest.mark.parametrize("name", TEXTS)
def test_of_changed_weights_and_hooks_nothing_old_is_told(run, name, change):
    loaded = limelight.load(run(name))
    asked = {"text": TEXTS[name], "target": None, "tag": "", "settings": {}, "print": ""}
    asked |= {"what": "tensor", "name": "logits", "head": None, "rows": None, "as": "f32"}
    traces = TraceCache(loaded, 64)

    def told(**more):
        with torch.inference_mode():
            return finish(traces.view({**asked, **more}))

    before = told()
    (kept,) = traces.traces.values()
    assert told()["blob"] == before["blob"]
    assert [*traces.traces.values()] == [kept]  # not computed again
    change(loaded)
    try:
        with pytest.raises(ExpiredError):
            told(print=before["print"])
        after = told()
        assert told(print=after["print"])["blob"] == after["blob"] != before["blob"]
        assert len(traces.traces) == traces.changes == 1
        truth = explain(loaded, TEXTS[name])
        assert after["blob"] == serialize.tensor(truth, "logits").blob
    finally:
        getattr(loaded, "remove", lambda: None)()


def test_the_service_computes_without_giving_its_model_away(run):
    """Which would have every later search compare all weights."""
    loaded = limelight.load(run("writer"))
    with torch.inference_mode():
        next_logits(loaded, {"text": "the cat"})
        vocabulary(loaded, {})
        teacher(loaded, {"source": "", "target": "the cat", "tag": ""})
    assert networks_of(loaded)[0] in changes._PRIVATE
    assert loaded.model not in changes._PRIVATE


def test_a_text_that_is_too_long_to_look_at_is_refused_before_it_is_read(models):
    traces = TraceCache(models["reverse"], 4)
    asked = {"target": None, "tag": "", "settings": {}, "print": "", "what": "manifest"}
    with pytest.raises(TooLongError, match="4 can be traced"):
        finish(traces.view({"text": "a b c d", **asked}))
    assert error_code(TooLongError("")) == "too_long"
    assert error_code(ExpiredError("")) == "trace_expired"
    assert not traces.busy


def test_a_value_that_is_too_large_for_one_answer_is_refused(models, monkeypatch):
    monkeypatch.setattr("limelight.serve.worker.trace_cache.LARGEST", 100)
    traces = TraceCache(models["reverse"], 64)
    asked = {"text": "a b c", "target": None, "tag": "", "settings": {}, "print": ""}
    asked |= {"what": "tensor", "name": "encoder.0.self.weights", "head": None, "rows": None}
    with pytest.raises(TooLongError, match="one head"):
        finish(traces.view({**asked, "as": "f32"}))
    one = finish(traces.view({**asked, "head": 1, "rows": [0, 2], "as": "f32"}))
    assert one["parts"] == (("encoder.0.self.weights", (2, 6)),)


def test_a_name_holds_what_was_asked_and_nothing_else():
    assert token_of(name_of(TraceToken(text="a", beam=2))).model_dump(exclude_unset=True) == {
        "text": "a",
        "beam": 2,
    }
