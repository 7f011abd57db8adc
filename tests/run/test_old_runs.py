"""A run folder from before the redesign (0.1.0) loads, answers and resumes as it did then."""

import json
import shutil
import subprocess
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest

import limelight
from limelight.data.config import DataConfig
from limelight.decode.config import DecodeConfig
from limelight.errors import RenamedWarning, UserError
from limelight.recipe import load_recipe, recipe_from_run, with_overrides
from limelight.run.atomic import find_damage
from limelight.run.folder import RunFolder
from limelight.run.log import read_log, summary
from limelight.training.config import TrainConfig

OLD = Path(__file__).parents[1] / "golden" / "run"
LOSSES = {35: 3.6539358356655045, 40: 3.720871490686118}  # when the old code resumed it
RENAMED = [
    pytest.param(table, owner, old, new, id=f"{table}.{old}")
    for table, owner in (("data", DataConfig), ("train", TrainConfig), ("decode", DecodeConfig))
    for old, new in owner.RENAMED.items()
]
renamed = pytest.mark.parametrize(("table", "owner", "old", "new"), RENAMED)


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def resume(run, **changes):
    """Train ten steps more; the objective by step."""
    overrides = {"train.steps": 40} | {f"train.{name}": value for name, value in changes.items()}
    assert limelight.train(str(run / "recipe.toml"), run=run, changes=overrides, silent=True) == 0
    entries = [entry for entry in read_log(run / "log.jsonl") if "lr" in entry]
    return {entry["step"]: entry["objective"] for entry in entries}


def test_it_loads_and_answers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a run folder is not to be edited, so nothing is said
        loaded = limelight.load(OLD)
    assert loaded.step == 30
    assert loaded.recipe.train.grad_accumulation == 2
    assert loaded.translate("a b c").text == loaded.translate("a b c").text
    sources = ["a b c", "w c c", "z d"]
    assert len(list(loaded.translate_all(sources))) == len(sources)


def test_its_log_is_read_with_the_keys_of_today():
    assert '"rate"' in (OLD / "log.jsonl").read_text()
    last = summary(OLD / "log.jsonl")["last"]
    assert (last["step"], last["lr"], last["grad_norm"]) == (30, 0.0005, 0.9410581281108241)
    assert not {"rate", "norm", "memory"} & {key for e in read_log(OLD / "log.jsonl") for key in e}


def test_it_resumes_to_the_losses_of_then(copy):
    checkpoint = copy / "checkpoints" / "step-000030"
    before = files_in(checkpoint)
    assert find_damage(checkpoint) is None
    shutil.copytree(checkpoint, copy.parent / "before")
    losses = resume(copy, keep_checkpoints=2)
    assert files_in(checkpoint) == before == files_in(copy.parent / "before")
    assert find_damage(copy / "checkpoints" / "step-000040") is None
    assert limelight.load(copy).step == 40
    assert {step: losses[step] for step in LOSSES} == pytest.approx(LOSSES, abs=1e-4)
    written = (copy / "recipe.toml").read_text()
    assert "grad_accumulation = 2" in written
    assert "accumulate = 2\n" not in written.replace("grad_accumulation", "")


def test_another_seed_gives_other_losses(copy):
    """The control: the comparison above can fail."""
    recipe = copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("seed = 1\nschedule", "seed = 2\nschedule"))
    losses = resume(copy)
    assert all(abs(losses[step] - loss) > 1e-3 for step, loss in LOSSES.items())


def test_its_recipe_is_the_same_under_new_names():
    old = asdict(recipe_from_run(RunFolder(OLD)))
    text = (OLD / "recipe.toml").read_text()
    assert "accumulate = 2" in text
    with pytest.warns(RenamedWarning) as told:
        again = asdict(load_recipe(str(OLD / "recipe.toml")))
    assert {**again, "name": ""} == {**old, "name": ""}
    assert len(told) == 3  # one line for each table with old names


def other_value(owner, new):
    """A value that is not the default."""
    value = getattr(owner(), new)
    return not value if isinstance(value, bool) else 0.25 if isinstance(value, float) else 2


@renamed
def test_an_old_name_in_a_file(table, owner, old, new, tmp_path):
    value = other_value(owner, new)
    kind = 'kind = "texts"\n' if old == "tail" else ""
    text = f"[model]\nvocab = 300\n[{table}]\n{kind}{old} = {json.dumps(value)}\n"
    (tmp_path / "mine.toml").write_text(text)
    with pytest.warns(RenamedWarning, match=f"{old} is now called {new}") as told:
        recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert len(told) == 1
    assert getattr(getattr(recipe, table), new) == value
    with pytest.warns(RenamedWarning):  # an override replaces it under either name
        recipe = load_recipe(str(tmp_path / "mine.toml"), {f"{table}.{old}": value})
    assert load_recipe(str(tmp_path / "mine.toml"), {f"{table}.{new}": value}) == recipe
    (tmp_path / "both.toml").write_text(f"{text}{new} = {json.dumps(value)}\n")
    with pytest.raises(UserError, match=f"{new} is given twice: {old} is its old name"):
        load_recipe(str(tmp_path / "both.toml"))


@renamed
def test_an_old_name_from_python(table, owner, old, new):
    value = other_value(owner, new)
    kind = {"kind": "texts"} if old == "tail" else {}
    with pytest.warns(RenamedWarning, match=f"{old} is now called {new}") as told:
        made = owner(**kind, **{old: value})
    assert len(told) == 1
    assert made == owner(**kind, **{new: value})
    with pytest.raises(UserError, match=f"{new} is given twice: {old} is its old name"):
        owner(**{old: value, new: value})
    kinds = {f"{table}.{k}": v for k, v in kind.items()}
    recipe = load_recipe("multi30k-en-de", {"decode.beam": 4, **kinds})
    with pytest.warns(RenamedWarning, match=f"{old} is now called {new}") as told:
        changed = with_overrides(recipe, {f"{table}.{old}": value})
    assert len(told) == 1
    assert changed == with_overrides(recipe, {f"{table}.{new}": value})
    with pytest.raises(UserError, match=f"{new} is given twice"):
        with_overrides(recipe, {f"{table}.{old}": value, f"{table}.{new}": value})


def test_an_old_name_of_a_decoding_setting_when_a_model_is_used():
    loaded = limelight.load(OLD)
    with pytest.warns(RenamedWarning, match="no_repeat is now called no_repeat_ngram"):
        assert loaded.settings(no_repeat=2) == loaded.settings(no_repeat_ngram=2)


def test_an_old_name_on_the_command_line(programs):
    def info(*options):
        command = [programs / "limelight", "info", "reverse", "--json", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    new, old = info("--train.grad-accumulation", "2"), info("--train.accumulate", "2")
    assert new.returncode == old.returncode == 0
    assert new.stderr == ""
    assert old.stderr.count("\n") == 1
    assert "accumulate is now called grad_accumulation" in old.stderr
    assert old.stdout == new.stdout
    both = info("--train.accumulate", "2", "--train.grad-accumulation", "2")
    assert both.returncode == 2
    assert "grad_accumulation is given twice: accumulate is its old name" in both.stderr
