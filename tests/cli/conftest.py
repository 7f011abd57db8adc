"""Tiny trained models, those of the tasks' tests; and the command line in this process."""

import io

import pytest

from limelight.cli import main
from tests.tasks.conftest import model, run  # noqa: F401


@pytest.fixture
def limelight(monkeypatch, capfdbinary):
    """The command in this process, which has loaded torch already: code, output, and complaints."""

    def call(*arguments, stdin=b""):
        monkeypatch.setattr("sys.argv", ["limelight", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
        out, err = capfdbinary.readouterr()
        return code, out.decode().removesuffix("\n").split("\n"), err.decode()

    return call
