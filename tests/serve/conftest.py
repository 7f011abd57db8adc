"""Services for the tests, with the briefly trained models of the tasks' tests."""

import pytest

import limelight
from tests.serve.samples import Served, exact
from tests.tasks.conftest import model, run  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def service(run):  # noqa: F811
    """A translator, a writer and a chatbot in float64, for tests that only ask."""
    with Served(*(exact(run(name)) for name in ("reverse", "writer", "chat"))) as served:
        yield served


@pytest.fixture(scope="session")
def known(run):  # noqa: F811
    """The same models in this process."""
    return {name: limelight.load(exact(run(name))) for name in ("reverse", "writer", "chat")}
