"""A worker that is stopped is restarted; one that computes, or loads, is left alone."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys

import pytest

from limelight.run.bundled_models import find_run
from limelight.serve import logs
from limelight.serve.ipc import HEAD, length_of, packed, unpacked
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.worker.scheduler import Scheduler
from limelight.serve.worker_client import KEY, WorkerClient, _environment
from tests.serve.samples import ROOT, Served, until


@pytest.mark.parametrize("text", ["plain", "NaN and Infinity", "half \ud800 a pair", "ü\u2028\x00"])
def test_messages_arrive_as_they_were_sent(text):
    message = {"id": 2**70, "done": {"text": text, "scores": [0.1, -1e-300, 5], "none": None}}
    frame = packed(message)
    assert length_of(frame[:HEAD]) == len(frame) - HEAD
    assert unpacked(frame[HEAD:]) == message


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_refused(number):
    with pytest.raises(ValueError, match="JSON"):
        packed({"id": 1, "done": {"scores": [number]}})


class Process:
    """A process that only records whether it was killed."""

    killed = False

    def kill(self):
        self.killed = True


def watched(answers, ready=True, rounds=6):
    """Whether a worker that answers this many pings, and no more, is killed; and the pings."""

    async def check():
        client = WorkerClient("model", "nowhere", Limits(worker_seconds=0.02), Metrics())
        client.ready, process, pings = ready, Process(), []

        def send(message):
            pings.append(message)
            if len(pings) <= answers:
                client.on_message({"pong": 2})

        client.send = send
        watching = asyncio.create_task(client.watch(process))
        await asyncio.wait({watching}, timeout=0.01 * rounds)
        watching.cancel()
        dropped = client.metrics.log_dropped.collect()[0].samples[0].value
        return process.killed, pings, dropped

    return asyncio.run(check())


def test_a_worker_that_does_not_answer_is_killed_after_two_pings():
    killed, pings, _ = watched(answers=0, rounds=100)
    assert killed
    assert pings == [{"op": "ping"}] * 2


def test_a_worker_that_stops_to_answer_is_killed_and_its_dropped_lines_are_counted():
    killed, pings, dropped = watched(answers=2, rounds=200)
    assert killed
    assert len(pings) == 4
    assert dropped == 4


def test_a_worker_that_answers_lives():
    """The control."""
    killed, pings, _ = watched(answers=10**6)
    assert not killed
    assert pings


def test_a_worker_that_loads_is_not_asked():
    assert watched(answers=0, ready=False)[:2] == (False, [])


COMPUTING = """
from limelight.serve.worker import __main__ as worker

class Computing:
    busy = True
    def __init__(self, *given): self.send = given[4]
    def post(self, message): self.send(worker.packed(message))
    def on_message(self, message): pass
    def flush(self): pass
    def step(self):
        while True:  # it holds on to Python, as a long step does
            pass

class Loaded:
    tasks = ["draw"]
    class model:
        class config:
            family = "recurrent"

worker.Scheduler, worker.load_for = Computing, lambda *_: (Loaded, Loaded)
worker.describe = lambda _: {}
worker.main()
"""


def test_a_worker_that_computes_answers():
    options = json.dumps({"batch": 1, "texts": 1, "traced": 1})
    with subprocess.Popen(
        [sys.executable, "-c", COMPUTING, "run", options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as worker:

        def read():
            return unpacked(worker.stdout.read(length_of(worker.stdout.read(HEAD))))

        assert read() == {"ready": {}}
        for _ in range(3):
            worker.stdin.write(packed({"op": "ping"}))
            worker.stdin.flush()
            assert read() == {"pong": 0}
        worker.kill()


def test_a_stopped_worker_is_noticed_and_replaced():
    with Served(find_run("writer").path, worker_seconds=4) as service:
        (stopped,) = service.worker()
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: service.client.get("/readyz").status_code == 503, 60)
        until(lambda: service.client.get("/readyz").status_code == 200, 120)
        assert service.worker() != [stopped]
        assert service.number("worker_deaths_total") == 1
        assert service.ask("/v1/completions", prompt="the", max_tokens=3)["choices"]
        assert [e["model"] for e in service.events() if e["event"] == "worker_stuck"] == ["writer"]


@pytest.mark.parametrize("device", ["auto", "cuda:1"])
def test_a_worker_has_the_environment_without_the_key(monkeypatch, device):
    monkeypatch.setenv(KEY, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    found = _environment(device)
    assert "secret" not in found.values()
    assert found["PATH"] == os.environ["PATH"]
    assert found["CUDA_VISIBLE_DEVICES"] == ("7" if ":" in device else "5,7")


ASKED = {"op": "translate", "texts": ["a man walks"], "nbest": 1, "alternatives": 0, "tag": ""}
ASKED |= {"alignment": False, "tree": False, "prefix": "", "include": [], "exclude": []}


def active_of(sent):
    """What was last said about texts in the batches."""
    said, raw = [], b"".join(sent)
    while raw:
        end = HEAD + length_of(raw[:HEAD])
        said.append(unpacked(raw[HEAD:end]))
        raw = raw[end:]
    return [message["active"] for message in said if "active" in message][-1]


@pytest.fixture(scope="module")
def translator():
    import limelight

    return limelight.load("en-de")


@pytest.mark.parametrize("beam", [1, 4])
def test_cancelled_jobs_leave_nothing_behind(translator, beam):
    """Nor is the job of another dropped with one of a search."""
    sent = []
    scheduler = Scheduler(translator, 8, 8, 64, sent.append)
    for number in (1, 2):
        scheduler.on_message({"id": number, **ASKED, "settings": {"beam": beam}})
    scheduler.step()
    assert active_of(sent) == 2
    scheduler.on_message({"id": 1, "op": "cancel"})
    scheduler.step()
    assert scheduler.busy
    scheduler.on_message({"id": 2, "op": "cancel"})
    scheduler.flush()
    assert active_of(sent) == 0
    assert not (scheduler.searches)
    assert not (scheduler.rows)
    assert not (scheduler.busy)


def test_a_search_that_fails_is_dropped_with_its_jobs(translator, monkeypatch):
    sent = []
    scheduler = Scheduler(translator, 8, 8, 64, sent.append)
    for number in (1, 2):
        scheduler.on_message({"id": number, **ASKED, "settings": {"beam": 4}})
    scheduler.step()
    (running,) = scheduler.searches

    def broken():
        raise ArithmeticError

    monkeypatch.setattr(running.search, "step", broken)
    monkeypatch.setattr(logs, "log_error", lambda *_, **__: None)
    scheduler.step()
    assert active_of(sent) == 0
    assert not (scheduler.searches)
    assert not (scheduler.busy)
    assert b"".join(sent).count(b"internal error") == 2
