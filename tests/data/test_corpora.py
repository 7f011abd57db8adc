"""Files become examples; every line that does not is counted with its reason."""

import gzip
import json
import lzma
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import cycle, islice

import datasets
import pytest

from limelight.data import input_files, lines
from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import Fragment, LineStats
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError


def read(data, split="train"):
    tally = LineStats()
    examples = list(read_split(data, split, tally))
    assert tally.read == tally.used + tally.rejected.total()
    assert tally.used == len(examples)
    return examples, tally


def complaint(data):
    """What is said of data that cannot be read; nothing if it can."""
    try:
        read(data)
    except UserError as error:
        return str(error)
    return ""


def write(path, content):
    content = content if isinstance(content, bytes) else content.encode()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    return str(path)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_parallel_files(tmp_path, ending):
    files = (
        write(tmp_path / f"a.en{ending}", "one\ntwo\n"),
        write(tmp_path / f"a.de{ending}", "eins\nzwei"),  # the last line may lack its end
    )
    examples, tally = read(DataConfig(train=files))
    assert examples == [("one", "eins"), ("two", "zwei")]
    assert tally == LineStats(read=2, used=2)


def test_files_that_are_not_parallel_are_refused_with_both_counts(tmp_path):
    files = (write(tmp_path / "a", "1\n2\n3\n"), write(tmp_path / "b", "1\n2\n"))
    with pytest.raises(UserError, match=r"a has 3 lines and .*b has 2: they cannot be parallel"):
        read(DataConfig(train=files))


def test_tsv_jsonl_and_labels(tmp_path):
    tsv = write(tmp_path / "a.tsv.xz", "hi\thallo\nbad\nx\ty\tz\n")
    examples, tally = read(DataConfig(train=(tsv,)))
    assert examples == [("hi", "hallo")]
    assert tally.rejected == Counter({"not two columns": 2})

    rows = [
        {"source": "hi", "target": "hallo"},
        {"source": "hi"},
        ["hi"],
        {"source": 1, "target": 2},
    ]
    jsonl = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n{nonsense\n")
    examples, tally = read(DataConfig(train=(jsonl,)))
    assert examples == [("hi", "hallo"), ("1", "2")]
    assert tally.rejected == {"without source and target": 1, "not a JSON object": 2}

    odd = write(tmp_path / "o.jsonl", '{"source": "\\ud800 x", "target": "y"}\n')
    assert read(DataConfig(train=(odd,)))[0] == [("\ufffd x", "y")]  # JSON can spell a surrogate

    hostile = [
        '{"source": "a\\u0000", "target": "y"}',
        "[" * 100_000,
        '{"source": true, "target": "y"}',
    ]
    hostile = write(tmp_path / "h.jsonl", "\n".join(hostile))
    examples, tally = read(DataConfig(train=(hostile,)))
    assert examples == []
    assert tally.rejected == {"NUL": 1, "not a JSON object": 1, "without source and target": 1}

    labelled = write(tmp_path / "l.jsonl", '{"text": "fine", "label": 1}\n')
    assert read(DataConfig(kind="labelled", train=(labelled,)))[0] == [("fine", "1")]


def test_texts_by_line_and_by_document(tmp_path):
    file = write(tmp_path / "t.txt", "a\nb\n\n###\nc\n###\n###\n")
    by_line = ["a", "b", "###", "c", "###", "###"]  # the empty line is refused
    assert read(DataConfig(kind="texts", train=(file,)))[0] == [(line,) for line in by_line]
    documents = DataConfig(kind="texts", train=(file,), separator="###")
    assert read(documents)[0] == [("a\nb\n",), ("c",)]


def test_a_header_is_no_example(tmp_path):
    file = write(tmp_path / "h.tsv", "sentence\tlabel\nfine\t1\n")
    examples, tally = read(DataConfig(kind="labelled", train=(file,), header=True))
    assert examples == [("fine", "1")]
    assert tally.rejected == {"header": 1}


def test_the_tail_of_one_text_is_valid(tmp_path):
    text = "".join(f"line {i}\n" for i in range(100))
    file = write(tmp_path / "t.txt", text)
    data = DataConfig(kind="texts", train=(file,), valid_tail=0.1)
    ((begin,),), _ = read(data)
    ((end,),), _ = read(data, "valid")
    assert begin + end == text.removesuffix("\n")
    assert len(end) == pytest.approx(0.1 * len(text), abs=1)
    with pytest.raises(UserError, match=r"valid_tail=0.1 is for one file of texts"):
        DataConfig(kind="pairs", valid_tail=0.1)


LINES = [b"a b", b"", b"gr\xc3\xbc\xc3\x9fe", b"\xff bad", b"x\r", b"end \xf0\x9f\x98\x80", b" "]


@pytest.mark.parametrize("tail", [0.01, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_text_is_cut_as_if_it_were_in_memory(tmp_path, tail, count, end):
    raw = b"\xef\xbb\xbf" + b"\n".join(islice(cycle(LINES), count)) + end
    (tmp_path / "t.txt").write_bytes(raw)
    data = DataConfig(kind="texts", train=(str(tmp_path / "t.txt"),), valid_tail=tail)
    good = [line for line in raw[3:].removesuffix(b"\n").split(b"\n") if b"\xff" not in line]
    text = "\n".join(line.removesuffix(b"\r").decode() for line in good)
    cut = round(len(text) * (1 - tail))
    for split, part in (("train", text[:cut]), ("valid", text[cut:])):
        examples, tally = read(data, split)
        assert examples == ([(part,)] if part.strip() else [])
        bad = raw.count(b"\xff")
        assert (tally.read, tally.rejected["invalid UTF-8"]) == (bad + 1, bad)
        assert read(replace(data, max_chars=1), split)[0] == examples  # a text has any size


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_text_of_any_size_is_read_in_fragments(tmp_path):
    """They are the text, hold little memory, and are tokenised like it."""
    text = "\n\n".join(f"  Line {i}, it's  one of many: \t{i * i}!\n" for i in range(40_000))
    data = DataConfig(kind="texts", train=(write(tmp_path / "t.txt", text),), stream=True)

    def parts():
        return read_split(data, "train", LineStats())

    assert "".join(part for (part,) in parts()) == text.removesuffix("\n")
    assert sum(isinstance(part, Fragment) for part in parts()) > 5
    assert peak_of(lambda: [None for _ in parts()]) < 1_500_000
    assert peak_of(lambda: list(parts())) > 2_000_000  # the control
    tokenizer = Tokenizer.train("bpe", [text[:50_000]], 400)
    store = open_or_build(data, "train", tokenizer, tmp_path / "stores")
    assert len(store) == 1
    assert store.columns[0][0].tolist() == tokenizer.encode(text.removesuffix("\n"))


@pytest.mark.parametrize("kind", ["texts", "pairs", "dialogues"])
@pytest.mark.parametrize("tail", [0.0, 0.5])
def test_a_huge_line_is_rejected_without_being_held(tmp_path, monkeypatch, kind, tail):
    """Of all kinds of files; no text of such a line could be used anyway."""
    for module in (lines, input_files):
        monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    good = {"texts": "a text", "pairs": "a\tb", "dialogues": "a\tb"}[kind]
    ending = "txt" if kind == "texts" else "tsv"
    file = write(tmp_path / f"t.{ending}", f"{good}\n{good * 500_000}\n{good}\n")
    data = DataConfig(kind=kind, train=(file,), valid_tail=tail if kind == "texts" else 0.0)
    stats = []
    assert peak_of(lambda: stats.append(read(data))) < 500_000
    examples, tally = stats[0]
    assert tally.rejected == {"too long": 1}
    assert tally.read == tally.used + 1
    assert len(examples) == (1 if data.valid_tail else 2)


def test_dialogues_become_history_and_answer(tmp_path):
    turns = write(tmp_path / "d.jsonl", '{"turns": ["a", "b", "c", "d"]}\n{"turns": ["x"]}\n')
    examples, tally = read(DataConfig(kind="dialogues", train=(turns,), context_turns=2))
    assert examples == [("a", "b"), ("a\nb", "c"), ("b\nc", "d")]
    assert tally.rejected == {"no dialogue of two turns": 1}
    lines = write(tmp_path / "d.txt", "Hi . __eou__ Hello ! __eou__\n")
    assert read(DataConfig(kind="dialogues", train=(lines,)))[0] == [("Hi .", "Hello !")]
    turns = write(tmp_path / "d.tsv", "Hi\tHello\tBye\nalone\n")
    examples, tally = read(DataConfig(kind="dialogues", train=(turns,), context_turns=1))
    assert examples == [("Hi", "Hello"), ("Hello", "Bye")]
    assert tally.rejected == {"no dialogue of two turns": 1}
    both = (write(tmp_path / "asked", "Hi\n"), write(tmp_path / "said", "Hello\n"))
    assert read(DataConfig(kind="dialogues", train=both))[0] == [("Hi", "Hello")]


FAULTS = {
    "invalid UTF-8": b"\xff\xfe bad",
    "truncated UTF-8": "é".encode()[:1],
    "NUL": b"a\0b",
    "empty": b"",
    "blank": b"   \t ",
    "too long": b"x" * 101,
}


def test_planted_faults_are_counted_one_by_one(tmp_path):
    """Six faults on either side of parallel files, in different numbers: every count is exact."""
    good = [b"fine"] * 7
    source, target = list(good), list(good)
    expected = Counter()
    for number, (name, line) in enumerate(FAULTS.items(), start=1):
        reason = {"truncated UTF-8": "invalid UTF-8", "blank": "empty"}.get(name, name)
        source += [line] * number + [b"fine"] * number
        target += [b"fine"] * number + [line] * number
        expected[reason] += 2 * number
    source += [b"\xff"]  # both sides wrong, each in its own way: still one line and one reason
    target += [b"a\0"]
    expected["invalid UTF-8"] += 1
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    files[0].write_bytes(b"\xef\xbb\xbf" + b"\n".join(source))
    files[1].write_bytes(b"\r\n".join(target))
    examples, tally = read(DataConfig(train=tuple(map(str, files)), max_chars=100))
    assert examples == [("fine", "fine")] * 7
    assert tally.rejected == expected
    assert tally.repaired == {"byte-order mark": 1, "carriage return": len(target) - 1}
    assert tally.read == len(source)


@pytest.mark.parametrize("toy", ["reverse", "copy", "sort"])
def test_toys_are_right_repeatable_and_apart(toy):
    data = DataConfig(toy=toy, toy_examples=500, toy_length=6)
    splits = {split: read(data, split)[0] for split in ("train", "valid", "test")}
    assert [len(rows) for rows in splits.values()] == [500, 50, 50]
    make = {"reverse": lambda x: x[::-1], "copy": list, "sort": sorted}[toy]
    for rows in splits.values():
        assert all(target.split() == make(source.split()) for source, target in rows)
    sources = [{source for source, _ in rows} for rows in splits.values()]
    assert len(set.union(*sources)) == sum(map(len, sources))  # no row is in two splits
    assert read(data, "test")[0] == splits["test"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": ()}, "data.train names no file"),
        (
            {"train": ("a.x", "b.y", "c.z")},
            r"as many files on each side, but 3 are named \(1 in .x",
        ),
        ({"train": ("a.x", "b.x", "c.y")}, r"but 3 are named \(2 in .x and 1 in .y\)"),
        ({"train": ("nowhere.tsv",)}, "cannot read nowhere.tsv: No such file"),
        ({"train": ("no/*.tsv",)}, r"no file matches no/\*.tsv \(from /"),
        ({"toy": "reverse", "train": ("a",)}, "makes its own examples"),
        ({"toy": "reverse", "kind": "texts"}, "makes pairs, not kind='texts'"),
        ({"toy": "revers"}, "did you mean 'reverse'"),
        ({"toy": "flip"}, "choose one of: carry, copy, count, give, path, reverse, sort"),
        ({"kind": "pair"}, "did you mean 'pairs'"),
        ({"context_turns": 0}, "context_turns=0 is out of range"),
        ({"toy_length": 1, "toy": "copy"}, "toy_length=1 is out of range"),
        ({"train": ("a.tsv", "b.de")}, "a.tsv holds both sides alone: b.de cannot"),
        ({"train": ("a\0b.tsv",)}, "cannot read a"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read(DataConfig(**changes))


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_damaged_archive_is_said(tmp_path, ending):
    file = tmp_path / f"a.tsv{ending}"
    write(file, "hi\thallo\n" * 1000)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match="is damaged"):
        read(DataConfig(train=(str(file),)))
    whole = bytearray(gzip.compress(b"hi\thallo\n" * 1000, mtime=0))
    if ending == ".xz":
        whole = bytearray(lzma.compress(b"hi\thallo\n" * 1000))
    for place in range(10, len(whole)):  # a flipped bit is found, or does no harm
        whole[place] ^= 4
        file.write_bytes(bytes(whole))
        told = complaint(DataConfig(train=(str(file),)))
        assert told == "" or "is damaged" in told or "cannot read" in told
        whole[place] ^= 4
    file.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="is damaged"):
        read(DataConfig(train=(str(file),)))


def test_columns_are_chosen_by_number_or_by_name(tmp_path):
    tsv = write(tmp_path / "a.tsv", "id\ten\tde\n1\thi\thallo\n2\tbye\n")
    for columns in (("en", "de"), ("2", "3")):
        examples, tally = read(DataConfig(train=(tsv,), header=True, columns=columns))
        assert examples == [("hi", "hallo")]
        assert tally.rejected == Counter({"header": 1, "too few columns": 1})
    said = complaint(DataConfig(train=(tsv,), header=True, columns=("en", "fr")))
    assert "has no column 'fr': its header names id, en, de" in said
    assert read(DataConfig(train=(tsv,), columns=("en", "de")))[0] == [("hi", "hallo")]
    assert "or say --data.header if" in complaint(DataConfig(train=(tsv,), columns=("it", "fr")))


@pytest.mark.parametrize("columns", [("en", "fr"), ("fr", "en"), ("fr", "2")])
def test_of_two_columns_the_missing_one_is_named(tmp_path, columns):
    tsv = write(tmp_path / "a.tsv", "id\ten\tde\n1\thi\thallo\n")
    said = complaint(DataConfig(train=(tsv,), columns=columns))
    assert "has no column 'fr'" in said
    assert ("its header names id, en, de" in said) == ("en" in columns)


def test_json_keys_are_chosen_and_looked_up_inside(tmp_path):
    lines = [{"pair": {"en": "hi", "de": "hallo"}, "pair.en": "over"}, {"pair": {"en": "hi"}}, 3]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    data = DataConfig(train=(path,), columns=("pair.de", "pair.en"))
    examples, tally = read(data)
    assert examples == [("hallo", "over")]  # a key that is there wins over one inside
    assert tally.rejected == Counter({"without pair.de and pair.en": 1, "not a JSON object": 1})
    with pytest.raises(UserError, match="must name where to find source and target"):
        DataConfig(columns=("text",))


def test_the_other_direction_stays_in_the_same_split(tmp_path):
    path = write(tmp_path / "a.tsv", "".join(f"left {i}\tright {i}\n" for i in range(500)))
    there = DataConfig(train=(path,), hold_out=0.1)
    back = DataConfig(train=(path,), hold_out=0.1, reverse=True)
    for split in ("train", "valid", "test"):
        forward, _ = read(there, split)
        assert read(back, split)[0] == [(b, a) for a, b in forward]


def test_several_corpora_are_read_one_after_the_other(tmp_path):
    a = DataConfig(train=(write(tmp_path / "a.tsv", "1\t2\n\t\n"),))
    b = DataConfig(train=(write(tmp_path / "b.jsonl", '{"source": "3", "target": "4"}'),))
    examples, tally = read(DataConfig(corpora=(a, b)))
    assert examples == [("1", "2"), ("3", "4")]
    assert tally.rejected == Counter({"empty": 1})
    valid = write(tmp_path / "v.tsv", "5\t6\n")
    assert read(DataConfig(corpora=(a, b), valid=(valid,)), "valid")[0] == [("5", "6")]
    assert "data.valid names no file" in complaint_of(DataConfig(corpora=(a, b)), "valid")


def complaint_of(data, split):
    with pytest.raises(UserError) as error:
        read(data, split)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corpora": (DataConfig(kind="texts"),)}, "of one kind"),
        ({"corpora": (DataConfig(),), "train": ("a.tsv",)}, "leave those out"),
        ({"corpora": (DataConfig(corpora=(DataConfig(),)),)}, "none of its own"),
        ({"hub": "x", "name": "multi30k-en-de"}, "leave hub out, or set --data.name ''"),
        ({"hub": "x", "train": ("a.tsv",)}, "has its own files"),
        ({"reverse": True, "kind": "texts"}, "turns pairs around"),
        ({"tag": "end"}, "must be letters"),
        ({"tag": "a⟩"}, "must be letters"),
    ],
)
def test_impossible_mixtures_are_refused(settings, said):
    with pytest.raises(UserError) as error:
        DataConfig(**settings)
    assert said in str(error.value)


def test_a_dataset_of_the_hub(tmp_path, monkeypatch):
    """The library reads a folder as it reads the hub; nothing is downloaded here."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "mine"
    folder.mkdir()
    rows = [{"translation": {"en": "hi", "de": "hallo"}}, {"translation": {"en": "", "de": "x"}}]
    for split in ("train", "validation"):
        write(folder / f"{split}.jsonl", "\n".join(map(json.dumps, rows)))
    data = DataConfig(hub=str(folder), columns=("translation.en", "translation.de"))
    for split in ("train", "valid"):
        examples, tally = read(data, split)
        assert examples == [("hi", "hallo")]
        assert tally.rejected == Counter({"empty": 1})
    assert "data.test names no file" in complaint_of(data, "test")
    held = DataConfig(hub=str(folder), columns=data.columns, hold_out=0.3)
    assert sum(len(read(held, split)[0]) for split in ("train", "valid", "test")) == 1
    assert "cannot load the dataset" in complaint(DataConfig(hub=str(tmp_path / "none")))


def test_without_the_hubs_library_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    assert "pip install datasets" in complaint(DataConfig(hub="wmt14:de-en"))
