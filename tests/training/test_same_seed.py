"""One recipe and one seed are one result: every byte of the run folder but the clock's."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from limelight import __version__
from limelight.recipe import write_recipe
from limelight.run import folder
from limelight.run.folder import RunFolder
from limelight.workflows.train import train
from tests.training.samples import hashes, log_of, texts, tiny

ROOT = Path(__file__).parent.parent.parent
FILES = {  # what a run folder holds; checkpoints and finished weights are folders of their own
    ".lock",
    "curves.svg",
    "environment.json",
    "log.jsonl",
    "recipe.toml",
    "run.json",
    "tokenizer.json",
}
CHECKPOINT = {"MANIFEST.json", "optimizer.safetensors", "state.json", "weights.safetensors"}


def everything(run):
    """All files by their hashes, the log by its entries without their times."""
    files = hashes(run)
    del files["log.jsonl"]
    return files, log_of(run)


def recipe_for(family, place, **train):
    data = texts(place) if family == "encoder-only" else None
    usual = {"grad_accumulation": 2, "checkpoint_every": 4, "validate_every": 4}
    return tiny(family, data, **{**usual, **train})


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only", "encoder-only"])
def test_the_same_again_is_the_same(tmp_path, family):
    for name in ("one", "two"):
        assert train(recipe_for(family, tmp_path), tmp_path / name, silent=True) == 0
    assert everything(tmp_path / "one") == everything(tmp_path / "two")
    train(recipe_for(family, tmp_path, seed=2), tmp_path / "other", silent=True)
    files, log = everything(tmp_path / "other")
    weights = "finished/step-000010/weights.safetensors"
    assert files[weights] != hashes(tmp_path / "one")[weights]
    assert log != log_of(tmp_path / "one")


def test_who_makes_the_batches_changes_nothing(tmp_path):
    for name, workers in (("one", 0), ("two", 2)):
        train(
            recipe_for("decoder-only", tmp_path, data_workers=workers), tmp_path / name, silent=True
        )
    one, two = (hashes(tmp_path / name) for name in ("one", "two"))
    for name in ("recipe.toml", "run.json", "log.jsonl"):  # the second has the hash of the first
        del one[name], two[name]
    assert one == two
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_a_run_folder_is_complete(tmp_path):
    train(recipe_for("encoder-decoder", tmp_path), tmp_path / "run", silent=True)
    made = hashes(tmp_path / "run")
    kept = {f"checkpoints/step-{step:06}/{name}" for step in (8, 10) for name in CHECKPOINT}
    finished = {f"finished/step-000010/{name}" for name in ("MANIFEST.json", "weights.safetensors")}
    assert made.keys() == FILES | kept | finished
    told = RunFolder(tmp_path / "run").read_json("environment.json")
    assert told["seed"] == 1
    assert told["versions"]["torch"]
    assert told["data"].keys() == {"train", "valid"}
    assert all(name in folder.__doc__ for name in FILES - {".lock"})


def test_a_checkout_that_was_never_installed_knows_its_version(monkeypatch):
    def of_installed(name):
        if name == "limelight":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(folder, "version", of_installed)
    assert folder.versions()["limelight"] == __version__


def test_python_s_own_hashes_change_nothing(tmp_path, monkeypatch):
    """Sets of strings are in another order in every process; no result may hang on that."""
    (tmp_path / "tiny.toml").write_text(write_recipe(recipe_for("encoder-decoder", tmp_path)))
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # here it is mostly random
    subprocess.run(
        [sys.executable, "-m", "limelight", "train", "tiny.toml", "--run", "there"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONHASHSEED": other,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "LIMELIGHT_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        check=True,
    )
    monkeypatch.chdir(tmp_path)
    train("tiny.toml", "here", silent=True)
    assert everything(tmp_path / "there") == everything(tmp_path / "here")
