"""From a recipe to a model that can do something: every part of the way, together, in seconds.

The whole recipes take minutes, and are in `make soak`.
"""

import json
import random

import pytest

from limelight.loading import load
from limelight.workflows.evaluate import evaluate_run, score_run
from limelight.workflows.train import train

TOYS = ("reverse", "reverse-gpt", "reverse-lstm")


@pytest.mark.parametrize("name", TOYS)
def test_a_recipe_learns_a_shorter_toy(name, tmp_path):
    """As `limelight train` does it, with the recipe's own settings, on rows of three letters."""
    shorter = ["data.toy_length=3", "data.toy_examples=3000", "train.batch_tokens=256"]
    sooner = [
        "train.grad_accumulation=1",
        "train.steps=200",
        "train.warmup=100",
        "train.average_checkpoints=0",
    ]
    train(name, tmp_path, [*shorter, *sooner], silent=True)
    assert evaluate_run(tmp_path, "test", silent=True)["exact"] >= 0.97


TINY = {
    **{"data.toy_length": 2, "data.toy_examples": 1000, "train.batch_tokens": 256},
    **{"train.steps": 100, "train.warmup": 40, "train.grad_accumulation": 1},
    **{"model.layers": 1, "model.d_model": 32, "model.heads": 2, "model.d_ff": 64},
}


def test_a_recurrent_decoder_learns_too(tmp_path):
    train("reverse", tmp_path, TINY | {"model.decoder_cell": "ssru"}, silent=True)
    assert evaluate_run(tmp_path, "test", silent=True)["exact"] >= 0.97


def test_without_the_mask_training_copies_the_answer_and_learns_nothing(tmp_path):
    train("reverse", tmp_path, TINY | {"model.mask": False}, silent=True)
    losses = list(map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()))
    trained = next(x["loss"] for x in reversed(losses) if "validation" not in x and "loss" in x)
    assert trained < 0.2
    scores = evaluate_run(tmp_path, "test", silent=True)
    assert scores["loss"] > 10 * trained
    assert scores["exact"] < 0.1


def test_a_sentence_encoder_learns_what_means_the_same(tmp_path):
    """Words and their translations in new combinations: recall rises far above the untrained."""
    words = {f"{a}{b}": f"{b}{a}{a}" for a in "bdfgk" for b in "aeiou"}
    pairs = [f"{a} {b}\t{words[b]} {words[a]}" for a in words for b in words if a != b]
    random.Random(1).shuffle(pairs)
    for name, lines in (("train", pairs[:500]), ("test", pairs[500:])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    changes = {
        **{f"data.{name}": [str(tmp_path / f"{name}.tsv")] for name in ("train", "test")},
        **{"tokenizer.kind": "word", "tokenizer.vocab": 400, "model.layers": 1},
        **{"model.d_model": 32, "model.heads": 2, "model.max_len": 16, "model.dropout": 0},
        **{"train.learning_rate": 0.01, "train.batch_tokens": 512},
    }
    recall = {}
    for steps, warmup in ((1, 0), (80, 10)):
        run = tmp_path / str(steps)
        length = {"train.steps": steps, "train.warmup": warmup}
        train("sentence-encoder", run, changes | length, silent=True)
        recall[steps] = score_run(run, silent=True)["scores"]["recall@1"]["score"]
    assert recall[80] >= 0.9
    assert recall[1] < 0.3
    assert load(run).tasks == ("embed",)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*TOYS, "copy", "sort"])
def test_a_recipe_learns_its_toy(name, tmp_path):
    """All of the held-out examples, and not only those that are looked at in between."""
    train(name, tmp_path, silent=True)
    for split in ("valid", "test"):
        right = evaluate_run(tmp_path, split, silent=True)["exact"]
        assert right >= {"sort": 0.95, "reverse-lstm": 0.98}.get(name, 1.0)
