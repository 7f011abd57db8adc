"""From a recipe to a model that can do something: every part of the way, together, in seconds.

The whole recipes take minutes, and are in `make soak`.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from limelight.experiment import evaluate_run, train
from limelight.model import build
from limelight.recipe import load_recipe
from limelight.text.batches import Batches
from limelight.text.corpora import read_split
from limelight.text.examples import PairExamples
from limelight.text.readers import Tally
from limelight.text.store import prepare
from limelight.text.tokenizer import Tokenizer


def write(model, batch, tokenizer, longest=16):
    """Greedy, token by token, with the state that the model keeps."""
    state = model.start(batch.source, batch.source_real)
    token = torch.full((batch.source.size(0), 1), tokenizer.start)
    written = []
    for _ in range(longest):
        token = model.step(token, state).argmax(dim=-1, keepdim=True)
        written.append(token)
    rows = torch.cat(written, dim=1).tolist()
    return [tokenizer.decode(row[: [*row, tokenizer.end].index(tokenizer.end)]) for row in rows]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("copy", ["model.norm_order=pre"]),
        ("reverse", ["model.norm_order=pre", "model.positions=rotary", "model.kv_heads=2"]),
        ("reverse-lstm", []),
    ],
)
def test_a_toy_is_learned_and_written(name, changes, tmp_path):
    recipe = load_recipe(name, [*changes, "data.toy_length=4", "data.toy_examples=4000"])
    texts = (text for pair in read_split(recipe.data, "train", Tally()) for text in pair)
    tokenizer = Tokenizer.train(recipe.tokenizer.kind, texts, recipe.tokenizer.vocab)
    store = prepare(recipe.data, "train", tokenizer, tmp_path)
    model = build(replace(recipe.model, vocab=len(tokenizer), dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = Batches(PairExamples(store, tokenizer), batch_tokens=1024, seed=1)
    for epoch in range(14):
        for batch in batches.epoch(epoch):
            logits = model(batch.source, batch.target[:, :-1], batch.source_real)
            wanted = batch.target[:, 1:].masked_fill(~batch.target_real[:, 1:], -100)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    held_out = prepare(recipe.data, "test", tokenizer, tmp_path)
    right = total = 0
    for batch in Batches(PairExamples(held_out, tokenizer), batch_tokens=1024, seed=1).epoch(0):
        for i, answer in zip(batch.examples, write(model.eval(), batch, tokenizer), strict=True):
            right += answer == tokenizer.decode(held_out.columns[1][int(i)])
            total += 1
    assert total == 400
    assert right >= 0.85 * total


TOYS = ("reverse", "reverse-gpt", "reverse-lstm")


@pytest.mark.parametrize("name", TOYS)
def test_a_recipe_learns_a_shorter_toy(name, tmp_path):
    """As `limelight train` does it, with the recipe's own settings, on rows of three letters."""
    shorter = ["data.toy_length=3", "data.toy_examples=3000", "train.batch_tokens=256"]
    sooner = ["train.accumulate=2", "train.steps=200", "train.warmup=100", "train.average=0"]
    train(name, tmp_path, [*shorter, *sooner], silent=True)
    assert evaluate_run(tmp_path, "test", silent=True)["exact"] >= 0.97


@pytest.mark.soak
@pytest.mark.parametrize("name", [*TOYS, "copy", "sort"])
def test_a_recipe_learns_its_toy(name, tmp_path):
    """All of the held-out examples, and not only those that are looked at in between."""
    train(name, tmp_path, silent=True)
    for split in ("valid", "test"):
        right = evaluate_run(tmp_path, split, silent=True)["exact"]
        assert right >= (0.98 if name in ("sort", "reverse-lstm") else 1.0)
