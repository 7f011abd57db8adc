"""Layers divided, weights sharded, and both: the losses are those of one process."""

import pytest

from limelight.run.log import read_log
from tests.training.processes import SECONDS, command, many, said_of, train, train_command

STEPS = 6
SETTINGS = [
    f"--train.steps={STEPS}",
    "--model.heads=4",
    "--model.layers=2",
    "--train.batch-tokens=40",
    "--train.checkpoint-every=3",
    "--train.average-checkpoints=0",
    "--train.clip-grad-norm=1",
]
FSDP, TENSOR = "--train.fsdp", "--train.tensor-parallel"


def train_together(run, count, settings):
    with many(command, train_command(run, settings), folder=run, count=count) as children:
        for rank, child in enumerate(children):
            child.join(SECONDS)
            assert child.exitcode == 0, said_of(run, str(rank)).read_text()


def losses(run):
    return [e["objective"] for e in read_log(run / "log.jsonl") if "lr" in e]


@pytest.mark.parametrize(("count", "how"), [(2, [f"{TENSOR}=2"]), (4, [FSDP, f"{TENSOR}=2"])])
def test_same(tmp_path, count, how):
    data = count // 2
    train(tmp_path / "one", [*SETTINGS, f"--train.grad-accumulation={data}"])
    train_together(tmp_path / "many", count, [*SETTINGS, *how])
    print(losses(tmp_path/"many"), losses(tmp_path/"one"))
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
