"""Training on a disk that is too small goes on, says so, and loses nothing. Needs root."""

import re
import subprocess

import pytest

import limelight
from limelight.errors import UserError
from tests.system.test_crash import small_disk
from tests.training.processes import SECONDS, command, process, result, train, train_command

pytestmark = pytest.mark.system

SETTINGS = [
    "--train.steps=24",
    "--train.checkpoint-every=5",
    "--train.validate-every=8",
    "--model.d-model=2",  # so small that it is the pages that count: some saves fail half way
    "--model.heads=1",
    "--model.d-ff=4",
]
DUE = {5, 10, 15, 20}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with all the room in the world."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(run, SETTINGS)
    return run


def start(run, folder):
    """Train on the disk; what is said, and the cache, are elsewhere."""
    said, cache = folder / "said", str(folder / "cache")
    with process(command, train_command(run, SETTINGS), said=said, LIMELIGHT_CACHE=cache) as child:
        child.join(SECONDS)
    return child.exitcode, said.read_text()


def newest_step(run):
    try:
        return limelight.load(run).step
    except UserError:
        return 0


def tracebacks(said):
    """Those of ours: TensorBoard, where it is, writes in a thread that dies with one."""
    return re.findall(r"(?<!Thread-1:\n)Traceback", said)


@pytest.mark.parametrize("pages", [1, 3, 6, 9, 12, 15, 18, 21, 24, 26, 28, 31, 34])
def test_a_full_disk_is_told_and_when_there_is_room_nothing_was_lost(tmp_path, whole, pages):
    with small_disk(tmp_path / "disk", pages) as disk:
        run = disk / "run"
        code, said = start(run, tmp_path)
        assert code == 1
        failed = [int(step) for step in re.findall(r"warning: step (\d+) could not be saved", said)]
        if pages > 5:  # there is room enough to begin
            assert len(failed) == len(set(failed))  # each is told once
            saved = DUE - set(failed)
            assert newest_step(run) == max(saved, default=0)
            assert "limelight: step 24 could not be saved: " in said.splitlines()[-1]
        assert re.search("No space left on device|bytes are to be written", said.splitlines()[-1])
        assert not tracebacks(said)
        before = newest_step(run)
        code, said = start(run, tmp_path)  # the same again helps nothing, and does no harm
        assert (code, newest_step(run)) == (1, before)
        assert not tracebacks(said)
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        assert start(run, tmp_path)[0] == 0
        assert result(run) == result(whole)


def test_with_enough_room_there_is_nothing_to_tell(tmp_path, whole):
    """The control; and what is pruned makes room again."""
    with small_disk(tmp_path / "disk", 60) as disk:
        code, said = start(disk / "run", tmp_path)
        assert code == 0
        assert "could not" not in said
        assert result(disk / "run") == result(whole)
