"""What a machine cannot do is told in a sentence, with what to set instead."""

import sys

import pytest
import torch

import limelight
from limelight import cli, device
from limelight.errors import UserError
from limelight.training.objectives import LossModule
from tests.training.processes import TINY

SETTINGS = ["--train.steps=6", "--train.checkpoint-every=2"]
NO_ROOM = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    MemoryError(),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
    ),
]


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives back its exit code and what it said."""

    def run(*settings):
        words = ["limelight", "train", "reverse", f"--run={tmp_path / 'run'}", *TINY, *SETTINGS]
        monkeypatch.setattr(sys, "argv", [*words, *settings])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("error", NO_ROOM, ids=["CUDA", "Python", "CPU"])
def test_out_of_memory_is_told_with_the_batch_and_what_to_set(train, tmp_path, monkeypatch, error):
    forward = LossModule.forward
    calls = 0

    def fail(learner, batch):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise error
        return forward(learner, batch)

    monkeypatch.setattr(LossModule, "forward", fail)
    code, said = train()
    told = said.splitlines()[-1]
    assert code == 1
    assert told.startswith("limelight: out of memory at step 5, on a batch of (")
    assert "halve --train.batch-tokens 100 and double --train.grad-accumulation 1" in told
    assert "Traceback" not in said
    assert limelight.load(tmp_path / "run").step == 4
    assert train()[0] == 0  # there is room now: it goes on


def test_another_error_is_not_taken_for_that(train, monkeypatch):
    """The control."""

    def fail(learner, batch):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(LossModule, "forward", fail)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        train()


def test_a_precision_that_kills_the_process_is_refused(train, monkeypatch):
    monkeypatch.setattr(device, "survives_bfloat16", lambda: False)
    code, said = train("--train.precision=bfloat16")
    assert code == 2
    assert "limelight: precision='bfloat16' kills the process on this CPU" in said
    assert "or choose float32" in said
    assert train("--train.precision=float32")[0] == 0


@pytest.mark.parametrize(
    ("probe", "survives"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
        ("import os; os.abort()", False),
        ("raise SystemExit(1)", False),
        ("pass", True),
    ],
)
def test_the_probe_dies_and_the_process_lives(monkeypatch, probe, survives):
    monkeypatch.setattr(device, "PROBE", probe)
    assert device.survives_bfloat16.__wrapped__() is survives  # not what it has found before


def test_a_device_that_is_not_there_is_refused(train, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said = train("--train.device=cuda")
    assert code == 2
    assert said == ("limelight: device='cuda' is not available: torch finds only the CPU here\n")
    code, said = train("--train.device=tpu")
    assert code == 2
    assert "there is no device 'tpu'" in said


@pytest.mark.parametrize("wanted", ["xyz", "", None, ["cpu"], 0])
def test_what_is_no_device_is_answered_with_those_that_are(wanted):
    with pytest.raises(UserError) as told:
        device.choose_device(wanted)
    sentence = f"there is no device {wanted!r}: "
    assert str(told.value).startswith(sentence)
    if wanted != ["cpu"]:  # for that one the nearest is told
        assert str(told.value) == sentence + "choose one of: auto, cpu, cuda, mps"
    assert device.choose_device("cpu").type == "cpu"


def test_a_refused_device_leaves_a_model_as_it_was():
    model = limelight.load("chat").to(precision="int8")
    with pytest.raises(UserError, match="there is no device 'gpu'"):
        model.to("gpu")
    with pytest.raises(UserError, match="there is no precision 'float128'"):
        model.to("cpu", precision="float128")
    assert model.int8
    assert not model.to("cpu", precision="float32").int8
