"""A store is the corpus, tokenised: whole or not there at all, and found again at once."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from limelight.data import input_files
from limelight.data import token_store as store_module
from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.data.token_store import chunks, open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError

DATA = DataConfig(toy="reverse", toy_examples=300)
TOKENIZER = Tokenizer.train("bpe", ["a b c d e f g"], 280)


@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_it_holds_what_the_corpus_holds(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(store_module, "AT_ONCE", at_once)
    done = []
    store = open_or_build(DATA, "train", TOKENIZER, tmp_path, done.append)
    examples = list(read_split(DATA, "train", LineStats()))
    assert len(store) == len(examples) == sum(done) == 300
    for i, example in enumerate(examples):
        for column, text in zip(store.columns, example, strict=True):
            assert TOKENIZER.decode(column[i]) == text
            assert column.lengths[i] == len(column[i])
    assert store.tally == LineStats(read=300, used=300)


def test_few_long_texts_are_tokenised_together():
    """A file of any size is fragments of 64,000 characters: thousands would be gigabytes."""
    short = [("a", "b")] * 10_000
    assert [len(chunk) for chunk in chunks(iter(short))] == [4096, 4096, 1808]
    long = [(str(i), "x" * 2**16) for i in range(100)]
    found = [*chunks(iter(long))]
    assert [one for chunk in found for one in chunk] == long
    assert max(sum(len(text) for _, text in chunk) for chunk in found) <= 2**21 + 2**16
    assert max(map(len, found)) > 20  # and enough for all cores


def test_rows_are_gathered_side_by_side(tmp_path):
    column = open_or_build(DATA, "train", TOKENIZER, tmp_path).columns[0]
    rows = np.array([5, 0, 299, 5])
    width = int(column.lengths[rows].max()) + 2
    for row, got in zip(rows, column.gather(rows, width, pad=0), strict=True):
        assert got.tolist() == [*column[row], *[0] * (width - column.lengths[row])]


def test_a_second_start_reads_nothing_and_changes_get_a_store_of_their_own(tmp_path, monkeypatch):
    source = tmp_path / "a.tsv"
    source.write_text("hi\thallo\n" * 9)
    data = DataConfig(train=(str(source),))
    first = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")

    def never(*_):
        raise AssertionError("read again")

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "read_split", never)
        patch.setattr(input_files, "open_packed", never)
        assert open_or_build(data, "train", TOKENIZER, tmp_path / "stores").folder == first.folder

    other = Tokenizer.train("bpe", ["a b"], 270)
    folders = {first.folder, open_or_build(data, "train", other, tmp_path / "stores").folder}
    longer = DataConfig(train=data.train, max_chars=5)
    folders.add(open_or_build(longer, "train", TOKENIZER, tmp_path / "stores").folder)
    source.write_text("hi\thello\n" * 9)  # as long as before
    os.utime(source, ns=(1, 1))
    folders.add(open_or_build(data, "train", TOKENIZER, tmp_path / "stores").folder)
    assert len(folders) == 4


def test_an_interrupted_preparation_leaves_nothing(tmp_path, monkeypatch):
    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_or_build(DATA, "train", TOKENIZER, tmp_path, stop)
    assert list(tmp_path.iterdir()) == []
    assert len(open_or_build(DATA, "train", TOKENIZER, tmp_path)) == 300


KILLED = """
import os, sys
from pathlib import Path
from tests.data.test_token_store import DATA, TOKENIZER
from limelight.data.token_store import chunks, open_or_build
open_or_build(DATA, "train", TOKENIZER, Path(sys.argv[1]), lambda _: os._exit(9))
"""


def test_a_killed_process_leaves_no_store(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode == 9
    assert all(".tmp-" in path.name for path in tmp_path.iterdir())
    assert len(open_or_build(DATA, "train", TOKENIZER, tmp_path)) == 300


# Each waits in the middle of its work until the other one is there too.
TOGETHER = KILLED.replace(
    "lambda _: os._exit(9)",
    "lambda _: (Path(sys.argv[2], str(os.getpid())).touch(), "
    "[None for _ in iter(lambda: len(os.listdir(sys.argv[2])) < 2, False)])",
)


def test_two_processes_make_the_same_store_in_peace(tmp_path):
    stores, meeting = tmp_path / "stores", tmp_path / "meeting"
    meeting.mkdir()
    command = [sys.executable, "-c", TOGETHER, stores, meeting]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert [path.name for path in stores.iterdir() if ".tmp-" in path.name] == []
    assert len(open_or_build(DATA, "train", TOKENIZER, stores)) == 300


@pytest.mark.parametrize("name", ["facts.json", "0.tokens", "1.offsets"])
@pytest.mark.parametrize("damage", ["empty", "shorter", "gone"])
def test_a_damaged_store_is_made_anew(tmp_path, name, damage):
    folder = open_or_build(DATA, "train", TOKENIZER, tmp_path).folder
    content = (folder / name).read_bytes()
    if damage == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(b"" if damage == "empty" else content[:-8])
    again = open_or_build(DATA, "train", TOKENIZER, tmp_path)
    assert (again.folder / name).read_bytes() == content


def test_old_leftovers_are_swept_and_new_ones_are_not(tmp_path):
    for name, age in (("a.tmp-1", 100_000), ("b.tmp-2", 0)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    open_or_build(DATA, "train", TOKENIZER, tmp_path)
    left = [path.name for path in tmp_path.iterdir() if ".tmp-" in path.name]
    assert left == ["b.tmp-2"]


def test_files_that_change_while_they_are_read_are_noticed(tmp_path):
    source = tmp_path / "a.tsv"
    source.write_text("hi\thallo\n")
    data = DataConfig(train=(str(source),))
    with pytest.raises(UserError, match=r"data.train changed while they were read"):
        open_or_build(
            data, "train", TOKENIZER, tmp_path / "s", lambda _: source.write_text("ho\tja\n")
        )
    assert [p for p in (tmp_path / "s").iterdir() if p.name != "hashes"] == []


def test_the_same_bytes_read_another_way_are_another_store(tmp_path):
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_text('{"text": "hello"}\n')
    texts = []
    for name in ("a.txt", "a.jsonl"):
        data = DataConfig(kind="texts", train=(str(tmp_path / name),))
        store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
        texts.append(TOKENIZER.decode(store.columns[0][0]))
    assert texts == ['{"text": "hello"}', "hello"]


def test_labels_are_kept(tmp_path):
    (tmp_path / "l.tsv").write_text("good\tyes\nbad\tno\n")
    data = DataConfig(kind="labelled", train=(str(tmp_path / "l.tsv"),))
    store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
    assert store.meta["labels"] == ["yes", "no"]
    assert len(store.columns) == 1


def test_an_empty_corpus_is_an_empty_store(tmp_path):
    (tmp_path / "e.tsv").write_text("\tno source\n")
    data = DataConfig(train=(str(tmp_path / "e.tsv"),))
    store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
    assert len(store) == 0
    assert store.tally.rejected == {"empty": 1}


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    data = DataConfig(train=(str(tmp_path / "pipe.tsv"),))
    with pytest.raises(UserError, match=r"pipe.tsv is a pipe or a device, .* write it into a file"):
        list(read_split(data, "train", LineStats()))
    with pytest.raises(UserError, match=r"pipe.tsv is a pipe or a device"):
        open_or_build(data, "train", TOKENIZER, tmp_path)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nothing.tsv: No such file"):
        open_or_build(DataConfig(train=("nothing.tsv",)), "train", TOKENIZER, tmp_path)
