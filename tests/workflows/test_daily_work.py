"""A person's own files, recipes and runs, through the command line in this process."""

import json
import sys
import tomllib

import pytest

from limelight.cli import main
from limelight.data.config import DataConfig
from limelight.data.tokenizer import Tokenizer
from limelight.errors import AdjustedWarning, UserError
from limelight.recipe import load_recipe, recipe_names

TINY = [
    *("--model.layers", "1", "--model.d-model", "16", "--model.d-ff", "16", "--model.heads", "2"),
    *("--train.batch-tokens", "256", "--train.device", "cpu", "--train.precision", "float32"),
]


@pytest.fixture
def call(monkeypatch, capsys):
    """A command in this process; its status, output and messages."""

    def run(*words):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["limelight", *map(str, words)])
        capsys.readouterr()
        try:
            main()
        except SystemExit as left:
            return left.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def recipe_in(folder):
    return tomllib.loads((folder / "recipe.toml").read_text())


# GPT on one text file


@pytest.mark.parametrize("kind", ["char", "bpe", "given"])
def test_a_gpt_learns_from_one_text_file_and_shows_samples(tmp_path, call, kind):
    text = "".join(f"Line {i}: the cat sat on the mat, and the dog ran.\n" for i in range(300))
    (tmp_path / "my.txt").write_text(text)
    vocab = ["--tokenizer.kind", kind, "--tokenizer.vocab", "300"]
    if kind == "given":
        Tokenizer.train("bpe", [text], 280).save(tmp_path / "t.json")
        vocab = ["--tokenizer.file", tmp_path / "t.json"]
    words = ["shakespeare-char", "--data.train", tmp_path / "my.txt", "--run", tmp_path / "run"]
    steps = ["--train.steps", "4", "--train.validate-every", "2", "--train.warmup", "1"]
    code, _, said = call("train", *words, *TINY, *vocab, *steps, "--model.max-len", "32")
    assert code == 0, said
    data = recipe_in(tmp_path / "run")["data"]
    assert (data["stream"], data["valid_tail"], data["name"]) == (True, 0.1, "")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    samples = [entry["samples"] for entry in log if "samples" in entry]
    assert samples
    assert " -> " in samples[0][0]
    learned = Tokenizer.load(tmp_path / "run" / "tokenizer.json")
    assert len(learned) == {"char": 261, "given": 280}.get(kind, len(learned))
    code, out, said = call("evaluate", tmp_path / "run", "--split", "valid")
    assert (code, "bits per byte" in out) == (0, True), said


def test_a_text_file_is_a_stream_unless_the_recipe_says_else():
    def data(*changes):
        return load_recipe("gpt-small", ["data.train=a.txt.gz", *changes]).data

    assert (data().stream, data().valid_tail) == (True, 0.1)
    assert (data("data.valid=b.txt").stream, data("data.valid=b.txt").valid_tail) == (True, 0.0)
    for other in ("data.stream=false", "data.separator=###", "data.hold_out=0.1"):
        assert not data(other).stream
    assert not load_recipe("gpt-small", ["data.train=a.jsonl"]).data.stream
    assert not load_recipe("bert-small", ["data.train=a.txt"]).data.stream
    with pytest.raises(UserError, match="stream=true is for texts, each file one"):
        DataConfig(kind="texts", stream=True, hold_out=0.1)


# Recipes


def test_recipes_are_printed_and_their_settings_listed(call):
    code, out, _ = call("recipes", "reverse")
    assert code == 0
    assert tomllib.loads(out)["data"]["toy"] == "reverse"
    assert "'revers': did you mean 'reverse'" in call("recipes", "revers")[2]
    out = call("recipes", "--settings")[1]
    assert "warmup = 4000   (whole number from 0 to 2^40)" in out
    listed = json.loads(call("recipes", "--settings", "--json")[1])["settings"]
    assert {"name": "layers", "values": "whole number from 1 to 1,000", "default": "6"}.items() <= (
        next(one for one in listed["model"] if one["name"] == "layers").items()
    )
    out = call("train", "--help")[1]
    assert "label-smoothing" in out
    assert "limelight recipes --settings" in out


def test_a_recipe_may_have_a_base(tmp_path, call):
    middle = tmp_path / "middle.toml"
    middle.write_text('base = "reverse"\nabout = "mine"\n[train]\nsteps = 7\n[model]\nlayers = 1\n')
    (tmp_path / "top.toml").write_text('base = "middle.toml"\n[data]\ntoy = "copy"\n')
    with pytest.warns(AdjustedWarning, match="warmup is 1 instead of 15, for a training of 7"):
        top = load_recipe(str(tmp_path / "top.toml"))
    base = load_recipe("reverse")
    assert (top.train.steps, top.model.layers, top.data.toy, top.about) == (7, 1, "copy", "mine")
    assert top.model.d_model == base.model.d_model
    assert top.train.learning_rate == base.train.learning_rate
    code, out, _ = call("recipes", tmp_path / "top.toml")
    assert (code, "base" in tomllib.loads(out), tomllib.loads(out)["train"]["steps"]) == (
        0,
        False,
        7,
    )
    for text, sentence in {
        'base = "revers"\n': "there is no base 'revers': did you mean 'reverse'",
        'base = "top.toml"\n': "leads back to this recipe",
        "base = 3\n": "base=3 must be text",
        'base = "reverse"\n[train]\nsteos = 3\n': "did you mean 'steps'",
    }.items():
        middle.write_text(text)
        code, _, said = call("info", tmp_path / "top.toml")
        assert (code, sentence in said) == (2, True), said
    files = tmp_path / "files.toml"
    files.write_text('base = "shakespeare-char"\n[data]\ntrain = ["my.txt"]\n')
    data = load_recipe(str(files)).data
    assert (data.name, data.kind, data.stream) == ("", "texts", True)
    assert all(load_recipe(name) for name in recipe_names())
