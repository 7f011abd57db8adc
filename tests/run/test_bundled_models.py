"""A model's name is taken where a run folder is, and a run folder of your own comes first."""

import json
import os

import pytest

from limelight.errors import UserError
from limelight.run import bundled_models
from limelight.run.folder import RunFolder


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Two bundled models, and an empty folder to stand in."""
    for name in ("parrot", "pirate"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "run.json").write_text(json.dumps({"format": 1}))
        (tmp_path / "models" / name / "model.json").write_text(json.dumps({"about": name}))
    (tmp_path / "models" / "half").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(bundled_models, "MODELS", tmp_path / "models")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "models"


def test_names_are_those_of_folders_with_a_model(models):
    assert bundled_models.model_names() == ["parrot", "pirate"]
    assert bundled_models.find_run("parrot").path == models / "parrot"
    assert bundled_models.is_run("parrot")
    assert not bundled_models.is_run("half")


def test_a_run_folder_of_your_own_comes_first_and_another_folder_does_not(models, tmp_path):
    own = tmp_path / "here" / "parrot"
    own.mkdir()
    assert bundled_models.find_run("parrot").path == models / "parrot"
    (own / "run.json").write_text("{}")
    assert bundled_models.find_run("parrot").path.resolve() == own
    assert bundled_models.canonical_name(bundled_models.find_run("parrot")) == str(own)
    assert bundled_models.canonical_name(bundled_models.find_run("pirate")) == "pirate"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("parot", "there is no run folder and no model 'parot': did you mean 'parrot'?"),
        ("zzz", "bundled are parrot, pirate"),
        ("half", "no run folder"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(models, name, sentence):
    with pytest.raises(UserError, match=sentence):
        bundled_models.find_run(name).check()


def test_a_path_is_no_name(models):
    with pytest.raises(UserError, match=r"^runs/parot is not a run folder: it has no run.json$"):
        bundled_models.find_run("runs/parot")


@pytest.mark.parametrize("way", ["./parrot", "parrot/", "runs/parrot", "./parrot//"])
@pytest.mark.parametrize("there", [False, True])
def test_a_path_is_named_as_it_was_typed_and_a_model_of_that_name_is_remembered(models, way, there):
    bundled_models.Path(way).mkdir(parents=True) if there else None
    with pytest.raises(UserError) as told:
        bundled_models.find_run(way)
    assert str(told.value) == (
        f"{way} is not a run folder: it has no run.json; limelight's own model is called parrot"
    )


def test_a_path_to_a_run_is_taken_however_it_is_typed(models):
    """The control."""
    bundled_models.Path("parrot").mkdir()
    bundled_models.Path("parrot/run.json").write_text("{}")
    for way in ("parrot", "./parrot", "parrot/", bundled_models.Path("parrot")):
        assert bundled_models.find_run(way) == RunFolder(bundled_models.Path("parrot"))


def test_an_empty_name_is_not_the_folder_that_one_is_in(models):
    bundled_models.Path("run.json").write_text("{}")
    with pytest.raises(UserError, match=r"name of the run is empty: .* or one of parrot, pirate"):
        bundled_models.find_run("")
    assert bundled_models.find_run(".").exists


class Bytes(os.PathLike):
    """A path as some systems have it."""

    def __fspath__(self):
        return b"parrot"


@pytest.mark.parametrize("run", [None, 5, b"parrot", ["parrot"], Bytes(), 0])
def test_what_is_no_name_at_all_is_refused(models, run):
    with pytest.raises(UserError, match="expected the name or the path of a run, got ") as told:
        bundled_models.find_run(run)
    assert f"{run!r:.80}" in str(told.value)


def test_how_large_a_model_is(models):
    (models / "parrot" / "finished").mkdir()
    (models / "parrot" / "finished" / "weights").write_bytes(bytes(1000))
    files = (models / "parrot" / "run.json", models / "parrot" / "model.json")
    told = bundled_models.facts_of("parrot")
    assert told["bytes"] == 1000 + sum(file.stat().st_size for file in files)
    assert told["about"] == told["name"] == "parrot"
