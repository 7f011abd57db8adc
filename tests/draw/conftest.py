"""A tiny model that draws, trained once for all tests here."""

import pytest

from limelight.workflows.train import train
from tests.tasks.conftest import DRAWS


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    run = tmp_path_factory.mktemp("draw") / "run"
    assert train("shapes-small", run, DRAWS, silent=True) == 0
    return run
