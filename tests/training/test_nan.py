"""A step that is not finite changes nothing, is told, and three in a row end the run."""

import json
import random
import shutil
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file

from limelight.errors import FailedError
from limelight.run.atomic import latest_valid
from limelight.run.weights import WEIGHTS, name_of
from limelight.training import loop
from limelight.training.checkpoint import OPTIMIZER, STATE, read_state
from limelight.training.loss import LossSums
from tests.training.samples import hashes, log_of, rewrite, texts, tiny, train_in

STEPS = 60


def poison_loss(trainer, steps, value):
    """Have the loss of these steps be such a value; the gradient stays good."""
    true_module = trainer.module

    def module(batch):
        score = true_module(batch)
        bad = trainer.state.step in steps
        return LossSums(score.loss + value, *score[1:]) if bad else score

    module.train, module.eval = true_module.train, true_module.eval
    trainer.module = module


def poison_gradient(trainer, steps, value):
    """Have one number of one gradient of these steps be such a value; the loss stays good."""

    def spoil(gradient):
        if trainer.state.step not in steps:
            return gradient
        gradient = gradient.clone()
        gradient.view(-1)[3] = value
        return gradient

    trainer.trainable[-2].register_hook(spoil)


POISONS = {
    f"{value} in the {where.__name__[7:]}": (where, float(value))
    for where in (poison_loss, poison_gradient)
    for value in ("nan", "inf", "-inf")
}


def scattered(seed):
    """20 of 60 steps, never three in a row."""
    draw = random.Random(seed)
    while True:
        steps = sorted(draw.sample(range(1, STEPS + 1), 20))
        if all(c - a > 2 for a, c in zip(steps, steps[2:], strict=False)):
            return steps


def everything(trainer):
    """A copy of all that a step may change."""
    moments = [v for held in trainer.optimizer.state.values() for v in held.values()]
    tensors = [*trainer.loss_module.parameters(), *moments, *trainer.ema.values()]
    return [tensor.detach().clone() for tensor in tensors]


def watch_steps(monkeypatch):
    """For every step: whether it left everything as it was, and the examples that it met."""
    true_step = loop.train_step
    seen = {}

    def train_step(trainer, micro_batches):
        before = everything(trainer)
        entry = true_step(trainer, micro_batches)
        after = everything(trainer)
        same = len(before) == len(after) and all(map(torch.equal, before, after))
        met = [i for part in micro_batches for i in part.batch.examples.tolist()]
        seen[trainer.state.step] = (same, met)
        assert all(p.grad is None for p in trainer.trainable)
        return entry

    monkeypatch.setattr(loop, "train_step", train_step)
    return seen


@pytest.mark.parametrize("poison", POISONS)
def test_a_step_that_is_not_finite_changes_nothing(tmp_path, monkeypatch, poison):
    where, value = POISONS[poison]
    bad = scattered(poison)
    seen = watch_steps(monkeypatch)
    recipe = tiny("decoder-only", steps=STEPS, grad_accumulation=2, ema=0.9, validate_every=STEPS)
    trainer = train_in(tmp_path, recipe, touch=lambda t: where(t, bad, value))
    assert trainer.state.step == STEPS
    assert [step for step in seen if seen[step][0]] == bad  # and all others did change something
    told = [entry for entry in log_of(tmp_path) if entry.get("skipped")]
    assert [entry["step"] for entry in told] == bad
    assert all(entry["examples"] == seen[entry["step"]][1] for entry in told)
    lines = [entry for entry in log_of(tmp_path) if "lr" in entry]
    assert all(0 < entry["loss"] < 10 for entry in lines)  # what was skipped is in no average


def test_a_bad_first_step_can_be_resumed_from(tmp_path):
    """Adam has no moments yet to be saved or found."""
    recipe = tiny(steps=6, checkpoint_every=1, keep_checkpoints=9)
    for name in ("whole", "broken"):
        train_in(tmp_path / name, recipe, touch=lambda t: poison_loss(t, [1], float("nan")))
    for step in range(2, 7):
        shutil.rmtree(tmp_path / "broken" / "checkpoints" / name_of(step))
    train_in(tmp_path / "broken", recipe)
    ends = [hashes(tmp_path / name / "checkpoints") for name in ("whole", "broken")]
    assert ends[0] == ends[1]


def test_a_step_that_asks_for_nothing_is_no_failure(tmp_path, monkeypatch):
    """Of a few short texts it may happen that none gets a blank, and then again."""
    seen = watch_steps(monkeypatch)
    recipe = tiny(
        "encoder-only", texts(tmp_path), mask_rate=0.01, steps=STEPS, validate_every=STEPS
    )
    assert train_in(tmp_path / "run", recipe).state.step == STEPS
    idle = [same for same, _ in seen.values()]
    assert "TTT" in "".join("FT"[same] for same in idle)
    assert not all(idle)
    assert not any(entry.get("skipped") for entry in log_of(tmp_path / "run"))


@pytest.mark.parametrize("where", [poison_loss, poison_gradient])
def test_three_in_a_row_end_the_run_and_the_last_good_checkpoint_stays(tmp_path, where):
    recipe = tiny("decoder-only", steps=20, checkpoint_every=5, validate_every=20)
    with pytest.raises(FailedError, match="3 steps in a row were not finite"):
        train_in(tmp_path, recipe, touch=lambda t: where(t, [3, 4, 12, 13, 14], float("nan")))
    folder, damaged = latest_valid(tmp_path / "checkpoints")
    assert (folder.name, damaged) == (name_of(10), [])
    for file in (WEIGHTS, OPTIMIZER):
        assert all(torch.isfinite(tensor).all() for tensor in load_file(folder / file).values())
    assert [e["step"] for e in log_of(tmp_path) if e.get("skipped")] == [3, 4, 12, 13, 14]
    assert train_in(tmp_path, recipe).state.step == 20  # with the cause gone it goes on from there


def test_a_break_between_bad_steps_does_not_bring_the_patience_back(tmp_path):
    recipe = tiny("decoder-only", steps=20, checkpoint_every=1, validate_every=20)

    def poison(trainer):
        poison_loss(trainer, [7, 8, 9], float("nan"))

    with pytest.raises(FailedError):
        train_in(tmp_path, recipe, touch=poison)
    state = read_state(latest_valid(tmp_path / "checkpoints")[0] / STATE)
    assert (state.step, state.skipped) == (8, 2)
    with pytest.raises(FailedError):  # one more, and not three
        train_in(tmp_path, recipe, touch=poison)
    assert latest_valid(tmp_path / "checkpoints")[0].name == name_of(8)
    # The control: had it been forgotten, the run would go on.
    told = json.dumps({**asdict(state), "skipped": 0})
    last = latest_valid(tmp_path / "checkpoints")[0]
    rewrite(last, lambda folder: (folder / STATE).write_text(told))
    assert train_in(tmp_path, recipe, touch=poison).state.step == 20


@pytest.mark.parametrize("kind", ["weight", "moment", "average"])
def test_what_is_not_finite_is_never_saved(tmp_path, monkeypatch, kind):
    """Should all else fail: a bad number in a weight, however it came there."""
    true_step = loop.train_step

    def train_step(trainer, micro_batches):
        entry = true_step(trainer, micro_batches)
        if trainer.state.step == 7:
            first = trainer.trainable[0]
            bad = {
                "weight": first.data,
                "moment": trainer.optimizer.state[first]["exp_avg"],
                "average": next(iter(trainer.ema.values())),
            }[kind]
            bad.view(-1)[5] = float("inf")
        return entry

    monkeypatch.setattr(loop, "train_step", train_step)
    recipe = tiny(checkpoint_every=7, ema=0.9, validate_every=100)
    with pytest.raises(FailedError, match="numbers that are not finite: it is not saved"):
        train_in(tmp_path / kind, recipe)
    assert latest_valid(tmp_path / kind / "checkpoints") == (None, [])
    assert not (tmp_path / kind / "finished").exists()
