"""Downloads: whole or not at all, taken up again where they were cut, once for all processes."""

import io
import os
import pty
import signal
import subprocess
import sys
import tarfile
import threading
import time
from zipfile import ZipFile

import pytest

from limelight.data import download as module
from limelight.data.download import extract, fetch
from limelight.errors import UserError
from tests.data.serving import Server

CONTENT = bytes(range(256)) * 1000 + b"the end"
OTHER = CONTENT[::-1]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0, 0.0))
    with Server() as running:
        running.files["/data/a.bin"] = CONTENT
        running.address = f"{running.url}/data/a.bin"
        yield running


def names(folder):
    """What lies in a folder, without the locks."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_whole_file(server, tmp_path, capsys):
    path = tmp_path / "deep" / "down" / "a.bin"
    fetch(server.address, path)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["a.bin"]
    assert capsys.readouterr().err == f"downloading {server.address} (256.0 kB)\n"
    fetch(server.address, path)
    assert server.requests == [("/data/a.bin", None, None)]  # found the second time
    assert server.agents == {"limelight"}


@pytest.mark.parametrize("cut", [1, 1000, len(CONTENT) // 2, len(CONTENT) - 1])
@pytest.mark.parametrize("resets", [False, True])
def test_a_cut_file_is_taken_up_where_it_was_cut(server, tmp_path, cut, resets):
    server.cuts, server.resets = [cut], resets
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    first, second = server.requests
    assert first[1:] == (None, None)
    if not resets:  # a reset may swallow bytes that were on their way
        assert second[1:] == (f"bytes={cut}-", '"one"')
    assert names(tmp_path) == ["a.bin"]


def test_a_connection_that_is_cut_before_the_first_byte(server, tmp_path):
    server.cuts = [0]
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_patience_lasts_as_long_as_the_tries_are_of_use(server, tmp_path):
    server.cuts = list(range(10_000, 200_000, 10_000))
    wanted = [f"bytes={cut}-" for cut in server.cuts]
    assert len(wanted) > len(module.PAUSES)
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == [None, *wanted]


def test_giving_up_keeps_what_came_for_the_next_time(server, tmp_path):
    path = tmp_path / "a.bin"
    server.cuts = [5000] * (2 + len(module.PAUSES))
    with pytest.raises(UserError, match=r"the connection was cut after 5,000 of 256,007 bytes"):
        fetch(server.address, path)
    assert not path.exists()
    assert len(server.requests) == 1 + len(module.PAUSES)
    server.cuts = []
    fetch(server.address, path)
    assert path.read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=5000-"


@pytest.mark.parametrize("how", ["no ranges", "no version", "only a weak version"])
def test_a_server_that_cannot_go_on_is_asked_for_all(server, tmp_path, how):
    server.cuts = [70_000]
    if how == "no ranges":
        server.knows_ranges = False
    else:
        server.version = None if how == "no version" else 'W/"one"'
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=70000-" if how == "no ranges" else None]
    assert names(tmp_path) == ["a.bin"]


def test_a_date_will_do_as_a_version(server, tmp_path):
    server.version, server.modified = None, "Wed, 21 Oct 2015 07:28:00 GMT"
    server.cuts = [70_000]
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.requests[1][1:] == ("bytes=70000-", server.modified)


@pytest.mark.parametrize("minds", [True, False])
def test_a_file_that_changed_meanwhile_is_begun_anew(server, tmp_path, minds):
    """Also when the server goes on with the new one behind the old one's bytes."""
    server.cuts, server.minds_if_range = [70_000], minds

    def change():
        server.files["/data/a.bin"], server.version = OTHER, '"two"'

    server.half_way = change  # what is being sent is still the old one
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == OTHER
    assert server.ranges[1] == "bytes=70000-"


def test_bytes_from_another_place_are_not_taken(server, tmp_path):
    server.cuts, server.starts_late = [70_000], 10
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=70000-", None]


def test_more_than_there_is_is_thrown_away(server, tmp_path):
    (tmp_path / "part-a.bin").write_bytes(CONTENT + b"too much")
    (tmp_path / "part-a.bin.version").write_text('"one"')
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT) + 8}-", None]


def test_a_file_of_unknown_length(server, tmp_path, capsys):
    server.says_length = False
    fetch(server.address, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert "size unknown" in capsys.readouterr().err


def test_a_silent_server_is_left_and_asked_again(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    goes_on = threading.Event()
    server.half_way = lambda: len(server.requests) > 1 or goes_on.wait()
    fetch(server.address, tmp_path / "a.bin")
    goes_on.set()
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.ranges[1] == f"bytes={len(CONTENT) // 2}-"


def test_what_has_not_begun_is_told_at_once(server, tmp_path):
    with pytest.raises(UserError, match=r"/b.bin cannot be downloaded: the server answers 404"):
        fetch(f"{server.url}/b.bin", tmp_path / "b.bin")
    assert len(server.requests) == 1
    with pytest.raises(UserError, match="Connection refused"):
        fetch("http://127.0.0.1:9/b.bin", tmp_path / "b.bin")
    for url in ("file:///etc/hostname", "ftp://127.0.0.1/a", "/etc/hostname"):
        with pytest.raises(UserError, match="neither http nor https"):
            fetch(url, tmp_path / "b.bin")
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_to(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*/file/a.bin: File exists"):
        fetch(server.address, tmp_path / "file" / "a.bin")


def test_what_fails_its_check_is_put_aside(server, tmp_path):
    def check(path):
        seen.append((path.name, path.read_bytes(), (tmp_path / "a.bin").exists()))
        raise UserError("this will not do")

    seen = []
    with pytest.raises(UserError, match=r"this will not do; it is kept as .*/refused-a.bin"):
        fetch(server.address, tmp_path / "a.bin", check)
    assert seen == [("part-a.bin", CONTENT, False)]
    assert names(tmp_path) == ["refused-a.bin"]
    fetch(server.address, tmp_path / "a.bin")  # and does not stand in the way of a better one
    assert names(tmp_path) == ["a.bin", "refused-a.bin"]


FETCH = """
import sys
from pathlib import Path
from limelight.data.download import fetch
path = Path(sys.argv[2])
path.with_name("begun-" + sys.argv[3]).touch()
fetch(sys.argv[1], path)
"""


def start(server, path, name, **how):
    return subprocess.Popen([sys.executable, "-c", FETCH, server.address, str(path), name], **how)


def wait_for(condition):
    for _ in range(10_000):  # far more than it takes: a fault must not hang the tests
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def test_two_processes_fetch_once(server, tmp_path):
    path = tmp_path / "a.bin"
    may_send = threading.Event()
    server.before_sending = may_send.wait
    both = [start(server, path, name) for name in ("1", "2")]
    wait_for(lambda: {"begun-1", "begun-2"} <= set(names(tmp_path)) and server.requests)
    may_send.set()
    assert [process.wait() for process in both] == [0, 0]
    assert server.requests == [("/data/a.bin", None, None)]
    assert path.read_bytes() == CONTENT


def test_a_killed_process_leaves_no_half_file_and_no_lock(server, tmp_path):
    path, part = tmp_path / "a.bin", tmp_path / "part-a.bin"
    may_go_on = threading.Event()
    server.half_way = may_go_on.wait
    process = start(server, path, "1")
    half = len(CONTENT) // 2
    wait_for(lambda: part.exists() and part.stat().st_size > 0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    may_go_on.set()
    came = part.stat().st_size
    assert 0 < came <= half
    assert not path.exists()
    fetch(server.address, path)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={came}-"]


def test_a_bar_on_a_terminal(server, tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = start(server, tmp_path / "a.bin", "1", stderr=theirs, env=environment)
    assert process.wait() == 0
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    assert "a.bin" in shown
    assert "256.0/256.0 kB" in shown
    assert "0:00:00" in shown
    assert "downloading" not in shown


def zipped(path, members):
    with ZipFile(path, "w") as pack:
        for name, content in members.items():
            pack.writestr(name, content)
    return path


def tarred(path, members):
    with tarfile.open(path, "w:gz") as pack:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            pack.addfile(entry, io.BytesIO(content))
    return path


PACKERS = {"a.zip": zipped, "a.tgz": tarred}


@pytest.mark.parametrize("name", PACKERS)
def test_one_member_comes_out_and_nothing_else(tmp_path, name):
    """Whatever the others are called, and also if the one is called that itself."""
    hostile = {"../above.txt": b"1", f"{tmp_path}/absolute.txt": b"2", "in/../../x.txt": b"3"}
    members = {**hostile, "in/wanted.txt": CONTENT, "last.txt": b"4"}
    (tmp_path / "packed").mkdir()
    archive = PACKERS[name](tmp_path / "packed" / name, members)
    extract(archive, "in/wanted.txt", tmp_path / "out" / "a.txt")
    extract(archive, "../above.txt", tmp_path / "out" / "b.txt")
    assert (tmp_path / "out" / "a.txt").read_bytes() == CONTENT
    assert (tmp_path / "out" / "b.txt").read_bytes() == b"1"
    assert names(tmp_path / "out") == ["a.txt", "b.txt"]
    assert names(tmp_path / "packed") == [name]
    assert names(tmp_path) == ["out", "packed"]


@pytest.mark.parametrize("name", PACKERS)
def test_archives_that_do_not_have_it(tmp_path, name):
    whole = PACKERS[name](tmp_path / name, {"a.txt": os.urandom(100_000)})
    with pytest.raises(UserError, match=rf"cannot unpack b.txt from .*{name}"):
        extract(whole, "b.txt", tmp_path / "b.txt")
    content = whole.read_bytes()
    for damaged in (content[: len(content) // 2], b"no archive at all", b""):
        whole.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name}: .*; delete it to download it again"):
            extract(whole, "a.txt", tmp_path / "a.txt")
    assert not {"a.txt", "b.txt"} & set(names(tmp_path))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_is_not_followed(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as pack:
        entry = tarfile.TarInfo("secret.txt")
        entry.size = 6
        pack.addfile(entry, io.BytesIO(b"secret"))
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = kind, "secret.txt"
        pack.addfile(link)
    with pytest.raises(UserError, match="there is no such file in it"):
        extract(tmp_path / "a.tgz", "a.txt", tmp_path / "a.txt")
    assert not (tmp_path / "a.txt").exists()


def test_a_dot_before_the_name_does_not_matter(tmp_path):
    archive = tarred(tmp_path / "a.tgz", {"./a.txt": b"here"})
    extract(archive, "a.txt", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_bytes() == b"here"


def test_an_extraction_that_was_broken_off_is_done_again(tmp_path):
    archive = tarred(tmp_path / "a.tgz", {"a.txt": CONTENT})
    (tmp_path / "part-a.txt").write_bytes(OTHER + b"more")
    extract(archive, "a.txt", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_bytes() == CONTENT
    assert names(tmp_path) == ["a.tgz", "a.txt"]
