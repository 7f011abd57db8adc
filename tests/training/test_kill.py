"""Killed or asked to leave at any instant, a run goes on as if nothing had happened."""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from limelight.run.atomic import find_damage, list_checkpoints
from tests.training.processes import (
    SECONDS,
    result,
    said_of,
    speaks,
    steps_logged,
    train,
    training,
    wait_until,
)

STEPS = 24
KILLED = [  # dropout is on, as in the recipe
    f"--train.steps={STEPS}",
    "--train.grad-accumulation=3",  # about five epochs, none of them a whole number of steps
    "--train.ema=0.9",
    "--train.checkpoint-every=3",
    "--train.validate-every=7",
]
LEFT = [
    f"--train.steps={STEPS}",
    "--train.grad-accumulation=3",
    "--train.checkpoint-every=5",
    "--train.validate-every=4",
    "--train.patience=99",
    "--train.metric=exact",  # never above 0: the first validation remains the best, and is used
    "--data.toy-examples=2000",  # validation takes a while
    "--train.batch-tokens=50",
]


def wait_for_a_random_instant(run, child, draw):
    """Some time after the start, or after a step that the run has not come to yet."""
    ahead = draw.randint(min(steps_logged(run) + 1, STEPS), STEPS)
    step = draw.choice([0, ahead, ahead, ahead])
    wait_until(lambda: steps_logged(run) >= step, child)
    child.join(draw.uniform(0, 0.3))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What came of a run that was left alone."""
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(run, KILLED)
    return result(run)


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_a_run_that_is_killed_again_and_again_ends_the_same(uninterrupted, tmp_path, kills):
    draw = random.Random(kills)
    run, killed, done = tmp_path / "run", 0, False
    while killed < kills or not done:
        with training(run, KILLED) as child:
            if killed < kills:
                wait_for_a_random_instant(run, child, draw)
                child.kill()
            child.join(SECONDS)
        assert child.exitcode in (0, -signal.SIGKILL), said_of(run).read_text()
        assert not any(map(find_damage, list_checkpoints(run / "checkpoints")))
        done = child.exitcode == 0
        killed += not done
        if done:
            assert result(run) == uninterrupted
            shutil.rmtree(run)


def essence(run: Path):
    """What is the same even if a run was left, with a checkpoint, at some step."""
    last = f"checkpoints/step-{STEPS:06}"
    kept = [f"{last}/weights.safetensors", f"{last}/optimizer.safetensors"]
    return {
        name: content
        for name, content in result(run).items()
        if not name.startswith("checkpoints") or name in kept
    }


@pytest.fixture(scope="module")
def unasked(tmp_path_factory):
    """What came of a run that nobody asked to leave."""
    run = tmp_path_factory.mktemp("unasked") / "run"
    train(run, LEFT)
    return essence(run)


def newest_state(run: Path):
    return json.loads((list_checkpoints(run / "checkpoints")[0] / "state.json").read_text())


def leave(run, child, *signals):
    """Send signals, one after the other, and see the process save and end."""
    for number in signals:
        os.kill(child.pid, number)
    child.join(30)
    assert child.exitcode in {128 + number for number in signals}
    assert f"saved; run the same command again to continue ({run})" in said_of(run).read_text()


def test_asked_to_leave_while_it_validates(unasked, tmp_path):
    run = tmp_path / "run"
    with training(run, LEFT) as child:
        assert wait_until(lambda: steps_logged(run) == 8, child)
        leave(run, child, signal.SIGTERM)
    assert (newest_state(run)["step"], newest_state(run)["validated"]) == (8, 4)
    with training(run, LEFT) as child:  # now it validates, but is killed and must do so again
        assert wait_until(lambda: steps_logged(run) == 9, child)
    train(run, LEFT)
    assert essence(run) == unasked


def test_asked_to_leave_while_it_validates_the_last_time(unasked, tmp_path):
    """It is not done before that too is done."""
    run = tmp_path / "run"
    with training(run, LEFT) as child:
        assert wait_until(lambda: steps_logged(run) == STEPS, child)
        leave(run, child, signal.SIGTERM)
    assert newest_state(run)["validated"] < newest_state(run)["step"] == STEPS
    train(run, LEFT)
    assert essence(run) == unasked


def test_asked_to_leave_while_it_saves_and_again_and_again(unasked, tmp_path):
    run = tmp_path / "run"
    with training(run, LEFT) as child:
        assert wait_until(lambda: list(run.glob("checkpoints/step-000005.tmp-*")), child)
        leave(run, child, signal.SIGINT, signal.SIGTERM, signal.SIGTERM)
    assert newest_state(run)["step"] == 6  # the save went on, and then there was another
    assert not any(map(find_damage, list_checkpoints(run / "checkpoints")))
    train(run, LEFT)
    assert essence(run) == unasked


def test_ctrl_c_before_training_begins_is_no_traceback(tmp_path):
    run = tmp_path / "run"
    with training(run, LEFT) as child:
        assert wait_until((run / ".lock").exists, child)
        os.kill(child.pid, signal.SIGINT)
        child.join(30)
    assert child.exitcode == 130
    assert said_of(run).read_text().endswith("limelight: interrupted\n")
    assert "Traceback" not in said_of(run).read_text()


@pytest.mark.parametrize("instants", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_asked_to_leave_at_random_instants(unasked, tmp_path, instants):
    """Before there is anything to save, and when all is saved, the signal simply ends it."""
    draw = random.Random(instants)
    run, asked, done = tmp_path / "run", 0, False
    while asked < instants or not done:
        number = draw.choice([signal.SIGTERM, signal.SIGINT])
        with training(run, LEFT) as child:
            if asked < instants:
                wait_until(lambda: speaks(run), child)
                wait_for_a_random_instant(run, child, draw)
                if child.exitcode is None:
                    os.kill(child.pid, number)
            child.join(SECONDS if asked == instants else 30)
        ends = (0, 128 + number, *([-number] if number == signal.SIGTERM else []))
        assert child.exitcode in ends, said_of(run).read_text()
        assert "Traceback" not in said_of(run).read_text()
        done = child.exitcode == 0
        asked += not done
        if done:
            assert essence(run) == unasked
            shutil.rmtree(run)
