"""Recipes: what is shipped is right, what is wrong is said with its file and key."""

import math
import subprocess
import sys
from dataclasses import fields, replace
from typing import get_origin

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from limelight.cli import main
from limelight.cli.parser import split_settings
from limelight.data.config import DataConfig
from limelight.data.tokenizer import TokenizerConfig
from limelight.errors import AdjustedWarning, UserError
from limelight.model import ModelConfig
from limelight.recipe import (
    TABLES,
    load_recipe,
    parse_recipe,
    recipe_names,
    write_recipe,
)


def test_what_is_shipped():
    paper = {"wmt14-en-de-base", "wmt14-en-de-big"}
    assert paper | {"gpt2-124m", "gpt3-175b", "bert-base", "reverse"} <= set(recipe_names())
    base, big = (load_recipe(name).model for name in sorted(paper))
    assert base == ModelConfig(vocab=37_000, d_ff=2048)
    assert (big.d_model, big.d_ff, big.heads, big.dropout) == (1024, 4096, 16, 0.3)


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('about = "mine"\n[model]\nvocab = 100\nlayers = 2\n')
    recipe = load_recipe(str(file))
    assert (recipe.name, recipe.about, recipe.model.layers) == ("mine", "mine", 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model]\nvocab = \n", "line 2"),
        ("", r"there is no \[model\] table"),
        ("[modle]\nvocab = 1\n", "no key 'modle': did you mean 'model'"),
        ("model = 3", r"model must be a table, \[model\], not 3"),
        (
            "[model]\nvocab = 10\nhaeds = 8",
            "no setting 'haeds': did you mean 'heads'",
        ),
        ("[model]\nvocab = 10\nlayers = 'six'", "layers='six' must be a whole number"),
        ("[model]\nvocab = 10\nlayers = -6", "layers=-6 is out of range"),
        ("[model]\nvocab = 10\nheads = 7", "heads=7 does not divide d_model=512"),
        ("[model]\nlayers = 6", "vocab is missing"),
        (
            "[model]\nvocab = 10\n[published]\nparameters = 'many'\nsource = 'me'",
            "parameters='many' must be a whole number",
        ),
        ("[model]\nvocab = 10\n[published]\nparams = 1", "did you mean 'parameters'"),
        (
            "[model]\nvocab = 10\n[published]\nparameters = true\nsource = ''",
            "parameters=True must",
        ),
        ("[model]\nvocab = 10\n[published]\nparameters = 1\nsource = 3", "source=3 must be text"),
        ("[model]\nvocab = " + "9" * 5000, "digits"),
        ("[model]\nvocab = 0x" + "f" * 6000, "thousands of digits is out of range"),
        ("about = [1]\n[model]\nvocab = 10", r"about=\[1\] must be text"),
        ("[model]\nvocab = 10\n[tokenizer]\nvocab = 300", "may learn 300 tokens, but the model"),
        (
            "[model]\n[tokenizer]\nkind = 'uncased'",
            "knows no capitals, and family='encoder-decoder'",
        ),
        ("[model]\n[tokenizer]\nvocab = 300\n[train]\nbatch_tokens = 'x'", "number or 'auto'"),
        ("x = " + "[" * 5000, "recursion|nested"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, text, sentence):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence) as error:
        load_recipe(str(file))
    assert str(error.value).startswith(str(file))


def test_a_byte_order_mark_does_no_harm(tmp_path):
    (tmp_path / "windows.toml").write_bytes(b"\xef\xbb\xbf[model]\r\nvocab = 10\r\n")
    assert load_recipe(str(tmp_path / "windows.toml")).model.vocab == 10


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the recipe x+: File name too long"):
        load_recipe("x" * 5000)
    with pytest.raises(UserError, match=r"cannot read the recipe .*nothing.toml: No such file"):
        load_recipe(str(tmp_path / "nothing.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match=r"cannot read the recipe .*: Is a directory"):
        load_recipe(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a text file in UTF-8"):
        load_recipe(str(tmp_path / "binary.toml"))
    with pytest.raises(
        UserError, match="no recipe 'wmt14-en-de-bse': did you mean 'wmt14-en-de-base'"
    ):
        load_recipe("wmt14-en-de-bse")


@pytest.mark.parametrize("name", recipe_names())
def test_written_down_and_read_again_it_is_the_same(name):
    recipe = load_recipe(name)
    assert parse_recipe(name, write_recipe(recipe)) == recipe


@given(st.text(), st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3))
def test_any_text_survives_being_written_down(about, files):
    assume(not any(0xD800 <= ord(c) < 0xE000 for c in about))
    data = DataConfig(train=tuple(files), kind="texts")
    recipe = replace(load_recipe("reverse"), name="x", about=about, data=data)
    assert parse_recipe("x", write_recipe(recipe)) == recipe


def test_the_paper_is_followed():
    base, big = load_recipe("wmt14-en-de-base"), load_recipe("wmt14-en-de-big")
    for recipe in (base, big):
        train, decode = recipe.train, recipe.decode
        assert (train.batch_tokens, train.warmup, train.label_smoothing) == (25_000, 4000, 0.1)
        assert (train.beta1, train.beta2, train.eps) == (0.9, 0.98, 1e-9)
        assert (train.schedule, train.weight_decay, train.clip_grad_norm) == ("paper", 0.0, 0.0)
        assert (decode.beam, decode.length_penalty, decode.max_extra_tokens) == (4, 0.6, 50)
        assert recipe.tokenizer == TokenizerConfig(kind="bpe", vocab=37_000)
    assert (base.train.steps, base.train.average_checkpoints) == (100_000, 5)
    assert (big.train.steps, big.train.average_checkpoints) == (300_000, 20)
    for recipe, seconds in ((base, 0.4), (big, 1.0)):  # a step; a checkpoint every 10 minutes
        assert recipe.train.checkpoint_every * seconds == 600


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["train.steps=500"], ("train", "steps", 500)),
        (["train.batch-tokens=auto"], ("train", "batch_tokens", "auto")),
        (["train.batch_tokens=77"], ("train", "batch_tokens", 77)),
        (["train.label_smoothing=0"], ("train", "label_smoothing", 0.0)),
        (["model.dropout=0.25"], ("model", "dropout", 0.25)),
        (["model.tied=false"], ("model", "tied", False)),
        (["data.toy=sort"], ("data", "toy", "sort")),
        (["decode.beam=7", "decode.beam=8"], ("decode", "beam", 8)),
    ],
)
def test_any_setting_can_be_changed(changes, expected):
    table, setting, value = expected
    changed = getattr(getattr(load_recipe("reverse", changes), table), setting)
    assert changed == value
    assert type(changed) is type(value)


@pytest.mark.parametrize(
    "arguments",
    [["--train.nonsense"], ["--train.steps", "x"], ["--model.heads", "5"], ["--decode.beam=0"]],
)
def test_the_command_line_says_what_is_wrong(arguments):
    command = [sys.executable, "-m", "limelight", "info", "reverse", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("limelight: reverse: ")
    assert "Traceback" not in done.stderr


def test_lists_are_given_value_by_value():
    changes = ["data.toy=", "data.train=a.en", "data.train=5"]
    assert load_recipe("reverse", changes).data.train == ("a.en", "5")


def test_corpora_replace_what_a_recipe_reads():
    changed = load_recipe("reverse", ['data.corpora=[{train=["a.tsv"], tag="x"}]']).data
    assert ([c.train for c in changed.corpora], changed.toy) == ([("a.tsv",)], "")
    with pytest.raises(UserError, match="corpora are read instead of"):
        load_recipe("reverse", ['data.corpora=[{train=["a.tsv"]}]', "data.train=b.tsv"])


OWNERS = {
    "model": ModelConfig,
    **{key: owner for key, owner in TABLES.items() if key != "published"},
}
SETTINGS = [(key, field) for key, owner in OWNERS.items() for field in fields(owner)]


@pytest.mark.parametrize(("key", "field"), SETTINGS, ids=lambda x: getattr(x, "name", x))
def test_every_setting_refuses_what_it_cannot_be(key, field):
    """A wrong type, and for numbers both ends of the range; a misspelt name gets the right one."""
    wrong = {"type": [object()]} if field.type is str or get_origin(field.type) is tuple else {}
    values = wrong.get("type", [object(), None, [1.5, "x"], "no such choice ", {}])
    if field.type is not str and get_origin(field.type) is not tuple and field.type is not bool:
        values = [*values, -1e30, 1e30, 10**40, -(10**40), math.nan]
    for value in values:
        needed = {"vocab": 10} if key == "model" else {}
        with pytest.raises(UserError, match=field.name) as error:
            OWNERS[key](**{**needed, field.name: value})
        assert len(str(error.value)) < 400
    with pytest.raises(UserError, match=f"no setting '{field.name}x'"):
        load_recipe("reverse", [f"{key}.{field.name}x=1"])


def refused(capsys, monkeypatch, *arguments):
    """What the command says on its way out; with exit code 2, and in a sentence."""
    monkeypatch.setattr(sys, "argv", ["limelight", "info", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2
    assert said.out == ""
    assert said.err.startswith("limelight: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(("key", "field"), SETTINGS, ids=lambda x: getattr(x, "name", x))
def test_every_setting_is_refused_with_exit_code_2(key, field, tmp_path, capsys, monkeypatch):
    """Of a wrong type, out of range or misspelt; in a file and on the command line."""
    text = field.type is str
    numbers = not text and field.type is not bool and "tuple" not in str(field.type)
    in_file = ["{a = 1}", *(["3"] if text else ["1979-05-27"]), *(["-1e30", "1e30"] * numbers)]
    path = tmp_path / "mine.toml"
    for value in in_file:
        model = "[model]\n" + ("vocab = 300\n" if field.name != "vocab" else "")
        table = model if key == "model" else f"{model}[{key}]\n"
        path.write_text(f"{table}{field.name} = {value}\n")
        said = refused(capsys, monkeypatch, str(path))
        assert str(path) in said
        assert field.name in said
    for value in [*(["-1e30", "nan"] * numbers), *(["{a = 1}"] * (not text))]:
        if get_origin(field.type) is not tuple:  # a list takes any text
            said = refused(capsys, monkeypatch, "reverse", f"--{key}.{field.name}={value}")
            assert field.name in said
    said = refused(capsys, monkeypatch, "reverse", f"--{key}.{field.name}x", "1")
    assert f"no setting '{field.name}x'" in said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("train.steps", "write table.setting=value"),
        ("steps=5", "write table.setting=value"),
        ("trian.steps=5", "no table 'trian': did you mean 'train'"),
        ("train.warmup=-1", r"\[train\] warmup=-1 is out of range"),
        ("model.family=gpt", "no family 'gpt'"),
        ("data.kind=texts", "makes pairs, not kind='texts'"),
        ("data.hold_out=0.9", "leaves little to train on"),
        ("train.steps=5\nx=1", "must be a whole number"),
    ],
)
def test_changes_that_cannot_be_made(change, sentence):
    with pytest.raises(UserError, match=sentence):
        load_recipe("reverse", [change])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["info", "x"], (["info", "x"], [])),
        (["info", "x", "--train.steps", "5"], (["info", "x"], ["train.steps=5"])),
        (["info", "--a.b=1", "--json"], (["info", "--json"], ["a.b=1"])),
        (["i", "--a.b", "-5", "--c", "y"], (["i", "--c", "y"], ["a.b=-5"])),
        (["i", "--a.b", "5", "x"], (["i", "x"], ["a.b=5"])),
        (["i", "--data.train", "x", "y"], (["i"], ["data.train=x", "data.train=y"])),
        (["i", "--a.b", "--c.d"], (["i"], ["a.b=true", "c.d=true"])),
        (["i", "--set", "a.b=1", "--c.d", "2"], (["i"], ["a.b=1", "c.d=2"])),
    ],
)
def test_settings_on_the_command_line(arguments, expected):
    assert split_settings(arguments) == expected


@pytest.mark.parametrize(("steps", "many"), [(1, "1 step:"), (2, "2 steps:")])
def test_a_shorter_warmup_counts_the_steps(steps, many):
    with pytest.warns(AdjustedWarning, match=f"for a training of {many}"):
        load_recipe("reverse", [f"train.steps={steps}"])
