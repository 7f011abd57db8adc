"""A newcomer's first minutes: a clone and one command. Needs git, make and the registry."""

import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

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
    done = run("make", "demo", "QUICK=1", cwd=clone)
    assert done.returncode == 0, done.stderr
    assert "What next" in done.stdout
    page = clone / "runs" / "demo" / "explain.html"
    assert page.is_file()
    assert run("git", "status", "--porcelain", cwd=clone).stdout == "", "set-up left files behind"
    again = run("make", "demo", "QUICK=1", cwd=clone)
    assert again.returncode == 0
    assert "Setting up" not in again.stdout


def test_an_old_python_is_refused_with_a_sentence(clone):
    old = clone / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")  # what `sys.exit(sys.version_info < (3, 11))` gives
    old.chmod(0o755)
    done = run("make", "demo", f"PYTHON={old}", cwd=clone)
    assert done.returncode == 2
    assert "Limelight needs Python 3.11 or newer" in done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, built in an environment that pip makes for it; and its sources."""
    folder = tmp_path_factory.mktemp("built")
    run("git", "clone", "--quiet", str(ROOT), "source", cwd=folder)
    run(sys.executable, "-m", "venv", "builder", cwd=folder)
    python = str(folder / "builder" / "bin" / "python")
    for command in (["-m", "pip", "install", "--quiet", "build"], ["-m", "build", "source"]):
        done = run(python, *command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "source"


def tracked(source):
    """What git has of a clone."""
    return run("git", "ls-files", cwd=source).stdout.split()


def test_wheel_and_sdist_carry_all_that_they_should(built):
    (wheel,), (sdist,) = built.glob("dist/*.whl"), built.glob("dist/*.tar.gz")
    in_wheel = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert in_wheel == {name for name in tracked(built) if name.startswith("limelight/")}
    with tarfile.open(sdist) as tar:
        in_sdist = {member.name.partition("/")[2] for member in tar if member.isfile()}
    assert {name for name in tracked(built) if not name.startswith(".")} <= in_sdist


@pytest.fixture(scope="module", params=["whl", "tar.gz"])
def installed(built, request, tmp_path_factory):
    """A new environment with nothing of ours but what was built; it borrows torch and the rest."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "new", cwd=folder)
    (borrowed,) = (folder / "new").glob("lib/python*/site-packages")
    (borrowed / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    (file,) = built.glob(f"dist/*.{request.param}")
    pip = [str(folder / "new" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    done = run(*pip, "--no-deps", "--force-reinstall", str(file), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_what_was_built_gives_the_tour_from_anywhere(installed):
    where = "import limelight; print(limelight.__file__)"
    python = str(installed / "new" / "bin" / "python")
    assert run(python, "-c", where, cwd=installed).stdout.startswith(str(installed / "new"))
    done = run(python, "-m", "limelight", "--help", cwd=installed)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(str(installed / "new" / "bin" / "limelight"), "demo", "--quick", cwd=installed)
    assert done.returncode == 0, done.stderr
    assert "What next" in done.stdout
    assert "is not available here" not in done.stdout  # the models came along
    assert (installed / "runs" / "demo" / "explain.html").is_file()
