"""Small published models as run folders, imported once for a module."""

from functools import cache

import pytest

from limelight.interop.import_model import import_model
from tests.interop.samples import hub_folder, theirs


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """`imported("llama")`: the run folder, and the model of `transformers` that it came from."""
    base = tmp_path_factory.mktemp("imported")

    @cache
    def find(kind, head="BertForMaskedLM"):
        origin = theirs(kind, 3, head)
        hub = hub_folder(base / f"{kind}-{head}-hub", origin, kind)
        import_model(hub, base / f"{kind}-{head}")
        return base / f"{kind}-{head}", origin

    return find
