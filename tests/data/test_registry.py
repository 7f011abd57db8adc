"""Public corpora by name: found where you keep them or downloaded, proved, else a sentence."""

import gzip
import io
import json
import lzma
import os
import re
import tarfile
import time
from hashlib import sha256
from pathlib import Path

import pytest

from limelight.data import download, input_files, registry
from limelight.data.config import DataConfig
from limelight.data.corpora import read_split
from limelight.data.lines import LineStats
from limelight.data.registry import LINES, MADE, NAMED, SHA256, SOURCES, Download, find, resolve
from limelight.errors import UserError
from limelight.recipe import load_recipe, recipe_names
from tests.data.serving import Server

PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
SPLITS = ("train", "val", "test_2016_flickr")


def text_of(file):
    """A stand-in for a file: one line that says which."""
    return f"line of {Path(file).name}\n".encode()


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No data, an empty cache, and no way out of this machine."""
    monkeypatch.delenv("LIMELIGHT_DATA", raising=False)
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSES", (0.0,))


@pytest.fixture
def multi30k(monkeypatch):
    """Stand-ins for its files are what it is known by."""
    files = [f"multi30k/{split}.{language}" for split in SPLITS for language in ("en", "de")]
    hashes = {file: sha256(text_of(file)).hexdigest() for file in files}
    monkeypatch.setattr(registry, "SHA256", {**SHA256, **hashes})
    return files


@pytest.fixture
def own(multi30k, tmp_path, monkeypatch):
    """A folder of one's own that has them, packed."""
    for file in multi30k:
        put(tmp_path / "own" / f"{file}.gz", gzip.compress(text_of(file)))
    monkeypatch.setenv("LIMELIGHT_DATA", str(tmp_path / "own"))
    return tmp_path / "own"


@pytest.fixture
def server(multi30k, monkeypatch):
    """A server that has them, packed."""
    with Server() as running:
        for file in multi30k:
            running.files[f"/{file}.gz"] = gzip.compress(text_of(file))
        sources = {file: (Download(f"{running.url}/{file}.gz"),) for file in multi30k}
        monkeypatch.setattr(registry, "SOURCES", {**SOURCES, **sources})
        yield running


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def check_content(data):
    for split, stem in zip(("train", "valid", "test"), SPLITS, strict=True):
        expected = [(f"line of {stem}.en", f"line of {stem}.de")]
        assert list(read_split(data, split, LineStats())) == expected


def test_found_and_read(own):
    data = resolve(load_recipe("multi30k-en-de").data)
    assert data.name == ""
    assert data.train == (f"{own}/multi30k/train.en.gz", f"{own}/multi30k/train.de.gz")
    check_content(data)


@pytest.mark.parametrize("ending", PACKERS)
def test_packing_does_not_matter(own, ending):
    for path in list(own.rglob("*.gz")):
        put(path.with_suffix(ending), PACKERS[ending](gzip.decompress(path.read_bytes())))
        if ending != ".gz":
            path.unlink()
    data = resolve(DataConfig(name="multi30k-en-de"))
    assert {Path(name).suffix for name in data.train} == ({ending} if ending else {".en", ".de"})
    check_content(data)


def test_downloaded_once(server, multi30k, tmp_path):
    data = resolve(DataConfig(name="multi30k-en-de"))
    check_content(data)
    assert data.train[0] == str(tmp_path / "cache/data/multi30k/train.en.gz")
    assert sorted(path for path, *_ in server.requests) == sorted(f"/{f}.gz" for f in multi30k)
    assert resolve(DataConfig(name="multi30k-en-de")) == data
    assert len(server.requests) == 6


def test_your_own_come_first_then_the_cache_then_the_network(server, own, tmp_path):
    cache = tmp_path / "cache/data"
    put(cache / "multi30k/val.en.xz", lzma.compress(text_of("val.en")))
    data = resolve(DataConfig(name="multi30k-en-de"))
    assert data.valid == (f"{own}/multi30k/val.en.gz", f"{own}/multi30k/val.de.gz")
    (own / "multi30k/val.en.gz").unlink()
    (own / "multi30k/val.de.gz").unlink()
    assert server.requests == []
    data = resolve(DataConfig(name="multi30k-en-de"))
    assert data.valid == (f"{cache}/multi30k/val.en.xz", f"{cache}/multi30k/val.de.gz")
    assert [path for path, *_ in server.requests] == ["/multi30k/val.de.gz"]
    check_content(data)


def test_the_cache_is_where_the_system_keeps_such_things(tmp_path, monkeypatch):
    monkeypatch.delenv("LIMELIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert registry.downloads() == tmp_path / "xdg/limelight/data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry.downloads() == tmp_path / ".cache/limelight/data"


def test_what_the_user_says_comes_before_what_the_corpus_suggests(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "find", lambda name, file: tmp_path / file)
    assert resolve(DataConfig(name="tatoeba-en-de")).hold_out == 0.02
    assert resolve(DataConfig(name="tatoeba-en-de", hold_out=0.1)).hold_out == 0.1
    assert resolve(DataConfig(name="stories", max_chars=500)).max_chars == 500


def test_another_file_of_your_own_is_refused(own, server):
    put(own / "multi30k/val.de.gz", gzip.compress(b"something else\n"))
    with pytest.raises(
        UserError, match=r"val.de.gz is not the file of this corpus \(SHA-256 [0-9a-f]{64}"
    ):
        resolve(DataConfig(name="multi30k-en-de"))
    put(own / "multi30k/val.de.gz", b"not even packed")
    with pytest.raises(UserError, match=r"val.de.gz is damaged"):
        resolve(DataConfig(name="multi30k-en-de"))
    assert server.requests == []  # another one is not put in its place in silence


def test_another_file_from_the_network_is_refused_and_kept_aside(server, tmp_path):
    server.files["/multi30k/val.de.gz"] = other = gzip.compress(b"something else\n")
    came, known = (sha256(text).hexdigest() for text in (b"something else\n", text_of("val.de")))
    with pytest.raises(UserError, match=rf"\(SHA-256 {came}, not {known}\); it is kept as .*"):
        resolve(DataConfig(name="multi30k-en-de"))
    folder = tmp_path / "cache/data/multi30k"
    assert (folder / "refused-val.de.gz").read_bytes() == other
    assert not (folder / "val.de.gz").exists()
    server.files["/multi30k/val.de.gz"] = gzip.compress(text_of("val.de"))
    check_content(resolve(DataConfig(name="multi30k-en-de")))


def test_a_cut_download_is_no_file(server, tmp_path):
    server.cuts = [10, 10, 10]
    with pytest.raises(UserError, match="the connection was cut after 10 of"):
        resolve(DataConfig(name="multi30k-en-de"))
    assert not (tmp_path / "cache/data/multi30k/val.en.gz").exists()
    server.cuts = []
    check_content(resolve(DataConfig(name="multi30k-en-de")))
    assert "bytes=10-" in server.ranges


def test_offline_it_is_said_what_is_needed_where_it_was_looked_for_and_what_failed(tmp_path):
    with pytest.raises(UserError) as told:
        resolve(DataConfig(name="multi30k-en-de"))
    for words in (
        "the corpus multi30k-en-de (research use; cite Elliott et al. 2016)",
        "needs multi30k/val.en,",
        "neither under LIMELIGHT_DATA (not set)",
        f"nor under {tmp_path}/cache/data, and no address gives it: ",
        *(f"{source.url} cannot be downloaded: " for source in SOURCES["multi30k/val.en"]),
        f"Without a network, get {SOURCES['multi30k/val.en'][0].url} on another machine and save ",
        f"it as {tmp_path}/cache/data/multi30k/val.en.gz",
    ):
        assert words in str(told.value)


def test_offline_the_member_of_an_archive_is_named_too(tmp_path, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_DATA", str(tmp_path))
    with pytest.raises(UserError) as told:
        resolve(DataConfig(name="everyday-en-de"))  # which is made of it
    for words in (
        f"under LIMELIGHT_DATA ({tmp_path})",
        "/deu-eng.zip on another machine, unpack deu.txt from it and save it as ",
        f"{tmp_path}/cache/data/tatoeba/anki.en-de.tsv",
    ):
        assert words in str(told.value)


def test_a_name_that_does_not_exist():
    with pytest.raises(
        UserError, match="no corpus 'multi30k-en-dd': did you mean 'multi30k-en-de'"
    ):
        resolve(DataConfig(name="multi30k-en-dd"))


def test_a_file_is_read_again_only_when_it_has_changed(own, monkeypatch):
    read = []
    open_packed = input_files.open_packed
    monkeypatch.setattr(input_files, "open_packed", lambda *a: read.append(a[0]) or open_packed(*a))
    resolve(DataConfig(name="multi30k-en-de"))
    assert len(read) == 6
    resolve(DataConfig(name="multi30k-en-de"))
    assert len(read) == 6
    path = own / "multi30k/train.de.gz"
    before = path.stat()
    other = gzip.compress(b"life of train.de\n")  # as long as the other one
    assert len(other) == before.st_size
    path.write_bytes(other)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(UserError, match=r"train.de.gz is not the file of this corpus"):
        resolve(DataConfig(name="multi30k-en-de"))
    assert len(read) == 7


def tgz(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as pack:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            pack.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def wmt14(monkeypatch):
    """A server with archives like WMT's, of files of three lines of which nobody has a hash."""
    corpus = NAMED["wmt14-en-de"]
    files = {
        f: b"".join(f"{i} {f}\n".encode() for i in range(3))
        for pair in (*corpus.train, corpus.valid, corpus.test)
        for f in pair
    }
    archived = {file: SOURCES[file][-1] for file in files}
    with Server() as running:
        sources = {
            f: (Download(f"{running.url}/{Path(its.url).name}", its.member),)
            for f, its in archived.items()
        }
        for url in {its.url for its in archived.values()}:
            members = {archived[f].member: files[f] for f in files if archived[f].url == url}
            running.files[f"/{Path(url).name}"] = tgz({"../evil": b"!", **members, "more": b"?"})
        known = {f: sha256(text).hexdigest() for f, text in files.items() if f in SHA256}
        monkeypatch.setattr(registry, "SHA256", known)
        monkeypatch.setattr(registry, "LINES", dict.fromkeys(LINES, 3))
        monkeypatch.setattr(registry, "SOURCES", sources)
        yield running


def test_parts_from_archives(wmt14, tmp_path):
    data = resolve(load_recipe("wmt14-en-de-base").data)
    cache = tmp_path / "cache/data/wmt"
    stems = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en")
    assert data.train == ()
    assert [part.train for part in data.corpora] == [
        (f"{cache}/{stem}.en", f"{cache}/{stem}.de") for stem in stems
    ]
    assert data.valid == (f"{cache}/newstest2013.en", f"{cache}/newstest2013.de")
    expected = [(f"{i} wmt/newstest2014.en", f"{i} wmt/newstest2014.de") for i in range(3)]
    assert list(read_split(data, "test", LineStats())) == expected
    assert len(wmt14.requests) == 5  # two files from each
    assert wmt14.requests[-1][0] == "/training-parallel-nc-v9.tgz"  # the small ones came first
    assert not [p for p in (tmp_path / "cache/archives").rglob("*") if p.suffix == ".tgz"]
    assert not list(tmp_path.rglob("evil")) + list(tmp_path.rglob("more"))
    assert resolve(load_recipe("wmt14-en-de-base").data) == data
    assert len(wmt14.requests) == 5


def test_one_split_needs_no_file_of_the_others(wmt14, tmp_path, monkeypatch):
    data = resolve(load_recipe("wmt14-en-de-base").data, "test")
    assert [path for path, *_ in wmt14.requests] == ["/newstest2014.tgz"]
    assert list(read_split(data, "test", LineStats()))
    assert data.train == data.valid == data.corpora == ()
    monkeypatch.setattr(registry, "find", lambda name, file: tmp_path / file)
    held_out = resolve(DataConfig(name="tatoeba-en-de"), "test")
    assert held_out.train == (f"{tmp_path}/tatoeba/anki.en-de.tsv",)  # of which it is a part


def test_the_first_download_is_remembered_and_must_stay_the_same(wmt14, tmp_path):
    resolve(DataConfig(name="wmt14-en-de"))
    file = tmp_path / "cache/data/wmt/commoncrawl.de-en.de"
    note = file.with_name(f"{file.name}.sha256")
    first = sha256(file.read_bytes()).hexdigest()
    assert note.read_text() == f"{first}  commoncrawl.de-en.de\n"  # as sha256sum writes it
    assert not (file.parent / "newstest2013.en.sha256").exists()  # known without

    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"0", b"5"))  # changed here
    with pytest.raises(UserError, match=rf"not {first} as {note} says"):
        resolve(DataConfig(name="wmt14-en-de"))

    file.unlink()
    other = {f"commoncrawl.de-en.{language}": b"1\n2\n3\n" for language in ("en", "de")}
    wmt14.files["/training-parallel-commoncrawl.tgz"], before = (
        tgz(other),
        wmt14.files["/training-parallel-commoncrawl.tgz"],
    )
    wmt14.version = '"two"'  # changed there
    with pytest.raises(UserError, match=r"refused-commoncrawl.de-en.de and not used"):
        resolve(DataConfig(name="wmt14-en-de"))
    assert not file.exists()

    wmt14.files["/training-parallel-commoncrawl.tgz"] = before
    (archive,) = (tmp_path / "cache/archives").rglob("*.tgz")
    archive.unlink()
    resolve(DataConfig(name="wmt14-en-de"))
    assert file.read_bytes() == whole


def test_a_text_of_another_length_is_refused(wmt14, tmp_path):
    short = {f"commoncrawl.de-en.{language}": b"1\n2\n" for language in ("en", "de")}
    wmt14.files["/training-parallel-commoncrawl.tgz"] = tgz(short)
    with pytest.raises(UserError, match=r"has 2 lines, not the 3 it is known for; it is kept as"):
        resolve(DataConfig(name="wmt14-en-de"))
    assert not (tmp_path / "cache/data/wmt/commoncrawl.de-en.en").exists()
    assert not list((tmp_path / "cache/data/wmt").glob("commoncrawl*.sha256"))  # none to trust


def test_what_is_known_of_the_files():
    for corpus in NAMED.values():
        for file in (*(f for part in corpus.train for f in part), *corpus.valid, *corpus.test):
            assert corpus.shipped or len(SHA256.get(file, "")) == 64 or LINES[file] > 0
        assert corpus.licence
        assert corpus.origin
    assert not set(SHA256) & set(LINES)
    assert {*SOURCES, *MADE} == {*SHA256, *LINES}
    urls = [source.url for sources in SOURCES.values() for source in sources]
    assert all(url.startswith("https://") and url.isascii() and " " not in url for url in urls)
    at_commits = [url for url in urls if "github" in url or "jsdelivr" in url]
    assert all(re.search(r"[/@][0-9a-f]{40}/", url) for url in at_commits)
    assert len(at_commits) > 0.9 * len(urls)


def files_behind(file):
    """The files to download for one of a corpus, however often it is made of others."""
    if file not in MADE:
        return {file}
    return set.union(*(files_behind(other) for other in MADE[file][1]))


def test_no_recipe_names_a_corpus_without_an_address():
    data = [load_recipe(name).data for name in recipe_names()]
    names = {part.name for one in data for part in (one, *one.corpora)} - {""}
    assert {"multi30k-en-de", "stories", "sst2", "small-talk-short"} <= names
    for name in names | set(NAMED):
        corpus = NAMED[name]
        for file in (*(f for part in corpus.train for f in part), *corpus.valid, *corpus.test):
            assert corpus.shipped or all(SOURCES[needed] for needed in files_behind(file))
    assert resolve(DataConfig(toy="copy")) == DataConfig(toy="copy")


OWN_FILES = {  # recipes for files that only their user has
    *("captioned-images", "classify", "text-to-text"),
    *("bert-base", "gpt-small", "gpt2-124m", "gpt3-175b"),  # pretraining, on any text
}


def test_a_recipe_has_data_that_anyone_can_get_or_is_for_own_files():
    own = set()
    for name in recipe_names():
        data = load_recipe(name).data
        parts = data.corpora or (data,)
        assert not any(part.train or part.valid or part.test for part in (data, *parts)), name
        if not all(part.name or part.toy or part.scenes for part in parts):
            own.add(name)
    assert own == OWN_FILES


def test_the_docs_name_all_corpora_with_their_licences():
    told = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    rows = [line for line in told.splitlines() if line.startswith("| `")]
    for name, corpus in NAMED.items():
        (row,) = (row for row in rows if f"`{name}`" in row.split(" | ")[0])
        assert corpus.licence in row


@pytest.mark.parametrize("trouble", ["gone", "wrong", "cut", "reset", "redirected", "slow"])
def test_another_address_is_tried_when_one_fails(server, multi30k, monkeypatch, trouble, tmp_path):
    """Wherever it comes from, only the right content is used; a redirect or a slow link is none."""
    file = "multi30k/train.en"
    good, bad = f"/{file}.gz", f"/first/{file}.gz"
    content = server.files[good]
    if trouble != "gone":
        server.files[bad] = gzip.compress(b"another text\n") if trouble == "wrong" else content
    if trouble in ("cut", "reset"):
        server.cuts, server.resets = [0, 0], trouble == "reset"
    if trouble == "redirected":
        server.redirects[bad] = f"{server.url}{good}"
    if trouble == "slow":
        monkeypatch.setattr(server, "half_way", lambda: time.sleep(0.05))
    both = tuple(Download(f"{server.url}{path}") for path in (bad, good))
    monkeypatch.setattr(registry, "SOURCES", {**registry.SOURCES, file: both})
    path = find("multi30k-en-de", file)
    assert path.read_bytes() == content
    asked = [path for path, *_ in server.requests]
    assert asked[0] == bad
    assert (asked[-1] == bad) is (trouble == "slow")
    assert not list(tmp_path.rglob("part-*"))


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """`raw(file, content)` puts a raw file into a folder of one's own, as if it were known."""
    monkeypatch.setenv("LIMELIGHT_DATA", str(tmp_path / "own"))
    known = {}

    def add(file, content):
        put(tmp_path / "own" / file, content)
        known[file] = sha256(content).hexdigest()
        monkeypatch.setattr(registry, "SHA256", known)

    return add


def test_a_corpus_is_made_of_raw_files(raw, tmp_path):
    table = (
        "user 1 personas,user 2 personas,Best Generated Conversation\n"
        '"I bake.\nI sing.","I ski.","User 1: Hi!\nUser 2: Hello, you.\n\nIt is late."\n'
    )
    raw("dialogue/Synthetic-Persona-Chat_valid.csv", table.encode())
    made = find("synthetic-persona-chat", "dialogue/synthetic-persona-chat.valid.jsonl")
    assert made == tmp_path / "cache/data/dialogue/synthetic-persona-chat.valid.jsonl"
    assert json.loads(made.read_text()) == {
        "persona1": ["I bake.", "I sing."],
        "persona2": ["I ski."],
        "turns": ["Hi!", "Hello, you.", "It is late."],
    }
    made.unlink()
    raw("dialogue/synthetic-persona-chat.valid.jsonl.other", b"")
    registry.SHA256["dialogue/synthetic-persona-chat.valid.jsonl"] = "0" * 64
    with pytest.raises(UserError, match=r"of this corpus .* it is kept as .*/refused-"):
        find("synthetic-persona-chat", "dialogue/synthetic-persona-chat.valid.jsonl")
    assert not made.exists()


def test_sentences_are_in_one_split_in_either_language(raw):
    pairs = [f"English {i // 2}.\tDeutsch {i // 3}!" for i in range(20_000)]
    raw("tatoeba/anki.en-de.tsv", "\n".join(pairs).encode())
    splits = {
        split: [tuple(line.split("\t")) for line in path.read_text().splitlines()]
        for split in ("train", "valid", "test")
        for path in [find("everyday-en-de", f"everyday/en-de.{split}.tsv")]
    }
    assert len(splits["valid"]) == len(splits["test"]) == 2000
    for side in (0, 1):
        found = [{pair[side] for pair in pairs} for pairs in splits.values()]
        assert len(set.union(*found)) == sum(map(len, found))
    assert splits["train"]


BOOK = """\ufeffThe Project Gutenberg EBook of A Book

*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***

Produced by Somebody

A BOOK

CONTENTS

   I. The Beginning     1

CHAPTER I

{long}

\u201cShort,\u201d she said\u2014and _left_. . .

[Illustration: a tree]

One.

Two.

Three.

 * * * * *

CHAPTER II. THE END OF IT

{long} Again--"

*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***

The licence, which is of no use here.
"""


def test_books_become_paragraphs(raw, monkeypatch):
    """Without the frame, headings as breaks, plain quotes; and a book in another encoding."""
    long = " ".join(["It was a long day, and nothing at all happened in it."] * 20)
    files = ("prose/books/11.txt", "prose/books/12.txt")
    raw(files[0], BOOK.format(long=long.replace(" ", "\r\n", 3)).encode())
    raw(files[1], BOOK.format(long=f"Caf\u00e9! {long}").lstrip("\ufeff").encode("cp1252"))
    monkeypatch.setitem(registry.MADE, "prose/stories-train.txt", ("stories", files))
    texts = find("stories", "prose/stories-train.txt").read_text().split("<|endoftext|>\n")
    plain, other = sorted(texts, key=len)
    assert plain.split("\n\n") == [
        *(long, '"Short," she said -- and left...', "One.", "Two.", "Three."),
        *("* * *", f'{long} Again --"', ""),
    ]
    assert other.startswith("Caf\u00e9! It was a long day")


def test_what_comes_with_the_package_is_found_without_a_folder(monkeypatch):
    monkeypatch.delenv("LIMELIGHT_DATA", raising=False)
    assert [name for name, corpus in NAMED.items() if corpus.shipped] == ["greetings"]
    data = resolve(DataConfig(name="greetings"))
    assert all(Path(file).is_file() for file in (*data.train, *data.valid))


def test_held_out_sources_are_in_one_split_only(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"source {i % 400}\ttarget {i}\n" for i in range(1200)))
    data = DataConfig(train=(str(file),), hold_out=0.1)
    splits, tallies = {}, {}
    for split in ("train", "valid", "test"):
        tallies[split] = LineStats()
        splits[split] = list(read_split(data, split, tallies[split]))
    assert sum(map(len, splits.values())) == 1200
    sources = [{source for source, _ in rows} for rows in splits.values()]
    assert len(set.union(*sources)) == sum(map(len, sources)) == 400
    for split in ("valid", "test"):
        assert 60 <= len(splits[split]) <= 180  # a tenth of 1200, give or take
        assert tallies[split].rejected["in another split"] == 1200 - len(splits[split])


def test_a_dialogue_is_held_out_as_a_whole(tmp_path):
    file = tmp_path / "d.jsonl"
    rows = [json.dumps({"turns": [f"{i} {turn}" for turn in "abcde"]}) for i in range(300)]
    file.write_text("\n".join(rows))
    data = DataConfig(kind="dialogues", train=(str(file),), hold_out=0.2)
    owners = [
        {source.split()[0] for source, _ in read_split(data, split, LineStats())}
        for split in ("train", "valid", "test")
    ]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 300
    assert min(map(len, owners)) > 30


def test_corpora_by_name_among_others_are_found_too(tmp_path, monkeypatch):
    """A name that stands for several parts becomes them, each with the tag of the whole."""
    monkeypatch.setattr(registry, "find", lambda name, file: tmp_path / file)
    several = DataConfig(
        corpora=(
            DataConfig(name="wmt14-en-de", tag="de", weight=2.0),
            DataConfig(name="tatoeba-en-de", reverse=True),
        )
    )
    parts = resolve(several).corpora
    assert len(parts) == 4
    assert [part.tag for part in parts] == ["de", "de", "de", ""]
    assert [part.weight for part in parts] == [2.0, 2.0, 2.0, 1.0]
    assert parts[3].hold_out == 0.02
    assert parts[3].reverse
    assert all(part.train and not part.name for part in parts)
