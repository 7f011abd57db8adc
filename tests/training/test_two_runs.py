"""One trainer at a time in a folder; and whoever loads meanwhile gets one step, whole."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import limelight
from tests.training.processes import (
    ROOT,
    SECONDS,
    TINY,
    result,
    said_of,
    steps_logged,
    train,
    training,
    wait_until,
)

SHORT = ["--train.steps=12", "--train.checkpoint-every=3", "--train.validate-every=5"]


def shell(run, settings):
    """The command itself, as a shell starts it."""
    words = [sys.executable, "-m", "limelight", "train", "reverse", "--run", run, *TINY, *settings]
    ours = {"OMP_NUM_THREADS": "1", "LIMELIGHT_CACHE": str(run.parent / "cache")}
    return subprocess.Popen(words, cwd=ROOT, env=os.environ | ours, stderr=subprocess.DEVNULL)


def test_a_second_trainer_is_refused_and_after_a_kill_the_next_goes_on(tmp_path):
    run, alone = tmp_path / "run", tmp_path / "alone"
    with shell(run, SHORT) as first:
        try:
            while steps_logged(run) < 4:
                assert first.poll() is None
                time.sleep(0.01)
            os.kill(first.pid, signal.SIGSTOP)  # it holds the lock, and does not get further
            with training(run, SHORT) as second:
                second.join(SECONDS)
            assert second.exitcode == 2
            assert said_of(run).read_text() == (
                f"limelight: another process is training in {run}: "
                "wait for it, or choose another folder\n"
            )
        finally:
            first.kill()
    with shell(run, SHORT) as third:
        assert third.wait(SECONDS) == 0
    train(alone, SHORT)
    assert result(run) == result(alone)


EVERY_STEP = ["--train.checkpoint-every=1", "--model.d-model=8", "--train.validate-every=100000"]


@pytest.mark.parametrize(
    ("loads", "steps"), [(100, 80), pytest.param(1000, 900, marks=pytest.mark.soak)]
)
def test_loading_while_training_saves_and_prunes(tmp_path, loads, steps):
    """Every load gives the weights of one step, and none of an older step than the one before."""
    kept, run = tmp_path / "kept", tmp_path / "run"
    settings = [f"--train.steps={steps}", *EVERY_STEP]
    with training(kept, [*settings, "--train.keep-checkpoints=1000"]) as child:
        child.join(10 * SECONDS)
    assert child.exitcode == 0
    found = []
    with training(run, [*settings, "--train.keep-checkpoints=1"]) as child:
        assert wait_until(lambda: list(run.glob("checkpoints/step-??????")), child)
        while len(found) < loads:
            loaded = limelight.load(run)
            committed = load_file(kept / f"checkpoints/step-{loaded.step:06}/weights.safetensors")
            weights = dict(loaded.model.named_parameters())
            assert weights.keys() == committed.keys()
            assert all(torch.equal(weights[name], committed[name]) for name in weights)
            found.append(loaded.step)
    assert found == sorted(found)
    assert len(set(found)) > 5, "they hardly ran at the same time"
