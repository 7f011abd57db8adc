"""A newcomer's first minutes: a clone and one command. Needs git, make and the registry."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from limelight.recipe import recipe_names

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.system


def run(*command, cwd):
    """As from a terminal of one's own, outside this virtual environment."""
    outside = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return subprocess.run(
        command, cwd=cwd, env=outside, capture_output=True, text=True, check=False
    )


@pytest.fixture
def clone(tmp_path):
    done = run("git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "clone"


def test_make_demo_sets_itself_up(clone):
    done = run("make", "demo", cwd=clone)
    assert done.returncode == 0, done.stderr
    assert "It adds up." in done.stdout
    assert run("git", "status", "--porcelain", cwd=clone).stdout == "", "set-up left files behind"
    again = run("make", "demo", cwd=clone)
    assert "Setting up" not in again.stdout


def test_an_old_python_is_refused_with_a_sentence(clone):
    old = clone / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")  # what `sys.exit(sys.version_info < (3, 11))` gives
    old.chmod(0o755)
    done = run("make", "demo", f"PYTHON={old}", cwd=clone)
    assert done.returncode == 2
    assert "Limelight needs Python 3.11 or newer" in done.stderr


def test_the_wheel_carries_recipes_and_types(clone, tmp_path):
    wheel = run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", ".", str(clone), cwd=tmp_path
    )
    assert wheel.returncode == 0, wheel.stderr
    (file,) = tmp_path.glob("limelight-*.whl")
    names = ZipFile(file).namelist()
    for name in recipe_names():
        assert f"limelight/recipes/{name}.toml" in names
    assert "limelight/py.typed" in names
    assert not [name for name in names if name.startswith("tests")]
