"""From a recipe to a model that can do something: every part of the way, together, in seconds.

The whole recipes take minutes, and are in `make soak`.
"""

import pytest

from limelight.workflows.evaluate import evaluate_run
from limelight.workflows.train import train

TOYS = ("reverse", "reverse-gpt", "reverse-lstm")


@pytest.mark.parametrize("name", TOYS)
def test_a_recipe_learns_a_shorter_toy(name, tmp_path):
    """As `limelight train` does it, with the recipe's own settings, on rows of three letters."""
    shorter = ["data.toy_length=3", "data.toy_examples=3000", "train.batch_tokens=256"]
    sooner = [
        "train.grad_accumulation=2",
        "train.steps=200",
        "train.warmup=100",
        "train.average_checkpoints=0",
    ]
    train(name, tmp_path, [*shorter, *sooner], silent=True)
    assert evaluate_run(tmp_path, "test", silent=True)["exact"] >= 0.97


@pytest.mark.soak
@pytest.mark.parametrize("name", [*TOYS, "copy", "sort"])
def test_a_recipe_learns_its_toy(name, tmp_path):
    """All of the held-out examples, and not only those that are looked at in between."""
    train(name, tmp_path, silent=True)
    for split in ("valid", "test"):
        right = evaluate_run(tmp_path, split, silent=True)["exact"]
        assert right >= {"sort": 0.95, "reverse-lstm": 0.98}.get(name, 1.0)
