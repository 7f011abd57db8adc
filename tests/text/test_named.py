"""Public corpora by name: found where LIMELIGHT_DATA says, proved by hash, else a sentence."""

import gzip
import json
from hashlib import sha256

import pytest

from limelight.errors import UserError
from limelight.recipe import load_recipe, recipe_names
from limelight.text import named
from limelight.text.config import DataConfig
from limelight.text.corpora import read_split
from limelight.text.named import NAMED, SHA256, resolve
from limelight.text.readers import Tally


@pytest.fixture
def multi30k(tmp_path, monkeypatch):
    """A stand-in with the right names, and with its own hashes known."""
    hashes = {}
    for file in (
        f for split in ("train", "valid", "test") for f in getattr(NAMED["multi30k-en-de"], split)
    ):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(f"line of {path.name}\n".encode()))
        hashes[file] = sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(named, "SHA256", {**SHA256, **hashes})
    monkeypatch.setenv("LIMELIGHT_DATA", str(tmp_path))
    return tmp_path


def test_found_and_read(multi30k):
    data = resolve(load_recipe("multi30k-en-de").data)
    assert data.name == ""
    for split, stem in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        expected = [(f"line of {stem}.en.gz", f"line of {stem}.de.gz")]
        assert list(read_split(data, split, Tally())) == expected


def test_what_the_user_says_comes_before_what_the_corpus_suggests(tmp_path, monkeypatch):
    monkeypatch.setattr(named, "find", lambda name, corpus, file: tmp_path / file)
    assert resolve(DataConfig(name="tatoeba-en-de")).hold_out == 0.02
    assert resolve(DataConfig(name="tatoeba-en-de", hold_out=0.1)).hold_out == 0.1
    assert resolve(DataConfig(name="stories", longest=500)).longest == 500


def test_another_file_is_refused(multi30k):
    (multi30k / "multi30k/val.de.gz").write_bytes(b"something else")
    with pytest.raises(
        UserError, match=r"val.de.gz is not the file we know \(SHA-256 [0-9a-f]{64}, not"
    ):
        resolve(DataConfig(name="multi30k-en-de"))


def test_not_there_is_said_with_what_to_do(multi30k, monkeypatch):
    (multi30k / "multi30k/train.en.gz").unlink()
    with pytest.raises(UserError, match=r"needs multi30k/train.en.gz .* which has no such file"):
        resolve(DataConfig(name="multi30k-en-de"))
    monkeypatch.delenv("LIMELIGHT_DATA")
    with pytest.raises(UserError, match=r"research use.* LIMELIGHT_DATA names; it is not set"):
        resolve(DataConfig(name="multi30k-en-de"))
    with pytest.raises(
        UserError, match="no corpus 'multi30k-en-dd': did you mean 'multi30k-en-de'"
    ):
        resolve(DataConfig(name="multi30k-en-dd"))


def test_every_file_has_its_hash_and_every_recipe_a_corpus_that_exists():
    for corpus in NAMED.values():
        for file in (*corpus.train, *corpus.valid, *corpus.test):
            assert len(SHA256[file]) == 64
        assert corpus.licence
    names = {load_recipe(name).data.name for name in recipe_names()} - {""}
    assert names <= set(NAMED)
    assert resolve(DataConfig(toy="copy")) == DataConfig(toy="copy")


def test_held_out_sources_are_in_one_split_only(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"source {i % 400}\ttarget {i}\n" for i in range(1200)))
    data = DataConfig(train=(str(file),), hold_out=0.1)
    splits, tallies = {}, {}
    for split in ("train", "valid", "test"):
        tallies[split] = Tally()
        splits[split] = list(read_split(data, split, tallies[split]))
    assert sum(map(len, splits.values())) == 1200
    sources = [{source for source, _ in rows} for rows in splits.values()]
    assert len(set.union(*sources)) == sum(map(len, sources)) == 400
    for split in ("valid", "test"):
        assert 60 <= len(splits[split]) <= 180  # a tenth of 1200, give or take
        assert tallies[split].refused["in another split"] == 1200 - len(splits[split])


def test_a_dialogue_is_held_out_as_a_whole(tmp_path):
    file = tmp_path / "d.jsonl"
    rows = [json.dumps({"turns": [f"{i} {turn}" for turn in "abcde"]}) for i in range(300)]
    file.write_text("\n".join(rows))
    data = DataConfig(kind="dialogues", train=(str(file),), hold_out=0.2)
    owners = [
        {source.split()[0] for source, _ in read_split(data, split, Tally())}
        for split in ("train", "valid", "test")
    ]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 300
    assert min(map(len, owners)) > 30
