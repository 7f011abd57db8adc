"""Every test starts from the same random state, in one thread: xdist uses the other cores."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # other people's models are built here, never fetched

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # it is read when Triton is imported

from tests.doc_pages import awake, elsewhere


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is written into the home of whoever runs the tests."""
    os.environ["LIMELIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """Tests press Ctrl-C and hang up: `&` makes children ignore the one, nohup the other."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """A folder with `limelight` and `python` as processes that need not import torch first."""
    with awake() as folder:
        yield folder


@pytest.fixture(autouse=True)
def same_start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What of the docs is not run is told, so that nobody takes it for tested."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    if any("test_docs.py" in getattr(report, "nodeid", "") for report in reports):
        locations = [f"{block.location} ({block.needs})" for block in elsewhere()]
        terminalreporter.write_line(f"{len(locations)} blocks of the docs need other machines:")
        terminalreporter.write_line("  " + ", ".join(locations))
