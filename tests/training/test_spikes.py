"""A loss that jumps is told at once, with the examples that the step has met; nothing else is."""

import shutil
from io import StringIO

import pytest
import torch
from rich.console import Console

from limelight.run.weights import name_of
from limelight.training.console import Report
from tests.training.samples import log_of, texts, tiny, train_in

STEPS = 160
POISONED = range(120, 140)
SEEDS = [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (4, 5))]
SETTINGS = {"steps": STEPS, "validate_every": STEPS, "learning_rate": 1.0, "batch_tokens": 64}


def poison(trainer):
    """A stretch of batches whose answers are noise."""
    true_module = trainer.module

    def module(batch):
        if trainer.module.training and trainer.state.step in POISONED:
            noise = torch.randint(5, 261, batch.target.shape)
            batch = batch._replace(target=torch.where(batch.target_real, noise, batch.target))
        return true_module(batch)

    module.train, module.eval, module.training = true_module.train, true_module.eval, True
    trainer.module = module


def spikes(folder):
    return [entry for entry in log_of(folder) if entry.get("spike")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stretch_of_bad_texts_is_told_within_five_steps(tmp_path, seed):
    told = StringIO()

    def touch(trainer):
        trainer.report = Report(console=Console(file=told, width=300))
        poison(trainer)

    train_in(tmp_path, tiny(**SETTINGS, seed=seed), touch=touch)
    found = spikes(tmp_path)
    assert found[0]["step"] in POISONED[:5]
    steps = {entry["step"] for entry in found}
    assert steps <= {*POISONED}
    assert all(entry["loss"] > entry["usual"] + 1 for entry in found)
    assert all(entry["examples"] for entry in found)
    assert f"step {found[0]['step']} has a loss of" in told.getvalue()
    rows = [step for step in steps if step - 1 not in steps]
    # Of several in a row the first is told; a step of few tokens between them ends no row.
    assert 1 <= told.getvalue().count("is usual") <= len(rows)


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("encoder-decoder", 1),
        ("encoder-decoder", 2),
        ("encoder-only", 3),
        *(
            pytest.param(family, seed, marks=pytest.mark.soak)
            for family in ("encoder-decoder", "encoder-only")
            for seed in range(1, 6)
        ),
    ],
)
def test_a_good_run_is_not_suspected(tmp_path, family, seed):
    data = texts(tmp_path) if family == "encoder-only" else None
    train_in(tmp_path / "run", tiny(family, data, **SETTINGS, seed=seed))
    assert spikes(tmp_path / "run") == []


def test_a_break_does_not_hide_a_spike(tmp_path):
    """What is usual is in the checkpoint: the log of a resumed run is that of a whole one."""
    recipe = tiny(**SETTINGS, checkpoint_every=POISONED[0] - 5, keep_checkpoints=9)
    for name in ("whole", "broken"):
        train_in(tmp_path / name, recipe, touch=poison)
    for part in (f"checkpoints/{name_of(STEPS)}", "finished"):
        shutil.rmtree(tmp_path / "broken" / part)
    train_in(tmp_path / "broken", recipe, touch=poison)
    assert log_of(tmp_path / "broken") == log_of(tmp_path / "whole")
    assert spikes(tmp_path / "broken")
