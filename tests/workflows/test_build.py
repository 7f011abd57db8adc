"""What is said before a training begins."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from limelight.errors import UserError
from limelight.recipe import load_recipe
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig
from limelight.training.distributed import World
from limelight.workflows import build

FAST = {"compile": True, "master_weights": True}
SAID = "--train.compile true --train.master-weights true would be faster"


@pytest.mark.parametrize(
    ("recipe", "train", "device", "processes", "hinted"),
    [
        ("gpt2-124m", {}, "cuda", 1, True),
        ("multi30k-en-de", {"cuda_graphs": True}, "cuda", 1, True),
        ("gpt2-124m", FAST, "cuda", 1, False),
        ("gpt2-124m", {}, "cuda", 8, False),
        ("gpt2-124m", {}, "cpu", 1, False),
        ("gpt2-124m", {"steps": 100}, "cuda", 1, False),
        ("gpt2-124m", {"precision": "float32"}, "cuda", 1, False),
        ("gpt2-124m", {"lora_rank": 4}, "cuda", 1, False),
        ("reverse-lstm", {}, "cuda", 1, False),
    ],
)
def test_a_faster_way_is_named_where_there_is_one(
    recipe, train, device, processes, hinted, monkeypatch
):
    monkeypatch.setattr(build, "describe", str)
    monkeypatch.setattr(
        build, "choose_precision", lambda wanted, _: wanted if wanted != "auto" else "bfloat16"
    )
    said = []
    recipe = replace(
        load_recipe(recipe), train=TrainConfig(**{"steps": 1000, "warmup": 1, **train})
    )
    world = World(torch.device(device), world_size=processes)
    build.announce(recipe, world, SimpleNamespace(say=said.append))
    assert said[0].startswith(f"training {recipe.name} on {device}")
    assert [line.startswith(SAID) for line in said[1:]] == [True] * hinted


def test_what_this_machine_cannot_do_is_said_before_any_work(tmp_path):
    """A tokenizer of a large corpus takes minutes."""
    said = []
    recipe = load_recipe("reverse")
    recipe = replace(recipe, train=replace(recipe.train, master_weights=True, device="cpu"))
    world, run = World(torch.device("cpu")), RunFolder(tmp_path / "run")
    with pytest.raises(UserError, match="master_weights=true is for bfloat16"):
        build.build_trainer(recipe, run, world, SimpleNamespace(say=said.append))
    assert [line.split()[:2] for line in said] == [["training", "reverse"]]
    assert not run.path.exists()
