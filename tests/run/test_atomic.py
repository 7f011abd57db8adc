"""A checkpoint is whole or not there, damage is noticed, and only one process writes."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from limelight import files as limelight_files
from limelight.errors import UserError
from limelight.files import atomic_write
from limelight.run import atomic
from limelight.run.atomic import (
    MANIFEST,
    check_disk_space,
    commit,
    find_damage,
    latest_valid,
    lock,
    prune,
    remove_stale_temp,
)
from tests.run.samples import content, files_of, load, name_of, names_in, put, save

ROOT = Path(__file__).parents[2]


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process, that can be spoken with."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_was_written_is_there_and_whole(tmp_path):
    parent = tmp_path / "run" / "checkpoints"  # made on the way
    save(parent, 7)
    folder = parent / "step-000007"
    assert find_damage(folder) is None
    assert files_of(folder) == content(7)
    assert names_in(parent) == ["step-000007"]
    assert latest_valid(parent) == (folder, [])


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_modes_are_the_usual_ones(tmp_path, umask):
    before = os.umask(umask)
    try:
        save(tmp_path, 1)
        atomic_write(tmp_path / "log", b"")
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        usual = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == usual & ~umask


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "bad"), KeyboardInterrupt(), ValueError()])
def test_a_failure_while_writing_leaves_nothing_and_is_told(tmp_path, failure):
    save(tmp_path, 1)

    def fail(folder):
        put(folder, content(2))
        raise failure

    with pytest.raises(type(failure)) as raised:
        commit(tmp_path / "step-000002", fail)
    assert raised.value is failure
    assert names_in(tmp_path) == ["step-000001"]


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: (folder / "deeper").mkdir(),
        lambda folder: (folder / "link").symlink_to("/etc/hostname"),
        lambda folder: (folder / MANIFEST).touch(),
    ],
    ids=["folder", "link", "manifest"],
)
def test_what_could_not_be_verified_is_not_committed(tmp_path, make):
    with pytest.raises((ValueError, FileExistsError), match=r"deeper|link|MANIFEST"):
        commit(tmp_path / "step-000001", make)
    assert names_in(tmp_path) == []


def test_a_whole_one_stays_and_a_damaged_one_is_replaced(tmp_path):
    save(tmp_path, 1)
    folder = tmp_path / "step-000001"

    def never(folder):
        raise AssertionError("written again")

    commit(folder, never)
    (folder / "weights.safetensors").write_bytes(b"shorter")
    with pytest.raises(AssertionError):
        commit(folder, never)
    save(tmp_path, 1)
    assert load(tmp_path) == 1
    assert names_in(tmp_path) == ["step-000001"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_folder_but_has_its_name_makes_way(tmp_path, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    folder = tmp_path / "step-000001"
    folder.touch() if kind == "file" else folder.symlink_to(elsewhere)
    save(tmp_path, 1)
    assert load(tmp_path) == 1
    assert names_in(elsewhere) == ["precious"]


def test_everything_is_synced_before_its_name_and_the_manifest_last(tmp_path, monkeypatch):
    done = []
    rename = os.rename

    def record_rename(source, target):
        done.append(("rename", Path(target).name))
        rename(source, target)

    for module in (atomic, limelight_files):
        monkeypatch.setattr(module, "sync", lambda path: done.append(("sync", path.name)))
    monkeypatch.setattr(os, "rename", record_rename)
    save(tmp_path, 1)
    files, rest = done[:3], done[3:]
    assert sorted(files) == [("sync", name) for name in sorted(content(1))]
    assert [(what, name.split(".tmp-")[0]) for what, name in rest] == [
        ("sync", MANIFEST),
        ("sync", "step-000001"),
        ("rename", "step-000001"),
        ("sync", tmp_path.name),
    ]
    done.clear()
    save(tmp_path, 1)  # killed just before the last sync, a resumed run makes up for it
    assert done == [("sync", tmp_path.name)]


# Damages. Each takes a checkpoint's folder and a source of randomness.


def any_file(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(folder.iterdir()))


def flip_a_bit(folder, draw):
    path = any_file(folder, draw)
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut_short(folder, draw):
    path = any_file(folder, draw)
    os.truncate(path, draw.randrange(path.stat().st_size))


def zero_a_page(folder, draw):
    with (folder / "weights.safetensors").open("r+b") as file:
        file.seek(4096 * draw.randrange(4))
        file.write(bytes(4096))


def swap_two(folder, draw):
    one, other = draw.sample(sorted(folder.iterdir()), 2)
    one.rename(folder / "third")
    other.rename(one)
    (folder / "third").rename(other)


def lose_one(folder, draw):
    any_file(folder, draw).unlink()


def add_one(folder, draw):
    (folder / draw.choice(["extra", ".hidden", "weights.safetensors.1"])).touch()


def append(folder, draw):
    with any_file(folder, draw).open("ab") as file:
        file.write(b"x" + draw.randbytes(draw.randrange(9)))


def edit_the_manifest(folder, draw):
    manifest = json.loads((folder / MANIFEST).read_bytes())
    name = draw.choice(sorted(manifest["files"]))
    file = manifest["files"][name]
    key = draw.choice(["size", "sha256"])
    edits: list[Callable[[], object]] = [
        lambda: manifest.update(format=draw.choice([0, 2, "1", None, [1]])),
        lambda: manifest.pop(draw.choice(["format", "files"])),
        lambda: manifest["files"].pop(name),
        lambda: manifest["files"].update({f"../{name}": manifest["files"].pop(name)}),
        lambda: manifest["files"].update({draw.choice(["x", "../x", "/x", ""]): file}),
        lambda: file.pop(key),
        lambda: file.update({key: draw.choice([None, -1, "", str(file[key])[:-1], [file[key]]])}),
    ]
    draw.choice(edits)()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def put_a_link_in_place(folder, draw):
    path = any_file(folder, draw)
    moved = folder.parent / f"moved {path.name}"
    path.rename(moved)
    path.symlink_to(moved)  # leads to the very same bytes, but outside


DAMAGES = [
    flip_a_bit,
    cut_short,
    zero_a_page,
    swap_two,
    lose_one,
    add_one,
    append,
    edit_the_manifest,
    put_a_link_in_place,
]


def test_500_damages_are_noticed_and_the_one_before_is_taken(tmp_path):
    whole = tmp_path / "whole"
    save(whole, 1)
    save(whole, 2)
    for seed in range(500):
        parent = tmp_path / str(seed)
        shutil.copytree(whole, parent)
        DAMAGES[seed % len(DAMAGES)](parent / "step-000002", random.Random(seed))
        found, sentences = latest_valid(parent)
        assert found == parent / "step-000001", seed
        assert files_of(found) == content(1)
        reason = r"step-000002 is damaged and passed over: ('.*'|MANIFEST\.json) (is|has) .+"
        assert [bool(re.fullmatch(reason, sentence)) for sentence in sentences] == [True], seed
        shutil.rmtree(parent)


def test_the_reason_is_told(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flipped = bytearray(content(2)["weights.safetensors"])
    flipped[10] ^= 1
    (tmp_path / "step-000002" / "weights.safetensors").write_bytes(flipped)
    assert latest_valid(tmp_path) == (
        tmp_path / "step-000001",
        ["step-000002 is damaged and passed over: 'weights.safetensors' has another content"],
    )


HOSTILE = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\xfd",
    "null": b"null",
    "number": b"17",
    "list": b"[1]",
    "text": b'"files"',
    "nothing in it": b"{}",
    "deep lists": b"[" * 500_000,
    "deep tables": b'{"files":' * 100_000,
    "deep format": b'{"files": {}, "format": ' + b"[" * 900 + b"]" * 900 + b"}",
    "number of many digits": b'{"format": 1, "files": {"a": {"size": ' + b"9" * 9999 + b"}}}",
    "files are a list": b'{"format": 1, "files": ["a"]}',
    "files are none": b'{"format": 1, "files": null}',
    "a file is none": b'{"format": 1, "files": {"a": null}}',
    "a file is a text": b'{"format": 1, "files": {"a": "size sha256"}}',
    "a size is a table": b'{"format": 1, "files": {"a": {"size": {}, "sha256": []}}}',
    "not a number": b'{"format": NaN, "files": {}}',
    "long name": b'{"format": 1, "files": {"' + b"n" * 900_000 + b'": {"size":1,"sha256":1}}}',
    "name that is no text": rb'{"format": 1, "files": {"\ud800\u001b[2J": {"size":1,"sha256":1}}}',
    "too large": b" " * (2**20 + 1),
}


@pytest.mark.parametrize("manifest", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_manifest_is_a_short_reason_and_no_failure(tmp_path, manifest):
    save(tmp_path, 1)
    (tmp_path / "step-000001" / MANIFEST).write_bytes(manifest)
    reason = find_damage(tmp_path / "step-000001")
    assert reason is not None
    assert len(reason) < 120
    assert reason.isascii()
    assert reason.isprintable()


def test_a_manifest_of_a_terabyte_is_not_read(tmp_path):
    save(tmp_path, 1)
    os.truncate(tmp_path / "step-000001" / MANIFEST, 2**40)
    assert find_damage(tmp_path / "step-000001") == "MANIFEST.json is too large"


@pytest.mark.parametrize("name", ["../outside", "/outside", "deeper/../../outside", "deeper/file"])
def test_a_manifest_cannot_lead_outside(tmp_path, name):
    """Even where size and hash of what it names are right."""
    folder = tmp_path / "step-000001"
    save(tmp_path, 1)
    (tmp_path / "outside").write_bytes((folder / "state.json").read_bytes())
    path = name.replace("/outside", f"{tmp_path}/outside") if name[0] == "/" else name
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"][path] = manifest["files"]["state.json"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert str(find_damage(folder)).endswith(" is missing")


@pytest.mark.parametrize("name", ["extra", "state.json", MANIFEST])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "endless link", "loop"])
def test_what_is_no_plain_file_is_never_opened(tmp_path, name, kind):
    """To open the pipe would wait for ever, to read the endless link too."""
    save(tmp_path, 1)
    path = tmp_path / "step-000001" / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        targets = {"link": "optimizer.safetensors", "endless link": "/dev/zero", "loop": name}
        path.symlink_to(targets[kind])
    assert find_damage(tmp_path / "step-000001") == f"'{name}' is not a plain file"


def test_names_that_break_terminals_are_told_harmlessly(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-000001" / os.fsdecode(b"\x1b[2J\xff")).touch()
    assert find_damage(tmp_path / "step-000001") == r"'\x1b[2J\udcff' is not in the manifest"


def test_no_folder_and_a_link_to_a_whole_one_are_no_checkpoints(tmp_path):
    save(tmp_path / "elsewhere", 1)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "step-000001")
    (tmp_path / "file").touch()
    assert find_damage(tmp_path / "link") == "it is a link"
    assert find_damage(tmp_path / "file") == "it cannot be read: Not a directory"
    assert find_damage(tmp_path / "nothing") == "it cannot be read: No such file or directory"


def test_the_newest_is_by_number_and_other_names_are_left_alone(tmp_path):
    assert latest_valid(tmp_path / "nothing") == (None, [])
    for step in (999_999, 1_000_000, 42):
        save(tmp_path, step)
    others = ["step-9", "step-0000007", "step-00000x", "step-²²²²²²", "best", "step-2000000.old"]
    for name in others:
        shutil.copytree(tmp_path / "step-000042", tmp_path / name)
    assert load(tmp_path) == 1_000_000
    prune(tmp_path, keep=1)
    assert names_in(tmp_path) == sorted([*others, "step-1000000"])


@pytest.mark.parametrize(
    ("keep", "spare", "left"),
    [
        (9, [], [1, 2, 3, 4, 5, 6]),
        (2, [], [3, 4, 5, 6]),  # 4 and 6 are damaged, and newer than the second whole one
        (1, [], [5, 6]),
        (0, [], [5, 6]),  # never the last whole one
        (-1, [], [5, 6]),
        (1, ["step-000001", "step-000004", "step-000099"], [1, 4, 5, 6]),
    ],
)
def test_pruning_keeps_the_newest_whole_ones_and_those_to_spare(tmp_path, keep, spare, left):
    for step in range(1, 7):
        save(tmp_path, step)
    for step in (4, 6):
        lose_one(tmp_path / name_of(step), random.Random(step))
    prune(tmp_path, keep, spare)
    assert names_in(tmp_path) == [name_of(step) for step in left]


def test_pruning_reads_nothing_again_that_this_process_has_written(tmp_path, monkeypatch):
    """To hash gigabytes at every save takes as long as to write them."""
    for step in range(1, 6):
        save(tmp_path, step)
    read = []
    true_damage = atomic.find_damage
    monkeypatch.setattr(atomic, "find_damage", lambda f: read.append(f.name) or true_damage(f))
    prune(tmp_path, keep=3, written={name_of(4), name_of(5)})
    assert read == [name_of(3)]
    assert names_in(tmp_path) == [name_of(step) for step in (3, 4, 5)]
    prune(tmp_path, keep=1, written={name_of(5)})
    assert read == [name_of(3)]
    assert names_in(tmp_path) == [name_of(5)]


def test_pruning_deletes_nothing_when_all_are_damaged(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
        lose_one(tmp_path / name_of(step), random.Random(step))
    prune(tmp_path, keep=1)
    assert len(names_in(tmp_path)) == 3
    found, sentences = latest_valid(tmp_path)
    assert found is None
    assert len(sentences) == 3


def test_sweeping_takes_temporaries_and_nothing_else(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-000002.tmp-0123abcd").mkdir()
    (tmp_path / "step-000002.tmp-0123abcd" / "half").touch()
    (tmp_path / "log.tmp-89abcdef").touch()
    (tmp_path / "x.tmp-00000000").symlink_to(tmp_path / "step-000001")
    (tmp_path / "notes.tmp-mine").touch()
    remove_stale_temp(tmp_path)
    assert names_in(tmp_path) == ["notes.tmp-mine", "step-000001"]
    assert load(tmp_path) == 1
    remove_stale_temp(tmp_path / "nothing")


SAVE_ON_AND_ON = """
import sys
from itertools import count
from pathlib import Path
from limelight.run.atomic import prune
from tests.run.samples import save
parent = Path(sys.argv[1])
for step in count(1):
    save(parent, step)
    prune(parent, keep=1)
"""


@pytest.mark.parametrize(
    ("loads", "saves"), [(200, 60), pytest.param(1000, 200, marks=pytest.mark.soak)]
)
def test_loading_while_another_process_saves_and_prunes(tmp_path, loads, saves):
    """Every load gives one committed step whole, and none older than the one before."""
    with python(SAVE_ON_AND_ON, tmp_path) as writer:
        try:
            steps = [0]
            while len(steps) <= loads or steps[-1] < saves:
                assert writer.poll() is None
                step = load(tmp_path) or 0
                assert step >= steps[-1]
                steps.append(step)
        finally:
            writer.kill()
    assert len(set(steps)) > 5, "they hardly ran at the same time"
    assert load(tmp_path) is not None


class Histories(RuleBasedStateMachine):
    """Saves, prunings, damages, failures and sweeps in any order."""

    def __init__(self):
        super().__init__()
        self.parent = Path.cwd() / "checkpoints"
        shutil.rmtree(self.parent, ignore_errors=True)
        self.parent.mkdir()
        self.last = 0
        self.whole: set[int] = set()

    @initialize(saves=st.integers(1, 4))
    def begin(self, saves):
        for _ in range(saves):
            self.save()

    @rule()
    def save(self):
        self.last += 1
        self.save_the_last_again()

    @precondition(lambda self: self.last)
    @rule()
    def save_the_last_again(self):
        save(self.parent, self.last)
        self.whole.add(self.last)

    @rule(keep=st.integers(0, 3), spared=st.sets(st.integers(1, 6), max_size=2))
    def prune(self, keep, spared):
        before = set(names_in(self.parent))
        prune(self.parent, keep, map(name_of, spared))
        after = set(names_in(self.parent))
        kept = set(sorted(self.whole)[-max(keep, 1) :]) | (self.whole & spared)
        self.whole = {step for step in self.whole if name_of(step) in after}
        assert self.whole == kept
        assert all(name_of(step) in after for step in spared if name_of(step) in before)

    @precondition(lambda self: self.whole)
    @rule(which=st.sampled_from(DAMAGES), seed=st.integers(0, 99))
    def damage_the_newest(self, which, seed):
        which(self.parent / name_of(max(self.whole)), random.Random(seed))
        self.whole.remove(max(self.whole))

    @rule(failure=st.sampled_from([OSError, KeyboardInterrupt]))
    def fail_while_writing(self, failure):
        def write(folder):
            put(folder, content(self.last + 1))
            raise failure

        with pytest.raises(failure):
            commit(self.parent / name_of(self.last + 1), write)

    @rule()
    def be_killed_while_writing(self):
        left = self.parent / f"{name_of(self.last + 1)}.tmp-01234567"
        left.mkdir(exist_ok=True)
        put(left, content(self.last + 1))

    @rule()
    def sweep(self):
        remove_stale_temp(self.parent)
        assert not list(self.parent.glob("*.tmp-*"))

    @invariant()
    def the_newest_whole_one_loads(self):
        folder, _ = latest_valid(self.parent)
        if self.whole:
            assert folder == self.parent / name_of(max(self.whole))
            assert files_of(folder) == content(max(self.whole))
        else:
            assert folder is None


@pytest.mark.parametrize("histories", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_histories(tmp_path, monkeypatch, histories):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # test_power_cut.py is about those
    limits = settings(max_examples=histories, stateful_step_count=20, deadline=None, database=None)
    run_state_machine_as_test(Histories, settings=limits)


HOLD = """
import os, sys
from pathlib import Path
from limelight.errors import UserError
from limelight.run.atomic import lock
try:
    with lock(Path(sys.argv[1])):
        if "fork" not in sys.argv or os.fork() == 0:
            print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error)
"""


def test_a_second_process_is_refused_with_a_sentence(tmp_path):
    with python(HOLD, tmp_path) as first:
        assert first.stdout.readline() == "held\n"
        with python(HOLD, tmp_path) as second:
            said, _ = second.communicate()
        assert said.startswith(f"another process is training in {tmp_path}: ")
        with pytest.raises(UserError, match="another process is training"), lock(tmp_path):
            pass
        first.communicate()
    with lock(tmp_path):  # freed at the end of the block
        pass


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_process_frees_the_lock_at_once(tmp_path, how):
    """Even when a child that it forked lives on."""
    for _ in range(20):
        holder = python(HOLD, tmp_path, how)
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError), lock(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock(tmp_path):
            pass
        holder.stdin.close()  # the child ends
        holder.stdout.close()


def test_an_error_under_the_lock_frees_it_and_goes_on(tmp_path):
    with pytest.raises(BlockingIOError, match="of the training"), lock(tmp_path / "new" / "run"):
        raise BlockingIOError("of the training")
    with lock(tmp_path / "new" / "run"):
        pass


def test_room_is_asked_for_before_it_is_needed(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1200)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    check_disk_space(tmp_path, 1000)
    with pytest.raises(OSError, match=r"1,001 bytes are to be written and 1,200 are free") as error:
        check_disk_space(tmp_path, 1001)
    assert error.value.errno == errno.ENOSPC


def test_a_replaced_file_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    atomic_write(tmp_path / "log", b"old")
    atomic_write(tmp_path / "log", b"new")
    assert (tmp_path / "log").read_bytes() == b"new"

    def fail(descriptor):
        raise OSError(errno.EIO, "the disk is bad")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the disk is bad"):
        atomic_write(tmp_path / "log", b"newer")
    assert (tmp_path / "log").read_bytes() == b"new"
    assert names_in(tmp_path) == ["log"]


def test_only_the_standard_library_is_imported():
    """So that it starts fast enough to be killed at every system call."""
    script = "import sys, limelight.run.atomic; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = {name.split(".")[0] for name in done.stdout.split()}
    assert not imported & {"torch", "numpy", "safetensors", "pydantic"}
