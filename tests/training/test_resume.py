"""A run that was interrupted anywhere ends as if nothing had happened: equal to the last bit."""

import json
import shutil
import signal
from contextlib import nullcontext
from dataclasses import asdict, fields

import pytest
import torch
from safetensors.torch import load_file, save_file

from limelight.errors import FailedError, UserError
from limelight.run.atomic import MANIFEST
from limelight.run.weights import WEIGHTS, name_of
from limelight.training import loop
from limelight.training.checkpoint import OPTIMIZER, STATE, TrainState, read_state
from limelight.training.trainer import seed_dropout
from limelight.workflows import build
from limelight.workflows.verify_resume import verify_resume
from tests.training.samples import hashes, log_of, rewrite, texts, tiny, train_in

STEPS = 36
EXACT = {  # every part of the state is in use: an average, a best step, a half-full log line
    "steps": STEPS,
    "learning_rate": 1.0,  # so rough that not every validation is better than all before
    "grad_accumulation": 3,
    "ema": 0.5,
    "patience": STEPS,
    "validate_every": 7,
    "log_every": 4,
    "keep_checkpoints": STEPS,
}
RESUMED = {"checkpoint_every": STEPS}  # when a resumed run saves changes nothing, and saves time


def outcome(folder, step=STEPS):
    """All that a run leaves of itself: its last checkpoint, the finished weights, the log."""
    last = [hashes(folder / part / name_of(step)) for part in ("checkpoints", "finished")]
    return [*last, log_of(folder)]


def break_off(run, folder, step):
    """The same run as if it had been killed after the checkpoint of a step; the best is spared."""
    best = read_state(run / "checkpoints" / name_of(step) / STATE).best_step
    leave = [name_of(s) for s in range(STEPS + 1) if s not in (step, best)]
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("finished", *leave))
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    assert left == {name_of(s) for s in (step, best) if s}
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a break, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trainer = train_in(folder, tiny("decoder-only", **EXACT, checkpoint_every=1))
    assert trainer.state.step == STEPS
    assert trainer.state.epoch >= 3
    return folder


def resume(whole, folder, step, alter=lambda _: None):
    broken = break_off(whole, folder, step)
    alter(broken / "checkpoints" / name_of(step))
    train_in(broken, tiny("decoder-only", **EXACT, **RESUMED))
    return outcome(broken)


# The first and the last ones, those around a validation and an end of an epoch, and some between.
USUAL = {1, 2, 3, 6, 7, 8, 12, 13, 17, 21, 24, 28, 29, STEPS - 1, STEPS}


@pytest.mark.parametrize(
    "step",
    [
        step if step in USUAL else pytest.param(step, marks=pytest.mark.soak)
        for step in range(1, STEPS + 1)
    ],
)
def test_resumed_after_any_step_it_ends_the_same(whole, tmp_path, step):
    assert resume(whole, tmp_path / "run", step) == outcome(whole)


# What the test above would miss if it did not matter: each part of the state is lost once.

LATE = 29  # a step at which every number of the state has moved on from where it began


def lose_number(name):
    def change(checkpoint, whole):
        told = json.loads((checkpoint / STATE).read_text())
        assert told[name] != asdict(TrainState())[name], f"{name} is as in the beginning anyway"
        told[name] = asdict(TrainState())[name]
        (checkpoint / STATE).write_text(json.dumps(told, indent=1))

    return change


def lose_tensors(file, prefix):
    """Bring tensors of the first step back."""

    def change(checkpoint, whole):
        now, first = (
            load_file(checkpoint / file),
            load_file(whole / "checkpoints/step-000001" / file),
        )
        lost = [name for name in now if name.startswith(prefix)]
        assert any(not torch.equal(now[name], first[name]) for name in lost)
        save_file({**now, **{name: first[name] for name in lost}}, checkpoint / file)

    return change


LOSSES = {  # but for `skipped`: see test_nan
    **{f.name: lose_number(f.name) for f in fields(TrainState) if f.name != "skipped"},
    "weights": lose_tensors(WEIGHTS, ""),
    "first moment": lose_tensors(OPTIMIZER, "exp_avg."),
    "second moment": lose_tensors(OPTIMIZER, "exp_avg_sq."),
    "Adam's step": lose_tensors(OPTIMIZER, "step."),
    "running average": lose_tensors(OPTIMIZER, "ema."),
}


@pytest.mark.parametrize("lost", LOSSES)
def test_nothing_in_a_checkpoint_is_there_for_nothing(whole, tmp_path, lost):
    def lose(checkpoint):
        rewrite(checkpoint, lambda folder: LOSSES[lost](folder, whole))

    if lost == "step":  # it is in the name of the folder too
        with pytest.raises(UserError, match="step=0 is not that of step-000029"):
            resume(whole, tmp_path / "run", LATE, lose)
    else:
        assert resume(whole, tmp_path / "run", LATE, lose) != outcome(whole)


def test_vouching_anew_for_the_same_files_changes_nothing(whole, tmp_path):
    """The control of the controls."""
    same = resume(whole, tmp_path / "run", LATE, lambda folder: rewrite(folder, lambda _: None))
    assert same == outcome(whole)


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder-only", "recurrent-encoder-decoder"])
def test_every_family_resumes(tmp_path, family):
    data = texts(tmp_path) if family == "encoder-only" else None
    recipe = tiny(family, data, grad_accumulation=2, checkpoint_every=5)
    ends = []
    for name in ("whole", "broken"):
        train_in(tmp_path / name, recipe)
        if name == "broken":
            shutil.rmtree(tmp_path / name / "checkpoints" / name_of(10))
            shutil.rmtree(tmp_path / name / "finished")
            assert train_in(tmp_path / name, recipe).state.step == 10
        ends.append([hashes(tmp_path / name / "checkpoints"), log_of(tmp_path / name)])
    assert ends[0] == ends[1]


def leave_at(monkeypatch, steps):
    """Have the process asked to leave during these steps."""
    true_step = loop.train_step

    def train_step(trainer, micro_batches):
        if trainer.state.step + 1 in steps:
            signal.raise_signal(signal.SIGTERM)
        return true_step(trainer, micro_batches)

    monkeypatch.setattr(loop, "train_step", train_step)


def test_interruptions_leave_no_trace_in_the_average(tmp_path, monkeypatch):
    """Whoever leaves saves, between the regular checkpoints; only those are averaged."""
    recipe = tiny(
        steps=20, checkpoint_every=5, average_checkpoints=3, keep_checkpoints=1, validate_every=6
    )
    train_in(tmp_path / "whole", recipe)
    leave_at(monkeypatch, [7, 12, 13, 17])
    for step in (7, 12, 13, 17):
        trainer = train_in(tmp_path / "broken", recipe, expect=signal.SIGTERM)
        assert trainer.state.step == step
        assert (tmp_path / "broken" / "checkpoints" / name_of(step)).is_dir()
    train_in(tmp_path / "broken", recipe)
    ends = [
        [hashes(tmp_path / name / "finished"), log_of(tmp_path / name)]
        for name in ("whole", "broken")
    ]
    assert ends[0] == ends[1]


def test_asked_to_leave_before_the_first_step_it_can_still_go_on(tmp_path, monkeypatch):
    recipe = tiny(steps=3)
    train_in(tmp_path / "whole", recipe)
    monkeypatch.setattr(loop, "_catch_signals", lambda: nullcontext([signal.SIGTERM]))
    assert train_in(tmp_path / "broken", recipe, expect=signal.SIGTERM).state.step == 0
    monkeypatch.undo()
    train_in(tmp_path / "broken", recipe)
    assert outcome(tmp_path / "whole", 3) == outcome(tmp_path / "broken", 3)


def test_dropout_is_drawn_anew_for_every_seed_step_and_share():
    def drawn(*place):
        seed_dropout(torch.device("cpu"), *place)
        return torch.rand(4).tolist()

    places = [(seed, step, share) for seed in (1, 2, 12) for step in (1, 2, 11) for share in (0, 1)]
    first = [drawn(*place) for place in places]
    assert [drawn(*place) for place in places] == first
    assert len({tuple(numbers) for numbers in first}) == len(places)


def test_resuming_can_be_proved_for_any_recipe(tmp_path):
    """Even one whose warm-up is longer than the proof."""
    recipe = tiny(schedule="cosine", steps=100, warmup=20)
    verify_resume(recipe, tmp_path)
    certificate = json.loads((tmp_path / "resume-certificate.json").read_text())
    assert certificate["equal"] is True
    assert certificate["uninterrupted"] == certificate["resumed"]
    assert {WEIGHTS, OPTIMIZER, STATE, MANIFEST} == certificate["resumed"].keys()


def test_a_proof_leaves_nothing_but_its_certificate(tmp_path, monkeypatch):
    """It needs room for a few checkpoints, on the disk that was chosen for the run."""
    most = []
    true_step = loop.train_step

    def train_step(trainer, micro_batches):
        assert trainer.run.path.is_relative_to(tmp_path)
        most.append(len(list(tmp_path.rglob(WEIGHTS))))
        return true_step(trainer, micro_batches)

    monkeypatch.setattr(loop, "train_step", train_step)
    assert verify_resume(tiny(batch_tokens="auto"), tmp_path) == 0
    assert len(most) == 6 + 6 + 3
    assert max(most) <= 5
    assert [path.name for path in tmp_path.iterdir()] == ["resume-certificate.json"]


def test_a_proof_decides_once_how_large_a_batch_is(tmp_path, monkeypatch):
    """What fits is another size whenever one looks."""
    sizes = iter([40, 60, 80])
    monkeypatch.setattr(build, "fit_batch", lambda *_, **__: next(sizes))
    assert verify_resume(tiny(batch_tokens="auto"), tmp_path) == 0
    assert next(sizes) == 60


def test_a_proof_that_is_interrupted_proves_nothing(tmp_path, monkeypatch):
    leave_at(monkeypatch, [4])
    assert verify_resume(tiny(), tmp_path) == signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_proof_is_refused_to_many_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="--verify-resume is for one process: run it without torch"):
        verify_resume(tiny(), tmp_path)


def test_a_proof_that_fails_says_so(tmp_path, monkeypatch):
    """The control: dropout that is drawn from where the process happens to stand."""
    monkeypatch.setattr("limelight.training.trainer.seed_dropout", lambda *_: None)
    with pytest.raises(FailedError, match="a resumed run differs"):
        verify_resume(tiny(), tmp_path)
    assert json.loads((tmp_path / "resume-certificate.json").read_text())["equal"] is False
