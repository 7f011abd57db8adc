"""Killed or asked to leave at any instant, a run goes on as if nothing had happened."""

import json
import os
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from limelight.errors import END_SIGNALS
from limelight.run.atomic import find_damage, list_checkpoints
from tests.training.processes import (
    SECONDS,
    command,
    process,
    result,
    said_of,
    speaks,
    steps_logged,
    train,
    train_command,
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


@pytest.mark.parametrize("number", END_SIGNALS)
@pytest.mark.parametrize("seen", [".lock", "finished/step-000002"])
def test_a_signal_before_and_after_training_is_no_traceback(tmp_path, number, seen):
    """While data and model are prepared, and while the curves are drawn."""
    run = tmp_path / "run"
    with training(run, ["--train.steps=2"]) as child:
        assert wait_until((run / seen).exists, child)
        os.kill(child.pid, number)
        child.join(30)
    assert child.exitcode in (128 + number, *([0] if "finished" in seen else []))
    assert said_of(run).read_text().endswith("limelight: interrupted\n") or child.exitcode == 0
    assert "Traceback" not in said_of(run).read_text()


def on_terminal(name: str, ignoring: bool, arguments: list[str]) -> None:
    """As in a terminal of its own, with SIGHUP as it comes or as under nohup."""
    os.setsid()
    terminal = os.open(name, os.O_RDWR)  # the first that a new session opens controls it
    for descriptor in (0, 1, 2):
        os.dup2(terminal, descriptor)
    os.close(terminal)
    if ignoring:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    command(arguments)


@pytest.mark.parametrize("ignoring", [False, True])
def test_a_closed_terminal_loses_nothing(unasked, tmp_path, ignoring):
    """It saves and leaves; under nohup it goes on, although nothing can be printed any more."""
    run, cache = tmp_path / "run", str(tmp_path / "cache")
    terminal, theirs = os.openpty()
    os.set_blocking(terminal, False)
    work = (on_terminal, os.ttyname(theirs), ignoring, train_command(run, LEFT))
    with process(*work, said=said_of(run), LIMELIGHT_CACHE=cache) as child:

        def trains() -> bool:
            with suppress(BlockingIOError):  # what is printed must be read, or printing waits
                os.read(terminal, 2**16)
            return steps_logged(run) >= 6

        assert wait_until(trains, child)
        os.close(theirs)
        os.close(terminal)
        child.join(SECONDS)
    assert child.exitcode == (0 if ignoring else 128 + signal.SIGHUP)
    if not ignoring:
        assert 6 <= newest_state(run)["step"] < STEPS
        train(run, LEFT)
    assert essence(run) == unasked


def into_pipe(name: str, arguments: list[str]) -> None:
    """With a pipe for all that is printed."""
    pipe = os.open(name, os.O_WRONLY)
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    os.close(pipe)
    command(arguments)


def test_a_reader_that_leaves_loses_nothing(unasked, tmp_path):
    """As with `2>&1 | head -1`: training goes on to its end."""
    run, pipe, cache = tmp_path / "run", tmp_path / "pipe", str(tmp_path / "cache")
    os.mkfifo(pipe)
    work = (into_pipe, str(pipe), train_command(run, LEFT))
    with process(*work, said=said_of(run), LIMELIGHT_CACHE=cache) as child:
        with open(pipe) as reader:
            assert reader.readline().startswith("training reverse")
        assert steps_logged(run) < STEPS
        child.join(SECONDS)
    assert child.exitcode == 0
    assert essence(run) == unasked


@pytest.mark.parametrize("instants", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_asked_to_leave_at_random_instants(unasked, tmp_path, instants):
    """Before there is anything to save, and when all is saved, the signal simply ends it."""
    draw = random.Random(instants)
    run, asked, done = tmp_path / "run", 0, False
    while asked < instants or not done:
        number = draw.choice(END_SIGNALS)
        with training(run, LEFT) as child:
            if asked < instants:
                wait_until(lambda: speaks(run), child)
                wait_for_a_random_instant(run, child, draw)
                if child.exitcode is None:
                    os.kill(child.pid, number)
            child.join(SECONDS if asked == instants else 30)
        assert child.exitcode in (0, 128 + number), said_of(run).read_text()
        assert "Traceback" not in said_of(run).read_text()
        done = child.exitcode == 0
        asked += not done
        if done:
            assert essence(run) == unasked
            shutil.rmtree(run)
