"""--input and --output: the file is complete or absent, and nothing is done twice or lost."""

import errno
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest

from limelight.cli import main, output_file
from limelight.run.atomic import lock
from tests.cli.test_generate import ODD

TEXTS = ["a b", "x y z", "", "q", "c d", "e f g", "b", "z a", "m n", "o"]
KILLED = -signal.SIGKILL


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "in.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def each_line_saved(monkeypatch):
    monkeypatch.setattr(output_file, "_SECONDS", 0.0)


def fails_after(monkeypatch, count, error):
    """Fails at the line after this many."""
    real, calls = output_file.OutputFile.save_if_due, []

    def save(self, *facts):
        if len(calls) == count:
            raise error
        calls.append(facts)
        real(self, *facts)

    monkeypatch.setattr(output_file.OutputFile, "save_if_due", save)


@pytest.mark.parametrize(
    ("command", "name", "options"),
    [
        ("translate", "reverse", ["--nbest", "2"]),
        ("translate", "gpt", ["--json"]),
        ("write", "writer", ["--max-tokens", "5", "--seed", "3", "--temperature", "1"]),
        ("classify", "classifier", []),
        ("embed", "bert", []),
        ("score", "writer", ["--json"]),
    ],
)
def test_a_file_gives_what_stdin_gives(limelight, run, source, command, name, options):
    printed = limelight(command, run(name), *options, stdin=source.read_bytes())
    assert limelight(command, run(name), *options, "--input", source) == printed
    written = limelight(command, run(name), *options, "--input", source, "--output", "out")
    assert written == (0, [""], "")
    assert Path("out").read_text().split("\n")[:-1] == printed[1]
    assert sorted(os.listdir()) == ["in.txt", "out"]


def test_lines_that_are_no_texts_are_counted_over_calls(
    limelight,
    run,
    source,
    monkeypatch,
    each_line_saved,
):
    source.write_bytes(ODD)
    asked = ("translate", run("reverse"), "--input", source, "--output", "out")
    with monkeypatch.context() as patch:
        fails_after(patch, 4, KeyboardInterrupt())
        code, _, complaint = limelight(*asked)
    assert (code, Path("out").exists()) == (130, False)
    assert (
        "limelight: the first 4 lines are in out.partial: the same command continues" in complaint
    )
    code, _, complaint = limelight(*asked)
    assert code == 1
    assert "limelight: out.partial has the first 4 lines: continuing\n" in complaint
    assert "line 6: longer than 1,000,000 bytes" in complaint
    assert "line 3" not in complaint  # which the first call has reported
    assert complaint.endswith("limelight: lines that could not be answered: 2\n")
    assert len(Path("out").read_text().split("\n")) == 9


def killed_at(count, arguments, folder):
    """Run a command in a child, killed at this file operation; its signal, or 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks in a process with threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = []

    def audit(event, values):
        if event in ("open", "os.rename", "os.remove", "os.rmdir") and folder in str(values[0]):
            seen.append(event)
            if len(seen) == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    sys.argv = ["limelight", *map(str, arguments)]
    main()
    os._exit(0)


@pytest.mark.usefixtures("each_line_saved")
def test_whatever_moment_it_is_killed_at_the_next_call_completes_it(
    limelight,
    run,
    source,
    model,
):
    expected = "".join(f"{model('reverse').translate(text).text}\n" for text in TEXTS)
    asked = ("translate", run("reverse"), "--input", source, "--output", "out.de")
    saved = []
    for count in range(1, 1000, 5):
        code = killed_at(count, asked, "out.de")
        if Path("out.de").exists():
            assert Path("out.de").read_text() == expected
        if code != KILLED:
            break
        state = Path("out.de.partial/state.json")
        saved.append(json.loads(state.read_text())["lines"] if state.exists() else 0)
        if not Path("out.de").exists():
            assert limelight(*asked)[0] == 0
        assert Path("out.de").read_text() == expected
        Path("out.de").unlink()
    assert code == 0  # in the end nothing was left to be killed at
    assert len({*saved}) > 5


@pytest.mark.usefixtures("each_line_saved")
def test_on_a_full_disk_nothing_is_lost(limelight, run, source, monkeypatch):
    asked = ("translate", run("reverse"), "--input", source, "--output", "out")
    printed = limelight(*asked[:2], stdin=source.read_bytes())[1]
    with monkeypatch.context() as patch:
        fails_after(patch, 3, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        code, _, complaint = limelight(*asked)
    assert code == 1
    assert "limelight: out: No space left on device; free some space" in complaint
    with Path("out.partial/output").open("ab") as file:
        file.write(b"half a li")  # what came after the last state
    assert limelight(*asked)[0] == 0
    assert Path("out").read_text().split("\n")[:-1] == printed


@pytest.mark.usefixtures("each_line_saved")
def test_what_was_begun_otherwise_is_refused(limelight, run, source, monkeypatch):
    asked = ["translate", run("reverse"), "--input", source, "--output", "out"]
    with monkeypatch.context() as patch:
        fails_after(patch, 3, KeyboardInterrupt())
        assert limelight(*asked)[0] == 130
    terms = source.with_name("terms.tsv")
    terms.write_text("a\tb\n")
    other = source.with_name("other.txt")
    other.write_text("a\n")
    for change, name in [
        (["--beam", "2"], "beam"),
        (["--json"], "json"),
        (["--exclude", "x"], "exclude"),
        (["--glossary", terms], "glossary"),
        (["--input", other], "input"),
    ]:
        code, _, complaint = limelight(*asked, *change)
        assert code == 2
        assert f"limelight: out.partial was begun with another {name}: give the same" in complaint
    asked[1] = run("other reverse")
    assert "begun with another model" in limelight(*asked)[2]
    asked[1] = run("reverse")
    with lock(Path("out.partial")):
        code, _, complaint = limelight(*asked)
        assert (code, "another process is writing in out.partial" in complaint) == (2, True)
    state = Path("out.partial/state.json")
    kept = state.read_text()
    for damaged in ("", "[]", '{"lines": -1}', kept.replace('"bytes": ', '"bytes": 99')):
        state.write_text(damaged)
        code, _, complaint = limelight(*asked)
        assert (code, "delete out.partial" in complaint) == (2, True), damaged
    state.write_text(kept)  # the control: nothing of this has harmed it
    assert limelight(*asked)[0] == 0
    code, _, complaint = limelight(*asked)
    assert (code, complaint) == (
        2,
        "limelight: out exists already: delete it, or write to another file\n",
    )


def test_files_that_are_no_lines_of_text_are_refused_or_noted(
    limelight, run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pairs = "a b\tb a\n" * 2
    Path("wide.txt").write_bytes(pairs.encode("utf-16"))
    Path("book.docx").write_bytes(b"PK\x03\x04")
    Path("pairs.tsv").write_text(pairs)
    asked = ("translate", run("reverse"), "--input")
    code, _, complaint = limelight(*asked, "wide.txt", "--output", "out")
    assert (code, "convert it first, as with iconv -f utf-16 -t utf-8" in complaint) == (2, True)
    code, _, complaint = limelight(*asked, "book.docx")
    assert (code, "book.docx is not text but a .zip, .xlsx or .docx" in complaint) == (2, True)
    code, lines, complaint = limelight(*asked, "pairs.tsv")
    assert (code, len(lines)) == (0, 2)
    assert "pairs.tsv is read as plain text: each line is one text, with all" in complaint
    assert "plain text" not in limelight("score", *asked[1:], "pairs.tsv")[2]


def test_a_command_that_failed_at_once_binds_nobody(limelight, run, source):
    asked = ("translate", run("reverse"), "--input", source, "--output", "out")
    assert limelight(*asked, "--include", "x", "--beam", "1")[0] == 2
    assert limelight(*asked)[0] == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["in.txt"], "in.txt is a file: write --input in.txt to read it"),
        (["a", "--input", "in.txt"], "give either texts or --input in.txt, not both"),
        (["--output", "x"], "--output x needs --input FILE; without, write > x"),
        (["--input", "nowhere"], "cannot read nowhere: No such file or directory (from "),
        (["--input", "nowhere", "-o", "x"], "cannot read nowhere: No such file or directory"),
        (["--input", ""], "--input is empty: is a variable not set?"),
    ],
)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("translate", "reverse"),
        ("write", "writer"),
        ("classify", "classifier"),
        ("embed", "bert"),
        ("score", "writer"),
    ],
)
def test_files_that_do_not_fit(limelight, run, source, command, name, options, sentence):
    code, lines, complaint = limelight(command, run(name), *options)
    assert (code, lines) == (2, [""])
    assert sentence in complaint
    assert os.listdir() == ["in.txt"]
