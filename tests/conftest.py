"""Every test starts from the same random state, in one thread: xdist uses the other cores."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # other people's models are built here, never fetched

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is written into the home of whoever runs the tests."""
    os.environ["LIMELIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def same_start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
