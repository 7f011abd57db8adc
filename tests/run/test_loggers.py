"""The log reaches other programs, as they are called; without them it is as before."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from limelight.errors import UserError
from limelight.recipe import with_overrides
from limelight.run import loggers
from limelight.run.log import Log, read_log
from limelight.run.loggers import GuardedLoggers, check_loggers
from limelight.training.config import TrainConfig
from limelight.workflows.train import train
from tests.training.samples import tiny

STEPS = {"steps": 4, "validate_every": 4, "label_smoothing": 0.2}


@pytest.fixture
def wandb(monkeypatch):
    """The part of Weights & Biases that is used; it records its calls."""
    module, runs = ModuleType("wandb"), []

    class Run:
        def __init__(self, **options):
            self.id, self.options, self.rows, self.open = options["id"] or "id-1", options, [], True
            runs.append(self)

        def log(self, values, step):
            assert self.open
            self.rows.append((step, values))

        def finish(self):
            self.open = False

    module.init, module.runs = Run, runs
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    module = ModuleType("mlflow")
    module.begun, module.rows, module.params, module.open = [], [], {}, False

    def start_run(run_id=None, run_name=None):
        module.begun.append((run_id, run_name))
        module.open = True
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "run-1"))

    module.start_run = start_run
    module.log_params = module.params.update
    module.log_metrics = lambda values, step: module.rows.append((step, values))
    module.end_run = lambda: setattr(module, "open", False)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def lines_of(run, kind="lr"):
    return [entry for entry in read_log(run / "log.jsonl") if kind in entry]


def check_rows(run, rows):
    """Every number of every line is there, and nothing else."""
    told = {"training": lines_of(run), "validation": lines_of(run, "validation")}
    wanted = [
        (entry["step"], {f"{kind}/{k}": v for k, v in entry.items() if isinstance(v, float)})
        for kind, entries in told.items()
        for entry in entries
    ]
    assert sorted(rows, key=repr) == sorted(wanted, key=repr)
    assert {"training/loss", "training/objective"} <= wanted[0][1].keys()
    assert "validation/loss" in wanted[-1][1]


def test_both_receive_the_log_and_go_on_with_the_same_run(tmp_path, wandb, mlflow, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    recipe, run = tiny(**STEPS, log_to=("wandb", "mlflow")), tmp_path / "run"
    train(recipe, run, silent=True)
    (first,) = wandb.runs
    assert not first.open
    assert not mlflow.open
    check_rows(run, first.rows)
    check_rows(run, mlflow.rows)
    assert first.options["config"]["train"]["label_smoothing"] == 0.2
    assert mlflow.params["train.label_smoothing"] == 0.2
    assert (first.options["project"], first.options["name"]) == ("limelight", "run")
    assert json.loads((run / "loggers.json").read_text()) == {"wandb": "id-1", "mlflow": "run-1"}
    train(with_overrides(recipe, {"train.steps": 6}), run, silent=True)
    assert wandb.runs[1].options["id"] == "id-1"
    assert mlflow.begun == [(None, "run"), ("run-1", "run")]
    assert {step for step, _ in wandb.runs[1].rows} == {5, 6}


def test_what_is_not_asked_for_is_not_imported(tmp_path, wandb, mlflow):
    """The control."""
    train(tiny(**STEPS), tmp_path / "run", silent=True)
    assert wandb.runs == mlflow.begun == []
    assert not (tmp_path / "run" / "loggers.json").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_package_that_is_not_here_is_named_before_anything_is_written(
    tmp_path, monkeypatch, name
):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)
    sentence = rf"log_to='{name}' needs a package .*: pip install 'limelight\[{name}\]'"
    with pytest.raises(UserError, match=sentence):
        train(tiny(**STEPS, log_to=(name,)), tmp_path / "run", silent=True)
    assert not (tmp_path / "run").exists()


def test_an_unknown_logger_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no logger 'wandbb': did you mean 'wandb'"):
        TrainConfig(log_to=("wandbb",))


def test_one_of_your_own(tmp_path, monkeypatch):
    seen = []

    class Mine:
        def __init__(self, run, step):
            seen.append((run.name, step))

        def add(self, entry):
            seen.append(entry)

        def close(self):
            seen.append("closed")

    monkeypatch.setitem(loggers.LOGGERS, "mine", Mine)
    train(tiny(**STEPS, log_to=("mine",)), tmp_path / "run", silent=True)
    assert seen == [("run", 0), *read_log(tmp_path / "run" / "log.jsonl"), "closed"]


@pytest.mark.parametrize("where", ["__init__", "add", "close"])
def test_one_that_fails_is_left_out_and_the_training_goes_on(tmp_path, monkeypatch, where):
    class Failing:
        def __init__(self, run, step):
            self.fail("__init__")

        def fail(self, here):
            if here == where:
                raise ConnectionError("no network")

        def add(self, entry):
            self.fail("add")

        def close(self):
            self.fail("close")

    monkeypatch.setitem(loggers.LOGGERS, "failing", Failing)
    told = []
    log = Log(tmp_path / "log", GuardedLoggers(["failing"], tmp_path, 0, told.append))
    for step in (1, 2):
        log.add({"step": step, "loss": 1.0})
    log.close()
    assert len(told) == 1
    assert told[0].endswith(": no network")
    assert [entry["step"] for entry in read_log(tmp_path / "log")] == [1, 2]


def test_the_packages_that_are_here_are_found():
    check_loggers(["tensorboard"])
