"""Where models run: on the devices that were asked for, a worker on each of them."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time

import httpx
import pytest
import torch

import limelight
from limelight.decode import engine
from limelight.errors import UserError
from limelight.serve import server
from limelight.serve.server import devices_of
from limelight.serve.worker.__main__ import load_for
from limelight.serve.worker.scheduler import Scheduler, describe
from limelight.serve.worker_client import _environment
from tests.serve.samples import Served, all_at_once, exact, until


@pytest.fixture(scope="module")
def pair(run):
    """A writer on two workers."""
    with Served(exact(run("writer")), device="cpu,cpu") as served:
        yield served


def asked_for(i, tokens=20):
    return {"prompt": "the", "temperature": 1.5, "seed": i, "max_tokens": tokens}


def jobs_of(service):
    return [service.number("worker_jobs_total", worker=str(i)) for i in range(2)]


def test_requests_spread_over_all_workers_of_a_model(pair, known):
    requests = [asked_for(i, 60) for i in range(24)]
    before = jobs_of(pair)
    responses = all_at_once(pair, [("/v1/completions", asked) for asked in requests])
    after = jobs_of(pair)
    spread = [now - was for now, was in zip(after, before, strict=True)]
    assert sum(spread) == 24
    assert min(spread) >= 6
    for asked, response in zip(requests, responses, strict=True):
        settings = {name: asked[name] for name in ("temperature", "seed", "max_tokens")}
        assert response.json()["choices"][0]["text"] == known["writer"].write("the", **settings)


def test_the_api_says_where_a_model_runs(pair):
    for path in ("/healthz", "/readyz"):
        assert pair.client.get(path).json()["devices"] == {"writer": ["cpu", "cpu"]}
    told = pair.client.get("/api/model").json()
    assert (told["device"], told["precision"]) == ("cpu, cpu", "float64")
    ready = [event for event in pair.events() if event["event"] == "model_ready"]
    assert [(event["device"], event["precision"]) for event in ready] == [("cpu", "float64")] * 2


def test_a_trace_can_be_read_from_any_worker(pair):
    traced = pair.ask("/api/trace", text="the cat", max_tokens=3)
    before = jobs_of(pair)
    path = f"/api/trace/{traced['trace']}/logits?row=1"

    together = threading.Barrier(16)  # a worker that is free again takes the next one

    def read():
        with httpx.Client(timeout=60) as client:
            client.get(pair.url + "/healthz")
            together.wait()
            found.append(client.get(pair.url + path))

    found, threads = [], []
    for _ in range(together.parties):
        threads.append(threading.Thread(target=read))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert {response.status_code for response in found} == {200}
    assert len({response.content for response in found}) == 1
    assert all(now > was for now, was in zip(jobs_of(pair), before, strict=True))


def test_a_worker_that_dies_does_not_take_the_other_with_it(pair):
    stop, seen = threading.Event(), []

    def ask(i):
        with httpx.Client(base_url=pair.url, timeout=60) as client:
            while not stop.is_set():
                began = time.monotonic()
                seen.append((began, client.post("/v1/completions", json=asked_for(i))))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(seen) > 8, 60)
    deaths = pair.number("worker_deaths_total")
    os.kill(pair.worker()[0], signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: pair.number("worker_deaths_total") == deaths + 1, 20)
    until(lambda: pair.client.get("/healthz").json()["devices"] == {"writer": ["cpu"]}, 20)
    assert pair.client.get("/readyz").status_code == 200  # the other answers
    until(lambda: any(began > killed and r.status_code == 200 for began, r in seen), 60)
    until(lambda: pair.client.get("/healthz").json()["devices"]["writer"] == ["cpu", "cpu"], 60)
    stop.set()
    for thread in threads:
        thread.join()
    failed = [response for _, response in seen if response.status_code != 200]
    assert {response.json()["error"]["code"] for response in failed} <= {"worker_died"}
    assert len(failed) <= 4  # those that it was answering


@pytest.mark.parametrize("names", ["gpu", "cuda:", "cuda:x", "cpu,", "", "cpu;cpu", "cuda:1,tpu"])
def test_a_device_that_is_none_is_rejected_before_anything_starts(names):
    with pytest.raises(UserError, match=r"invalid --device .*: use auto, cpu, cuda, cuda:N or mps"):
        devices_of(names)


def test_several_devices_are_separated_by_commas():
    assert devices_of("cuda:0, cuda:3") == ["cuda:0", "cuda:3"]
    assert devices_of("cpu") == ["cpu"]


@pytest.mark.parametrize(
    ("files", "counted", "devices"),
    [(0, "2", ["auto"]), (1, "1", ["auto"]), (2, "2", ["cuda:0", "cuda:1"]), (4, "1", ["auto"])],
)
def test_auto_means_every_gpu_where_there_are_several(monkeypatch, files, counted, devices):
    """Device files say that there may be some, torch how many can be used."""
    done = subprocess.CompletedProcess([], 0, stdout=f"{counted}\n")
    monkeypatch.setattr(server.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(server.Path, "glob", lambda *_: iter(range(files)))
    assert devices_of("auto") == devices


def test_a_worker_on_one_of_several_gpus_sees_no_other(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _environment("cuda:2")["CUDA_VISIBLE_DEVICES"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in _environment("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert _environment("cuda:1")["CUDA_VISIBLE_DEVICES"] == "7"
    assert _environment("cuda:2")["CUDA_VISIBLE_DEVICES"] == ""  # torch will find none
    assert _environment("cpu")["CUDA_VISIBLE_DEVICES"] == "5,7"


@pytest.fixture
def halved(run, tmp_path, monkeypatch):
    """A run whose recipe asks for bfloat16."""
    copy = tmp_path / "halved"
    shutil.copytree(run("writer"), copy)
    recipe = copy / "recipe.toml"
    before, decode = recipe.read_text().split("[decode]")
    assert 'precision = "auto"' in decode
    decode = decode.replace('precision = "auto"', 'precision = "bfloat16"')
    recipe.write_text(f"{before}[decode]{decode}")
    monkeypatch.setattr("limelight.device.survives_bfloat16", lambda: True)
    return copy


def test_a_model_runs_in_its_recipes_precision_and_is_traced_in_float32(halved):
    loaded, traced = load_for(str(halved), "cpu")
    assert describe(loaded)["precision"] == "bfloat16"
    assert describe(traced)["precision"] == "float32"
    original = limelight.load(halved, device="cpu", precision="auto")
    for ours, theirs in zip(traced.model.parameters(), original.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # and not rounded in between
    worker = Scheduler(loaded, 8, 8, 64, lambda _: None, traced)
    assert worker.traces.loaded is traced


def test_a_model_in_float32_is_its_own_trace_model(run):
    loaded, traced = load_for(str(run("writer")), "cpu")
    assert traced is loaded


def test_beams_are_searched_by_the_engines_choice_of_search(model, monkeypatch):
    """The accelerated one, where there is one: `decode.engine` knows."""
    started = []

    def new_search(*given):
        started.append(given)
        return scheduler_search(*given)

    scheduler_search = engine.new_search
    monkeypatch.setattr(engine, "new_search", new_search)
    sent = []
    worker = Scheduler(model("reverse"), 8, 8, 64, sent.append)
    asked = {"texts": ["a b"], "nbest": 2, "alternatives": 0, "alignment": False, "tree": True}
    asked |= {"prefix": "", "include": [], "exclude": [], "tag": "", "settings": {"beam": 3}}
    worker.on_message({"id": 1, "op": "translate", **asked})
    while worker.busy:
        worker.step()
    (given,) = started
    assert given[0] is model("reverse").engine.model
    assert given[4:] == (2, True)  # nbest, and the tree
    message = b"".join(sent).decode("latin-1").partition('{"id":1,"done":')[2]
    assert json.JSONDecoder().raw_decode(message)[0]["translations"][0]["text"]


@pytest.mark.parametrize("pause", [0.0, 1e9])
def test_newcomers_wait_for_others_after_a_join_unless_they_are_many(model, pause):
    """Reading them stops everybody: one waits, but not four beside a batch of eight."""
    worker = Scheduler(model("writer"), 16, 16, 64, lambda _: None)
    asked = {"prompts": ["the"], "n": 1, "stop": [], "top": 0, "stream": False, "tag": ""}
    asked |= {"logprobs": True, "settings": {"max_tokens": 12}}

    def ask(*numbers):
        for number in numbers:
            worker.on_message({"id": number, "op": "complete", **asked})
        worker.step()

    ask(*range(1, 9))
    assert len(worker.rows) == 8
    worker.next_join = pause
    ask(9)
    assert len(worker.rows) == (8 if pause else 9)
    ask(10, 11, 12)
    if pause:
        assert len(worker.rows) == 12
    assert worker.next_join < 1e9  # the join has set it anew


@pytest.mark.parametrize("beam", [1, 3])
def test_a_worker_with_int8_answers_as_the_model_does(run, monkeypatch, beam):
    """Greedily too, all that wait together; only a stream goes token by token, in float32."""
    loaded, sent, searched = limelight.load(run("reverse"), precision="int8"), [], []
    search = engine.CTranslate2Search
    monkeypatch.setattr(
        engine,
        "CTranslate2Search",
        lambda model, requests, *rest: (
            searched.append(len(requests)) or search(model, requests, *rest)
        ),
    )
    worker = Scheduler(loaded, 8, 8, 64, sent.append)
    asked = {"nbest": 1, "alternatives": 0, "alignment": False, "tree": False, "prefix": ""}
    asked |= {"include": [], "exclude": [], "tag": "", "settings": {"beam": beam}}
    for number, texts in enumerate((["a b c"], ["c b", "b a"]), start=1):
        worker.on_message({"id": number, "op": "translate", "texts": texts, **asked})
    while worker.busy:
        worker.step()
    assert searched == [3]
    said = b"".join(sent).decode("latin-1")
    for number, texts in ((1, ["a b c"]), (2, ["c b", "b a"])):
        found = said.partition(f'{{"id":{number},"done":')[2]
        done = json.JSONDecoder().raw_decode(found)[0]["translations"]
        expected = [loaded.translate(text, beam=beam) for text in texts]
        assert [one["text"] for one in done] == [one.text for one in expected]
        stated = [one["outputs"][0]["log_probability"] for one in done]
        true = [one.outputs[0].log_probability for one in expected]
        assert stated == pytest.approx(true, abs=0.02)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_worker_answers_with_the_model_as_it_is(run, beam):
    """Also where the batch of an earlier job is there already."""
    sent, loaded = [], limelight.load(run("reverse"), device="cpu")
    worker = Scheduler(loaded, 8, 8, 64, sent.append)
    asked = {"texts": ["a b"], "nbest": 1, "alternatives": 0, "alignment": False, "tree": False}
    asked |= {"prefix": "", "include": [], "exclude": [], "tag": "", "settings": {"beam": beam}}
    answers = []
    for number in (1, 2):
        worker.on_message({"id": number, "op": "translate", **asked})
        while worker.busy:
            worker.step()
        message = b"".join(sent).decode("latin-1").partition(f'{{"id":{number},"done":')[2]
        answers.append(json.JSONDecoder().raw_decode(message)[0]["translations"][0]["text"])
        assert answers[-1] == loaded.translate("a b", beam=beam).text
        with torch.no_grad():
            loaded.model.decoder.layers[0].self_attention.value.weight.normal_()
    assert answers[0] != answers[1]


@pytest.mark.parametrize("error", [torch.AcceleratorError("CUDA error: x"), RuntimeError("x")])
def test_a_worker_whose_device_failed_ends_so_that_it_is_restarted(model, monkeypatch, error):
    """Any other error is the end of the jobs in the batch alone."""
    sent = []
    worker = Scheduler(model("writer"), 8, 8, 64, sent.append)

    def step():
        raise error

    monkeypatch.setattr(worker.generating, "step", step)
    asked = {"prompts": ["the"], "n": 1, "stop": [], "top": 0, "stream": False, "tag": ""}
    worker.on_message({"id": 1, "op": "complete", **asked, "logprobs": False, "settings": {}})
    if isinstance(error, torch.AcceleratorError):
        with pytest.raises(torch.AcceleratorError):
            worker.step()
        return
    worker.step()
    assert b'"code":"internal"' in sent[-1]
    assert not worker.busy
