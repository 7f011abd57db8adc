"""Services for the tests, with the briefly trained models of the tasks' tests."""

import pytest

import limelight
from tests.serve.samples import Served, exact
from tests.tasks.conftest import model, run  # noqa: F401  (fixtures)


@pytest.fixture(scope="package")
def service(run):  # noqa: F811
    """A translator, a writer and a chatbot in float64, and one that draws: for who only asks."""
    runs = [exact(run(name)) for name in ("reverse", "writer", "chat")]
    with Served(*runs, run("draw"), texts=40) as served:
        yield served


@pytest.fixture(scope="package")
def as_trained(run):  # noqa: F811
    """One model of every family, in float32; `rnn` has no attention."""
    names = ("reverse", "writer", "bert", "rnn", "classifier")
    with Served(*map(run, names)) as served:
        yield served


@pytest.fixture(scope="session")
def known(run):  # noqa: F811
    """The same models in this process."""
    return {name: limelight.load(exact(run(name))) for name in ("reverse", "writer", "chat")}
