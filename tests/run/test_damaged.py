"""Weights that are damaged are not used, and whoever gets older ones instead is told."""

import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest

from limelight.errors import UserError
from limelight.loading import load
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS
from limelight.serve.ipc import HEAD, length_of, unpacked
from tests.run.test_malicious import write_good

SENTENCE = (
    "{run}: finished/step-000007 is damaged and passed over: 'weights.safetensors' has another "
    "size; checkpoints/step-000005 is damaged and passed over: 'weights.safetensors' has another "
    "size; checkpoints/step-000003 is used"
)
LIMITS = json.dumps({"batch": 1, "texts": 1, "traced": 1})


@pytest.fixture
def whole(tmp_path):
    """A run with finished weights and two checkpoints."""
    run = RunFolder(tmp_path / "whole")
    write_good(run.path)
    for step in ("step-000003", "step-000005"):
        shutil.copytree(run.finished / "step-000007", run.checkpoints / step)
    return run


@pytest.fixture
def damaged(whole, tmp_path):
    """The same, with only the oldest left as it was."""
    shutil.copytree(whole.path, tmp_path / "damaged")
    run = RunFolder(tmp_path / "damaged")
    for folder in (run.finished / "step-000007", run.checkpoints / "step-000005"):
        cut_short(folder)
    return run


def cut_short(folder):
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])


def called(*command):
    return subprocess.run(
        [*map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_python_is_warned(damaged):
    with pytest.warns(UserWarning, match="is damaged") as told:
        assert load(damaged.path).step == 3
    assert [str(one.message) for one in told] == [SENTENCE.format(run=damaged.path)]


def test_of_a_whole_run_there_is_nothing_to_warn(whole):
    """The control."""
    cut_short(whole.checkpoints / "step-000005")  # older than what is used: nobody asks for it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(whole.path).step == 7


def test_with_no_whole_weights_at_all_each_is_named(damaged):
    cut_short(damaged.checkpoints / "step-000003")
    with pytest.raises(UserError, match=r"no weights yet; finished/.*; checkpoints/.*000003 is"):
        load(damaged.path)


def test_a_command_tells_it_in_one_plain_line_beside_the_answer(programs, whole, damaged):
    command = [programs / "limelight", "classify"]
    right, done = (called(*command, run.path, "a") for run in (whole, damaged))
    assert (right.returncode, right.stderr) == (0, b"")
    assert (done.returncode, done.stdout) == (0, right.stdout)
    assert done.stderr.decode() == f"limelight: {SENTENCE.format(run=damaged.path)}\n"


def test_evaluate_tells_it_once(programs, whole, damaged, tmp_path):
    """Although it loads the model for the loss, and again for the scores."""
    (tmp_path / "own.tsv").write_text("a banana\tgood\n")
    how = ["--data.kind", "labelled", "--data.test", tmp_path / "own.tsv"]
    command = [programs / "limelight", "evaluate"]
    right, done = (called(*command, run.path, *how) for run in (whole, damaged))
    assert (right.returncode, done.returncode) == (0, 0)
    line = f"limelight: {SENTENCE.format(run=damaged.path)}"
    assert done.stderr.decode().splitlines().count(line) == 1
    assert b"damaged" not in right.stderr + done.stdout.replace(bytes(damaged.path), b"")


def test_the_service_writes_it_into_its_log_and_not_between_its_frames(damaged):
    done = called(sys.executable, "-m", "limelight.serve.worker", damaged.path, LIMITS)
    assert done.returncode == 0
    first = done.stdout[HEAD : HEAD + length_of(done.stdout[:HEAD])]
    assert unpacked(first)["ready"]["step"] == 3
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert any("step-000007 is damaged and passed over" in line["message"] for line in logged)
