"""A power cut loses what was not synced, in any combination; a whole checkpoint is always left.

A model of a disk watches the committer work. Of each file and folder it keeps the versions that may
be found after a cut: the one that was last synced, and every one since. (The idea is that of ALICE:
Pillai et al., "All File Systems Are Not Created Equal", 2014.)
"""

import os
from itertools import product

import pytest

from limelight.files import atomic_write
from limelight.run.atomic import find_damage, list_checkpoints, prune
from tests.run.samples import load, save

CALLS = ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink")


class Disk:
    """What could be left of a folder if the power were cut after each call that is made."""

    def __init__(self, root, monkeypatch, lost_sync=None):
        self.root = root
        self.versions = {}  # of the content of files and of folders, by the numbers they have
        self.open = []  # all that were ever seen, so that no number is used again
        self.allowed = {None}  # what may be found: the promise of the moment
        self.cuts = set()
        self.syncs = 0
        self.lost_sync = lost_sync
        self.look(root)
        for name in CALLS:
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name, call):
        def watched_call(*arguments, **options):
            call(*arguments, **options)
            self.look(self.root)
            if name == "fsync":
                self.syncs += 1
                if self.syncs != self.lost_sync:
                    versions = self.versions[os.fstat(arguments[0]).st_ino]
                    del versions[:-1]
            self.cut()

        return watched_call

    def look(self, path):
        """Note what a file or folder holds now, and whatever is in it."""
        number = path.stat().st_ino
        if number not in self.versions:
            self.open.append(os.open(path, os.O_RDONLY))
            self.versions[number] = [{} if path.is_dir() else b""]
        versions = self.versions[number]
        if path.is_dir():
            now = {child.name: self.look(child) for child in path.iterdir()}
        else:
            now = path.read_bytes()
        if now != versions[-1]:
            versions += [now] if path.is_dir() else [now[: len(now) // 2], now]
        return number

    def promise(self, allowed):
        self.allowed = allowed
        self.cut()

    def cut(self):
        number = self.root.stat().st_ino
        self.cuts |= {(tree, frozenset(self.allowed)) for tree in self.left(number)}

    def left(self, number):
        """All that may be left of a file or folder; what is still temporary does not matter."""
        trees = set()
        for version in self.versions[number]:
            if isinstance(version, bytes):
                trees.add(version)
                continue
            names = sorted(name for name in version if ".tmp-" not in name)
            below = [self.left(version[name]) for name in names]
            trees |= {tuple(zip(names, choice, strict=True)) for choice in product(*below)}
        return trees


def write(tree, path):
    if isinstance(tree, bytes):
        path.write_bytes(tree)
    else:
        path.mkdir()
        for name, below in tree:
            write(below, path / name)


def save_twice_and_prune(disk):
    parent = disk.root / "run" / "checkpoints"
    for step in (1, 2):
        disk.promise(disk.allowed | {step})
        save(parent, step)
        disk.promise({step})
    prune(parent, keep=1)


def step_found(root):
    """None of those that are there, by their own names, may be damaged."""
    parent = root / "run" / "checkpoints"
    return "damaged" if any(map(find_damage, list_checkpoints(parent))) else load(parent)


def replace_a_file_twice(disk):
    for data in (b"first", b"second"):
        disk.promise(disk.allowed | {data})
        atomic_write(disk.root / "log", data)
        disk.promise({data})


def file_found(root):
    return (root / "log").read_bytes() if (root / "log").exists() else None


def cut_everywhere(work, find, folder, monkeypatch, lost_sync=None):
    """All that can be found after a cut, each with what was promised at that time."""
    (folder / "disk").mkdir()
    with monkeypatch.context() as patch:
        disk = Disk(folder / "disk", patch, lost_sync)
        work(disk)
        disk.cut()
    for descriptor in disk.open:
        os.close(descriptor)
    found = []
    for number, (tree, promised) in enumerate(disk.cuts):
        write(tree, folder / str(number))
        found.append((find(folder / str(number)), promised))
    return found, disk.syncs


WORKS = [
    (save_twice_and_prune, step_found, {None, 1, 2}, 15),
    (replace_a_file_twice, file_found, {None, b"first", b"second"}, 4),
]


@pytest.mark.parametrize(("work", "find", "all_found", "syncs"), WORKS)
def test_after_any_power_cut_the_old_or_the_new_is_found(
    tmp_path, monkeypatch, work, find, all_found, syncs
):
    found, synced = cut_everywhere(work, find, tmp_path, monkeypatch)
    assert [(what, promised) for what, promised in found if what not in promised] == []
    assert {what for what, _ in found} == all_found
    assert synced == syncs


@pytest.mark.parametrize(
    ("work", "find", "lost_sync"),
    [(work, find, lost + 1) for work, find, _, syncs in WORKS for lost in range(syncs)],
)
def test_without_any_one_of_the_syncs_a_promise_breaks(
    tmp_path, monkeypatch, work, find, lost_sync
):
    """The control; and no sync is there for nothing."""
    found, _ = cut_everywhere(work, find, tmp_path, monkeypatch, lost_sync)
    assert any(what not in promised for what, promised in found)
