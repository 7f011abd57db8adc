"""Sweeps: all combinations are trained, whatever fails or interrupts them."""

import signal
import subprocess
import sys
import time

import pytest

from limelight.errors import FailedError, UserError
from limelight.recipe import load_recipe
from limelight.run.atomic import lock
from limelight.run.folder import RunFolder
from limelight.workflows import sweep as sweeps
from limelight.workflows.compare import compare
from limelight.workflows.sweep import parse_grid, read_index, sweep
from limelight.workflows.train import train
from tests.training.processes import TINY, steps_logged

SMALL = [option.removeprefix("--") for option in TINY]
STEPS = ["train.steps=12", "train.checkpoint-every=4", "train.validate-every=6"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("train.seed=1..3", [1, 2, 3]),
        ("train.seed=3..1", [3, 2, 1]),
        ("train.seed=-1..0", [-1, 0]),
        ("train.seed=5", [5]),
        ("train.learning-rate=1e-3,3e-3", [1e-3, 3e-3]),
        ("model.positions=rotary,learned", ["rotary", "learned"]),
        ("train.compile=true,false", [True, False]),
        ("train.schedule=paper", ["paper"]),
    ],
)
def test_values_of_a_setting(text, values):
    assert list(parse_grid([text]).values()) == [values]


def test_files_are_one_value_whatever_their_names():
    grid = parse_grid(["data.train=a,b.txt", "data.train=1..2.txt"])
    assert grid == {"data.train": [("a,b.txt", "1..2.txt")]}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["train.steps=5"], "needs a setting with several values"),
        (["train.seed=1,1"], "two runs would be called train.seed=1"),
        (["train.seed=1..9999"], "more than 1,000 runs"),
        (["model.layers=2,two"], "layers='two'"),
        (["train.sed=1..2"], "sed"),
    ],
)
def test_a_sweep_that_cannot_be_is_rejected_before_anything_is_made(texts, why, tmp_path):
    with pytest.raises(UserError, match=why):
        sweep("reverse", tmp_path / "sweep", parse_grid(texts))
    assert not (tmp_path / "sweep").exists()


@pytest.mark.system  # each run is a process that imports torch
def test_one_that_fails_does_not_stop_the_others(tmp_path):
    # With a context of 1 token no example fits, which is known only when the data is read.
    grid = parse_grid([*SMALL, "train.steps=2", "model.max-len=1,64"])
    with pytest.raises(FailedError, match="1 of 2 runs failed") as failed:
        sweep("reverse", tmp_path, grid, jobs=2, silent=True)
    assert "model.max_len=1: " in str(failed.value)
    assert "nothing to train on" in str(failed.value)
    finished = {name: (tmp_path / name / "finished").exists() for name in read_index(tmp_path)}
    assert list(finished.values()) == [False, True]


def facts_of(report):
    """A comparison without folders and times."""
    for group in report["groups"]:
        del group["minutes"]
        for run in group["runs"]:
            del run["run"], run["minutes"]
    return report["groups"]


@pytest.mark.system  # each run is a process that imports torch
def test_interrupted_and_continued_it_comes_to_the_same_table(tmp_path):
    words = [f"--set={text}" for text in [*SMALL, *STEPS, "train.seed=1..2"]]
    command = [sys.executable, "-m", "limelight", "sweep", "reverse", "--run", str(tmp_path / "a")]
    first = tmp_path / "a" / "train.seed=1"
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE) as child:
        while steps_logged(first) < 2:
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate()
    assert child.returncode == 128 + signal.SIGTERM, said.decode()
    assert b"run the same command again to continue" in said
    reached = [steps_logged(tmp_path / "a" / f"train.seed={seed}") for seed in (1, 2)]
    assert reached[0] in range(2, 12), "it saved and ended"
    assert reached[1] == 0, "the next was not begun"

    grid = parse_grid([*SMALL, *STEPS, "train.seed=1..2"])
    assert sweep("reverse", tmp_path / "a", grid, silent=True) == 0
    for seed in (1, 2):
        changes = [*SMALL, *STEPS, f"train.seed={seed}"]
        train("reverse", tmp_path / "b" / str(seed), changes, silent=True)
    alone = [str(tmp_path / "b" / str(seed)) for seed in (1, 2)]
    assert facts_of(compare([str(tmp_path / "a")])) == facts_of(compare(alone))
    twice = [*alone, alone[0]]
    assert facts_of(compare(alone)) != facts_of(compare(twice)), "a table that differs is noticed"


def test_what_has_finished_is_not_trained_again(tmp_path, monkeypatch):
    grid = parse_grid([*SMALL, "train.steps=2", "train.seed=1..2"])
    for seed in (1, 2):
        changes = [*SMALL, "train.steps=2", f"train.seed={seed}"]
        train("reverse", tmp_path / f"train.seed={seed}", changes, silent=True)
    monkeypatch.setattr(sweeps.subprocess, "Popen", None)  # none is started
    assert sweep("reverse", tmp_path, grid, silent=True) == 0
    longer = {**grid, "train.steps": [3]}
    with pytest.raises(TypeError, match="NoneType"):  # with more steps there is work to do
        sweep("reverse", tmp_path, longer, silent=True)


def test_a_run_that_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    """A killed sweep leaves a training behind, which goes on by itself."""
    started = []
    run = sweeps._Run("one", tmp_path / "one", {}, load_recipe("reverse"))
    with lock(run.path):
        assert run.is_locked
    assert not run.is_locked
    grid = {"train.seed": [1, 2]}
    other = lock(tmp_path / "train.seed=1")
    other.__enter__()

    def pretend(pool, run):
        started.append(run.name)
        if len(started) == 1:
            other.__exit__(None, None, None)

    monkeypatch.setattr(sweeps._Pool, "start", pretend)
    assert sweep("reverse", tmp_path, grid, silent=True) == 0
    assert started == ["train.seed=2", "train.seed=1"]


def test_more_values_join_an_earlier_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps._Pool, "start", lambda pool, run: None)
    sweep("reverse", tmp_path, {"train.seed": [1, 2]}, silent=True)
    sweep("reverse", tmp_path, {"train.seed": [2, 3]}, silent=True)
    assert list(read_index(tmp_path)) == [f"train.seed={seed}" for seed in (1, 2, 3)]


def test_a_run_folder_is_no_folder_for_a_sweep(tmp_path):
    RunFolder(tmp_path).begin("reverse")
    with pytest.raises(UserError, match="is a run folder"):
        sweep("reverse", tmp_path, {"train.seed": [1, 2]}, silent=True)


@pytest.mark.parametrize("runs", ["[]", '{"../elsewhere": {}}', '{"a/b": {}}', '{"..": {}}', "3"])
def test_an_index_names_folders_of_its_own(runs, tmp_path):
    (tmp_path / "sweep.json").write_text(f'{{"recipe": "reverse", "runs": {runs}}}')
    with pytest.raises(UserError, match="is not what a sweep writes"):
        read_index(tmp_path)
