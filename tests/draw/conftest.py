"""A tiny model that draws, trained once for all tests here."""

import pytest

from limelight.workflows.train import train

TINY = {
    "images.steps": 6,
    "images.batch": 8,
    "images.channels": 8,
    "model.layers": 2,
    "model.d_model": 32,
    "model.heads": 2,
    "train.steps": 6,
    "train.warmup": 2,
    "train.batch_tokens": 640,
    "train.checkpoint_every": 2,
    "train.validate_every": 6,
    "train.log_every": 1,
}


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    run = tmp_path_factory.mktemp("draw") / "run"
    assert train("shapes-small", run, TINY, silent=True) == 0
    return run
