"""Killed at every system call; on a disk that fails; on a full disk. Needs strace and root."""

import errno
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from limelight.files import atomic_write
from limelight.run.atomic import check_disk_space, find_damage, list_checkpoints, remove_stale_temp
from tests.run.samples import load, names_in, save

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.system

# With step 1 there, save step 2, replace a file and prune; and tell how far it came.
WORK = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from limelight.files import atomic_write
from limelight.run.atomic import prune
from tests.run.samples import save
folder = Path(sys.argv[1])
os.access("/begin", os.F_OK)  # seen by strace
save(folder / "checkpoints", 2)
os.write(1, b"saved ")
atomic_write(folder / "log", b"new")
os.write(1, b"replaced ")
prune(folder / "checkpoints", keep=1)
os.write(1, b"pruned")
"""
MEMORY = {"brk", "mmap", "munmap", "futex"}  # not as many in every run
DISK = {"mkdir", "openat", "write", "read", "getdents64", "fsync", "rename", "unlinkat", "rmdir"}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A run that has saved once."""
    folder = tmp_path_factory.mktemp("start") / "run"
    save(folder / "checkpoints", 1)
    atomic_write(folder / "log", b"old")
    return folder


def work(start: Path, folder: Path, *strace: str) -> subprocess.CompletedProcess[str]:
    """Do the work in a fresh copy, under strace; -I -S, to start fast and the same every time."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(start, folder)
    log = str(folder.with_suffix(".strace"))
    python = [sys.executable, "-I", "-S", "-B", "-c", WORK, str(folder)]
    return subprocess.run(
        ["strace", "-f", "-o", log, *strace, *python], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def calls(start, tmp_path_factory):
    """The names of all system calls of the work: the first and the last of each, by number."""
    folder = tmp_path_factory.mktemp("dry") / "run"
    done = work(start, folder)
    assert done.stdout == "saved replaced pruned", done.stderr
    log = folder.with_suffix(".strace").read_text()
    before, after = (
        Counter(re.findall(r"^\d+ +(\w+)\(", part, re.M)) for part in log.split('"/begin"')
    )
    return {name: (before[name] + 1, before[name] + after[name]) for name in after}


def check(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Whatever has its own name is whole, and new once that was said; a restart finds its way."""
    parent = folder / "checkpoints"
    assert not any(map(find_damage, list_checkpoints(parent)))
    assert load(parent) in ({2} if "saved" in done.stdout else {1, 2})
    log = (folder / "log").read_bytes()
    assert log in ({b"new"} if "replaced" in done.stdout else {b"old", b"new"})
    remove_stale_temp(folder)
    remove_stale_temp(parent)
    save(parent, 2)
    assert load(parent) == 2
    assert names_in(folder) == ["checkpoints", "log"]
    assert set(names_in(parent)) <= {"step-000001", "step-000002"}


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.tmp-*")]


def test_killed_at_every_system_call(start, calls, tmp_path):
    kills = Counter()
    for name, (first, last) in calls.items():
        for number in count(first):
            inject = f"inject={name}:signal=KILL:when={number}"
            done = work(start, tmp_path / "run", f"--trace={name}", "-e", inject)
            check(tmp_path / "run", done)
            if done.returncode == 0:  # there is no such call any more
                break
            assert done.returncode == -9, (inject, done.stderr)
            kills[name] += 1
        assert name in MEMORY or kills[name] == last - first + 1, name
    assert kills.keys() >= DISK
    assert kills.total() > 150


def test_an_error_of_the_disk_at_any_call_is_told_or_does_no_harm(start, calls, tmp_path):
    told = Counter()
    for name in sorted(DISK):
        first, last = calls[name]
        for number in range(first, last + 1):
            inject = f"inject={name}:error=EIO:when={number}"
            done = work(start, tmp_path / "run", f"--trace={name}", "-e", inject)
            if done.returncode == 1:
                assert "[Errno 5] Input/output error" in done.stderr, inject
                told[name] += 1
            else:
                assert done.stdout == "saved replaced pruned", (inject, done.stderr)
            if "replaced" not in done.stdout:
                assert temporaries(tmp_path / "run") == [], inject
            check(tmp_path / "run", done)
    for name in ("mkdir", "write", "fsync", "rename", "unlinkat", "rmdir"):
        first, last = calls[name]
        assert told[name] == last - first + 1, name


@contextmanager
def small_disk(folder: Path, pages: int):
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={4 * pages}k", "tmpfs", folder], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


PAGES = 10  # of 4 KiB, in one checkpoint


@pytest.mark.parametrize("tenths", range(11))
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, tenths):
    """Room for all of the second one is also tried: only then it may be saved."""
    with small_disk(tmp_path / "disk", PAGES + PAGES * tenths // 10) as parent:
        save(parent, 1)
        if tenths == 10:
            save(parent, 2)
            assert load(parent) == 2
            return
        with pytest.raises(OSError, match="No space left") as error:
            save(parent, 2)
        assert error.value.errno == errno.ENOSPC
        assert load(parent) == 1
        assert names_in(parent) == ["step-000001"]


def test_a_file_on_a_full_disk_stays_as_it_was(tmp_path):
    with small_disk(tmp_path / "disk", 3) as folder:
        atomic_write(folder / "log", b"old" * 2000)
        with pytest.raises(OSError, match="No space left"):
            atomic_write(folder / "log", b"new" * 2000)
        assert (folder / "log").read_bytes() == b"old" * 2000
        assert names_in(folder) == ["log"]
        check_disk_space(folder, 3000)
        with pytest.raises(OSError, match="4,000 bytes are to be written and 4,096 are free"):
            check_disk_space(folder, 4000)
