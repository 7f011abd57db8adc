"""Own files in every form: the same examples, and a sentence with the option that would fit."""

import csv
import gzip
import io
import json
import lzma
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from limelight.data import readers
from limelight.data.check import check
from limelight.data.config import DataConfig
from limelight.data.readers import kind_of
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer, TokenizerConfig
from limelight.errors import UserError
from tests.data.test_corpora import complaint, read

PAIRS = [(f"one, {i}", f"größer {i}") for i in range(1, 8)]
QUOTED = [*PAIRS, ('she said "no"', "sie sagte:\nnein"), ("a;b|c", "tab? no")]
TOKENIZER = Tokenizer.train("bpe", ["one eins"], 300)


def write_csv(path, rows, header=(), **dialect):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, **dialect).writerows([header, *rows] if header else rows)
    return str(path)


def entries(rows, names=("source", "target")):
    return [dict(zip(names, row, strict=True)) for row in rows]


def write(path, form, rows):
    """These pairs in a file of this form."""
    path = path / f"pairs{form}"
    if form == ".csv":
        write_csv(path, rows)
    elif form == ".header.csv":
        write_csv(path, [("x", *row) for row in rows], ("id", "source", "target"))
    elif form in (".tsv", ".txt"):
        path.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    elif form == ".json":
        path.write_text(json.dumps(entries(rows), indent=1))
    elif form == ".jsonl":
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries(rows)))
    else:
        columns = {
            name: [*column] for name, column in zip("ab", zip(*rows, strict=True), strict=True)
        }
        table = pyarrow.table(
            {"target": columns["b"], "n": [1] * len(rows), "source": columns["a"]}
        )
        parquet.write_table(table, path, row_group_size=3)
    return str(path)


FORMS = [".csv", ".header.csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pairs_of_which_the_kind_is_known(tmp_path, form, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE", 16)  # so that JSON goes on in the next read
    rows = PAIRS if form in (".tsv", ".txt") else QUOTED
    data = DataConfig(train=(write(tmp_path, form, rows),))
    assert read(data)[0] == rows
    assert kind_of(data) == "pairs"


@pytest.mark.parametrize("pack", ["gz", "xz", "zip"])
@pytest.mark.parametrize("form", [".csv", ".json"])
def test_packed_files(tmp_path, form, pack):
    plain = write(tmp_path, form, QUOTED)
    packed = f"{plain}.{pack}"
    if pack == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.write(plain, f"inside/a{form}")
            archive.writestr(f"inside/b{form}", gzip.compress(b"ignored")[:0])
    else:
        content = {"gz": gzip, "xz": lzma}[pack].compress(Path(plain).read_bytes())
        Path(packed).write_bytes(content)
    data = DataConfig(train=(packed,))
    assert read(data)[0] == QUOTED
    store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
    assert len(store) == len(QUOTED)
    (tmp_path / "broken.csv.zip").write_bytes(b"PK nonsense")
    assert "broken.csv.zip is damaged" in complaint(
        DataConfig(train=(f"{tmp_path}/broken.csv.zip",))
    )


def test_several_files_folders_and_globs_on_each_side(tmp_path):
    for name, words in {"1.en": "a\n", "2.en": "b\n", "1.de": "A\n", "2.de": "B\n"}.items():
        (tmp_path / name).write_text(words)
    (tmp_path / ".hidden").write_text("x\n")
    names = [str(tmp_path / name) for name in ("1.en", "2.en", "1.de", "2.de")]
    for train in (names, (f"{tmp_path}/*.en", f"{tmp_path}/*.de")):
        assert read(DataConfig(train=tuple(train)))[0] == [("a", "A"), ("b", "B")]
    in_order = [("A", "a"), ("B", "b")]  # the endings of a folder are in order of name
    assert read(DataConfig(train=(str(tmp_path),)))[0] == in_order
    (tmp_path / "2.de").write_text("B\nC\n")
    assert "2.en has 1 lines and" in complaint(DataConfig(train=tuple(names)))
    several = tmp_path / "tables"
    several.mkdir()
    write(several, ".jsonl", PAIRS[:2])
    write(several, ".csv", PAIRS[2:4])
    found, tally = read(DataConfig(train=(str(several),)))
    assert found == PAIRS[2:4] + PAIRS[:2]
    assert tally.file.endswith("pairs.jsonl")
    texts = DataConfig(kind="texts", train=(f"{tmp_path}/*.en",))
    assert read(texts)[0] == [("a",), ("b",)]


def test_other_files_in_a_folder_are_another_corpus(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.tsv").write_text("a\tb\n")
    data = DataConfig(train=(str(folder),))
    assert len(open_or_build(data, "train", TOKENIZER, tmp_path / "stores")) == 1
    (folder / "b.tsv").write_text("c\td\n")
    assert len(open_or_build(data, "train", TOKENIZER, tmp_path / "stores")) == 2


@pytest.mark.parametrize("form", [".csv", ".jsonl", ".json", ".tsv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"])
def test_other_encodings_are_recognised_and_read_with_the_option(tmp_path, form, encoding):
    rows = [*PAIRS, ("Grüße", "“quoted”" if encoding == "cp1252" else "über")]
    plain = write(tmp_path, form, rows)
    text = Path(plain).read_bytes().decode()
    if "json" in form:
        text = text.encode().decode("unicode_escape")  # as itself, and not as \\u00e4
    Path(plain).write_bytes(text.encode(encoding))
    said = complaint(DataConfig(train=(plain,)))
    assert said.removesuffix(", or leave such lines out with --data.encoding utf-8").endswith(
        f"read it with --data.encoding {encoding}"
    ), said
    assert read(DataConfig(train=(plain,), encoding=encoding))[0] == rows


def test_a_forced_encoding_rejects_line_by_line(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_bytes("Grüße\tx\nfine\ty\n".encode("latin-1"))
    examples, tally = read(DataConfig(train=(str(file),), encoding="utf-8"))
    assert examples == [("fine", "y")]
    assert tally.examples == {
        "invalid UTF-8": [{"file": str(file), "line": 1, "text": "Gr\\xfc\\xdfe\tx"}]
    }
    file.write_bytes(b"a\x81\tx\nfine\ty\n")  # 0x81 is nothing in cp1252
    examples, tally = read(DataConfig(train=(str(file),), encoding="cp1252"))
    assert (examples, tally.rejected) == ([("fine", "y")], {"invalid cp1252": 1})


@pytest.mark.parametrize(
    ("name", "content", "settings", "sentence"),
    [
        ("a.csv", "1,hello,hallo\n" * 3, {}, "a.csv has 3 columns ('1', 'hello', 'hallo'), and "
         "pairs need 2 (source and target): choose them, as with --data.columns 2 3"),
        ("a.csv", "id,en,de\n1,hello,hallo\n", {}, "choose them, as with --data.columns en de"),
        ("a.csv", "who,what,is\n1,hello,hallo\n", {"header": True}, "--data.columns what is"),
        ("a.csv", "hello;hallo\n" * 3, {}, "one column, as in 'hello;hallo', and pairs need 2 "
         "(source and target): say --data.delimiter ';'"),
        ("a.csv", "yes, hello;ja, hallo\nbye;ade\nno, not me;nein, ich nicht, nie\n", {},
         "lines of different numbers of columns, and pairs need 2 (source and target); with ';' "
         "between them the number is the same: say --data.delimiter ';'"),
        ("a.csv", '"hello, you"\n"bye, you"\n', {}, "separate them with a tab"),
        ("a.csv", "hello, you;hallo\nbye, you;ade, du\n", {"delimiter": "|"},
         "say --data.delimiter ';'"),
        ("a.txt", "hello\n" * 3, {}, "separate them with a tab"),
        ("a.csv", "yes,some text,1\nno,more text,2\nyes,last text,3\n", {"kind": "labelled"},
         "--data.columns 2 1"),
        ("a.jsonl", '{"en": "hi", "de": "hallo"}\n', {}, "a.jsonl has no source and target but "
         "en, de: say where to find source and target, as with --data.columns en de"),
        ("a.json", '[{"t": {"en": "hi", "de": "ja"}}]', {}, "as with --data.columns t.en t.de"),
        ("a.json", '[{"source": "hi", "target": "ja"}, {"sou', {}, "is not JSON after entry 1"),
        ("a.parquet", "nonsense", {}, "a.parquet: Parquet magic bytes not found"),
        ("a.tsv", "a\tb\n", {"encoding": "utf8x"}, "there is no encoding 'utf8x': did you mean 'u"),
        ("a.tsv", "a\tb\n", {"delimiter": "ab"}, "delimiter='ab' must be one character"),
        ("a.txt", "a\n", {"stream": True}, "stream=true is for texts"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_answered_with_the_option_that_would(
    tmp_path, name, content, settings, sentence
):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as error:
        read(DataConfig(train=(str(tmp_path / name),), **settings))
    assert sentence in str(error.value)


def test_parquet_with_other_columns_and_without_its_library(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"translation": [{"en": "hi", "de": "ja"}]}), path)
    said = complaint(DataConfig(train=(str(path),)))
    assert said.endswith("as with --data.columns translation.en translation.de")
    columns = ("translation.en", "translation.de")
    assert read(DataConfig(train=(str(path),), columns=columns))[0] == [("hi", "ja")]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "pip install 'limelight[parquet]'" in complaint(DataConfig(train=(str(path),)))


def test_texts_labels_and_dialogues_from_csv(tmp_path):
    labelled = write_csv(tmp_path / "l.csv", [("so, so", "1"), ("bad", "0")] * 20)
    assert kind_of(DataConfig(train=(labelled,))) == "labelled"
    assert read(DataConfig(kind="labelled", train=(labelled,)))[0][:2] == [
        ("so, so", "1"),
        ("bad", "0"),
    ]
    texts = write_csv(tmp_path / "t.csv", [("a, b",), ("two\nlines",)], ("text",))
    assert read(DataConfig(kind="texts", train=(texts,)))[0] == [("a, b",), ("two\nlines",)]
    turns = write_csv(tmp_path / "d.csv", [("hi", "hello", "bye, bye")])
    dialogues = DataConfig(kind="dialogues", train=(turns,), context_turns=1)
    assert read(dialogues)[0] == [("hi", "hello"), ("hello", "bye, bye")]


def test_the_check_shows_lines_of_what_is_refused_duplicated_leaked_and_suspected(tmp_path):
    rows = [
        (f"the {['house', 'cat', 'tree'][i % 3]} {'x' * i}", f"das {'y' * i}") for i in range(9)
    ]
    train = write_csv(tmp_path / "train.csv", [("en", "de"), *rows, ("", "leer"), rows[2]])
    valid = write_csv(tmp_path / "valid.csv", [("new", "neu"), ("THE HOUSE.", "das")])
    report = check(DataConfig(train=(train,), valid=(valid,)), TokenizerConfig(vocab=300), 512, 256)
    found = report["splits"]["train"]["examples"]
    assert found["empty"] == [{"file": train, "line": 11, "text": " | leer"}]
    assert found["looks like a header"][0]["line"] == 1
    (duplicate,) = found["duplicate"]
    assert (duplicate["line"], duplicate["same_as"]) == (12, {"file": train, "line": 4})
    (leak,) = report["splits"]["valid"]["examples"]["also in train"]
    assert leak == {"file": valid, "line": 2, "text": "THE HOUSE. | das", "same_as": {
        "file": train, "line": 2}}  # fmt: skip
    assert any("line 1 of train.csv looks like a header (en | de)" in w for w in report["warnings"])
    json.dumps(report)


def test_the_check_counts_labels_and_warns_of_rare_and_of_countless_ones(tmp_path):
    rows = [(f"text {i}", "rare" if i == 3 else "often") for i in range(50)]
    data = DataConfig(kind="labelled", train=(write_csv(tmp_path / "l.csv", rows),))
    report = check(data, TokenizerConfig(vocab=300), 512, 256)
    assert report["splits"]["train"]["labels"] == {"often": 49, "rare": 1}
    assert "train has fewer than 5 examples of rare" in report["warnings"]
    rows = [(f"text {i}", f"label {i}") for i in range(150)]
    data = DataConfig(kind="labelled", train=(write_csv(tmp_path / "m.csv", rows),))
    warnings = check(data, TokenizerConfig(vocab=300), 512, 256)["warnings"]
    assert "train has 150 different labels: is the column right?" in warnings


def test_a_large_row_group_is_read_in_pieces(tmp_path, monkeypatch):
    """Published datasets have a million rows in each."""
    path, sizes = tmp_path / "a.parquet", []
    texts = [f"{i * 7919 % 100_003} is number {i}" for i in range(100_000)]
    parquet.write_table(pyarrow.table({"text": texts}), path, compression="none")
    assert parquet.ParquetFile(path).num_row_groups == 1
    assert path.stat().st_size > 2**21

    class Watched(io.BufferedReader):
        def read(self, size=-1):
            sizes.append(size)
            return super().read(size)

    @contextmanager
    def watched(path):
        with open(path, "rb", buffering=0) as raw, Watched(raw) as file:
            yield file

    monkeypatch.setattr(readers, "opened", watched)
    data = DataConfig(kind="texts", train=(str(path),))
    assert [text for (text,) in read(data)[0]] == texts
    assert 0 < max(sizes) <= 2**20


ROWS = [
    (str(i), f"the {i}. house is red", f"das {i}. Haus ist rot", "ab"[i % 2]) for i in range(40)
]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ((), "pairs"),  # two columns of texts, beside a number and a label
        (("english", "german"), "pairs"),
        (("2", "3"), "pairs"),
        (("german", "domain"), "labelled"),
        (("3", "4"), "labelled"),
        (("english",), "texts"),
    ],
)
def test_the_kind_is_that_of_the_chosen_columns(tmp_path, columns, kind):
    path = write_csv(tmp_path / "a.csv", ROWS, ("id", "english", "german", "domain"))
    assert kind_of(DataConfig(train=(path,)), columns) == kind
    names = ("id", "t.english", "t.german", "domain")
    nested = [{"id": a, "t": {"english": b, "german": c}, "domain": d} for a, b, c, d in ROWS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in nested))
    inside = tuple(next((n for n in names if n.endswith(c)), c) for c in columns)
    if not any(map(str.isdecimal, columns)):
        assert kind_of(DataConfig(train=(str(tmp_path / "a.jsonl"),)), inside) == kind


@pytest.mark.parametrize(
    ("header", "settings", "noticed"),
    [
        (("english", "german"), {}, True),
        (("english", "german"), {"columns": ("1", "2")}, True),
        (("english", "german"), {"columns": ("english", "german")}, False),  # it is one
        (("english", "german"), {"header": True}, False),
        (("a text", "ein Text"), {}, False),
        (("7", "8"), {}, False),
    ],
)
def test_words_above_sentences_look_like_a_header(tmp_path, header, settings, noticed):
    path = write_csv(tmp_path / "a.csv", [row[1:3] for row in ROWS], header)
    examples, tally = read(DataConfig(train=(path,), **settings))
    sentence = "line 1 of a.csv looks like a header (english | german): if it is, add --data.header"
    assert tally.headers == ([sentence] if noticed else [])
    named = settings.get("header") or "english" in settings.get("columns", ())
    assert len(examples) == len(ROWS) + (not named)
    assert not tally.repaired  # a .csv has carriage returns


def test_single_words_have_no_header(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("cat", "Katze"), ("dog", "Hund"), ("tree", "Baum")])
    assert read(DataConfig(train=(path,)))[1].headers == []


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"PK\x03\x04\x14\x00", "a.csv is not text but a .zip, .xlsx or .docx file: save"),
        (
            "a.txt",
            b"%PDF-1.4\n",
            "a.txt is not text but a .pdf file: save its content as .txt",
        ),
        ("a.txt", gzip.compress(b"a\tb\n", mtime=0), "a.txt is not text but a .gz file"),
        ("a.bin", b"\x01a\xe4b\xf6c\x02", "a.bin is not text: it begins with b'"),
        ("a.tsv", "a\tb\n".encode("utf-16"), "a.tsv is in UTF-16: read it with --data.encoding"),
    ],
)
def test_what_is_no_text_is_called_by_its_name(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    assert sentence in complaint(DataConfig(train=(str(tmp_path / name),)))
