"""A model that cannot be loaded: why is told in a sentence, and the port's owner too."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import limelight
from limelight.decode.accel.cpu.linear import PackedLinear
from limelight.errors import UserError
from limelight.run.bundled_models import find_run
from limelight.serve import server
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.server import check_port, listen, serve
from limelight.serve.worker.__main__ import lay_out_weights
from limelight.serve.worker_client import KEY, LOST, WorkerClient

BROKEN = """
from limelight.serve.worker import __main__ as worker

def load(run, **_):
    raise {error}

worker.load = load
worker.main()
"""


@pytest.fixture
def start_worker(programs, tmp_path):
    """A worker to which this happens while it loads."""

    def start(error):
        (tmp_path / "worker.py").write_text(BROKEN.format(error=error))
        limits = json.dumps({"batch": 1, "texts": 1, "traced": 1})
        command = [programs / "python", tmp_path / "worker.py", "run", limits]
        given = {"stdin": subprocess.DEVNULL, "capture_output": True}
        return subprocess.run(command, check=False, **given)

    return start


@pytest.mark.parametrize(
    "error", ["MemoryError", 'RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you")']
)
def test_too_little_memory_is_a_sentence_and_no_traceback(start_worker, error):
    done = start_worker(error)
    assert (done.returncode, done.stderr) == (2, b"")
    assert b"there is not enough memory to load it: close other programs" in done.stdout


def test_a_mistake_of_ours_is_seen_with_all_that_helps_to_find_it(start_worker):
    """The control."""
    done = start_worker('RuntimeError("shapes do not fit")')
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Traceback" in done.stderr


def test_a_worker_that_says_nothing_more(monkeypatch):
    """As when the system kills it, because it needs the memory."""
    monkeypatch.setattr(sys, "executable", "false")
    client = WorkerClient("lost", Path("runs/lost"), Limits(), Metrics())
    asyncio.run(client.supervise())
    assert client.failed == LOST
    assert client.started.is_set()


def test_a_port_that_is_taken_is_told_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port}: Address already in use; choose anoth"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("port", [65536, 99999])
def test_what_is_no_port_is_told_before_anything_is_started(programs, port):
    command = [programs / "limelight", "serve", "no-run", f"--port={port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sentence = f"invalid --port {port}: use 1-65535, or 0 for any free port"
    assert (done.returncode, done.stderr) == (2, f"limelight: {sentence}\n")


def test_every_other_number_is_a_port():
    """The control."""
    for port in (0, 1, 65535):
        check_port(port)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("key", [" ", "\t\n "])
def test_a_blank_key_is_no_key(monkeypatch, host, key):
    monkeypatch.setenv(KEY, key)
    with pytest.raises(UserError, match=f"^{KEY} is blank: set it to a key that clients must send"):
        serve([str(find_run("writer").path)], host, 0, Limits())


@pytest.mark.parametrize("key", ["", "x", " x "])
def test_another_is(monkeypatch, key):
    """The control: the next step is to listen. Without a key, there is another sentence."""
    asked = []

    def listen(host, port):
        asked.append(host)
        raise UserError("stop here")

    monkeypatch.setattr(server, "listen", listen)
    monkeypatch.setattr(server.logs, "install", lambda: None)
    monkeypatch.setenv(KEY, key)
    sentence = "stop here" if key else f"set {KEY} in the environment"
    with pytest.raises(UserError, match=sentence):
        serve([str(find_run("writer").path)], "0.0.0.0", 0, Limits())
    assert asked == (["0.0.0.0"] if key else [])


@pytest.mark.parametrize(
    ("model", "laid_out"), [("en-de", True), ("writer", True), ("fill", False)]
)
def test_the_first_reader_does_not_wait_for_weights_to_be_laid_out(model, laid_out):
    loaded = limelight.load(model, device="cpu")
    lay_out_weights(loaded, {"text": "A man ___"})
    if laid_out:  # once more for several rows than for one
        classifier = loaded.engine.model.classifier
        assert isinstance(classifier, PackedLinear)
        assert vars(classifier).keys() & {"packed", "transposed", "transposed_with_bias"}


def test_a_text_that_the_model_refuses_keeps_no_worker_from_being_ready():
    lay_out_weights(limelight.load("en-de", device="cpu"), {"text": " "})


def test_a_model_that_fails_to_generate_keeps_no_worker_from_being_ready(monkeypatch):
    """The worker becomes ready, and a request that needs it gets the error."""

    def fail(*_):
        raise RuntimeError("an extension's mistake")

    monkeypatch.setattr("limelight.serve.worker.__main__.traced_text_in_steps", fail)
    lay_out_weights(limelight.load("en-de", device="cpu"), {"text": "A man"})
