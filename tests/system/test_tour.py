"""The tour where the machine refuses: a disk that fills up, folders of others. Needs root."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limelight.workflows import demo
from tests.system.test_crash import small_disk
from tests.tiny_demo import shorten
from tests.training.processes import SECONDS, command, process

pytestmark = pytest.mark.system

PAGE = 4096
FULL = re.compile(r"No space left on device|bytes are to be written")


def short_tour(run: Path, space: int) -> None:
    """In a process of its own, with a tiny chatbot."""
    shorten(pytest.MonkeyPatch())
    demo.DISK_SPACE = space
    command(["demo", "--quick", f"--run={run}"])


def tour(run: Path, said: Path, cache: Path, space: int = 0) -> tuple[int | None, str]:
    """Its exit code and its words; `space` is what it asks for before it begins."""
    with process(short_tour, run, space, said=said, LIMELIGHT_CACHE=str(cache)) as child:
        child.join(2 * SECONDS)
    return child.exitcode, said.read_text()


def is_told(said: str) -> str:
    """The last line is a sentence that names what is full, and what to do; nothing has crashed."""
    last = said.splitlines()[-1]
    assert last.startswith("limelight: ")
    assert FULL.search(last)
    assert re.search("make room|free some space", last, re.IGNORECASE)
    assert not re.search(r"(?<!Thread-1:\n)Traceback", said)
    return last


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tour with all the room there is: the pages that it takes, those of its cache apart."""
    place = tmp_path_factory.mktemp("whole")
    code, said = tour(place / "run", place / "said", place / "cache")
    assert code == 0, said
    return {name: pages_of(place / name) for name in ("run", "cache")}


def pages_of(folder: Path) -> int:
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(-(-size // PAGE) for size in files)


def test_too_small_a_disk_is_told_before_anything_else(tmp_path):
    with small_disk(tmp_path / "disk", 1000) as disk:
        code, said = tour(disk / "run", tmp_path / "said", tmp_path / "cache", demo.DISK_SPACE)
    assert code == 1
    assert str(disk) in is_told(said)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 0.9])
def test_a_disk_that_others_fill_in_the_meantime(tmp_path, whole, share):
    """What could be saved is whole, and with room the same command goes on to the end."""
    with small_disk(tmp_path / "disk", max(1, int(share * whole["run"]))) as disk:
        code, said = tour(disk / "run", tmp_path / "said", tmp_path / "cache")
        assert code == 1
        assert str(disk) in is_told(said)
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        code, said = tour(disk / "run", tmp_path / "said", tmp_path / "cache")
        assert code == 0, said
        assert (disk / "run" / "explain.html").is_file()


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_full_disk_for_the_cache(tmp_path, whole, share):
    with small_disk(tmp_path / "disk", max(1, int(share * whole["cache"]))) as disk:
        code, said = tour(tmp_path / "run", tmp_path / "said", disk / "a" / "cache")
        assert code == 1
        assert str(disk) in is_told(said)


# Folders that one may not write into. Whoever started the tests may read the package and Python;
# so root gives up what lets it write everywhere, and is then a user like any other.
WITHOUT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


def as_a_user(folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """`limelight demo --quick` there, with no terminal."""
    hidden = ("LIMELIGHT_CACHE", "XDG_CACHE_HOME")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {"HOME": str(home)}
    return subprocess.run(
        [*WITHOUT, sys.executable, "-m", "limelight", "demo", "--quick"],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(Path(demo.__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("which", ["here", "home"])
def test_a_folder_of_somebody_else_s(tmp_path, which):
    for name in ("here", "home"):
        (tmp_path / name).mkdir(mode=0o555 if name == which else 0o755)
    done = as_a_user(tmp_path / "here", tmp_path / "home")
    assert (done.returncode, done.stdout) == (1, "")
    place, setting = {
        "here": ("runs", "--run"),
        "home": (str(tmp_path / "home" / ".cache"), "LIMELIGHT_CACHE"),
    }[which]
    assert done.stderr == (
        f"limelight: {place}: Permission denied; choose a place that you may use, or ask for "
        f"permission ({setting} says where)\n"
    )


def test_nothing_that_these_need_is_missing():
    assert shutil.which("setpriv")
    assert os.geteuid() == 0
