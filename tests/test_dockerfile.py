"""The image, as far as it can be looked at without Docker: what it copies is what is needed."""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text("utf-8")).splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def steps(word):
    """What follows this word, on every line that begins with it."""
    return [line.split(maxsplit=1)[1] for line in LINES if line.split()[:1] == [word]]


def copied():
    """The files and folders that are copied, all to the same place."""
    return [name for step in steps("COPY") for name in step.split()[:-1]]


def ignored(name):
    """Whether Docker leaves a file out: the last line of .dockerignore that fits decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!")
        if not line or line.startswith("#"):
            continue
        parts = Path(name).parts
        whole = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        anywhere = pattern.removeprefix("**/")
        fits = any(fnmatch(p, pattern) for p in whole) or (
            anywhere != pattern and any(fnmatch(part, anywhere) for part in parts)
        )
        if fits:
            out = not line.startswith("!")
    return out


def files_of(name):
    """The files of a name, as the repository has them: without what Python makes beside them."""
    found = [ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*")
    names = [str(path.relative_to(ROOT)) for path in found if path.is_file()]
    return [name for name in names if "__pycache__" not in name]


def test_everything_that_is_copied_is_there_and_not_left_out():
    for name in copied():
        files = files_of(name)
        assert files, f"there is no {name}"
        assert not [file for file in files if ignored(file)]


def test_what_should_not_be_sent_along_is_left_out():
    """The control; and no run of anybody's goes into an image."""
    for name in (".venv/bin/python", "runs/demo/run.json", "tests/cli/test_cli.py", ".git/config"):
        assert ignored(name)
    assert ignored("limelight/text/__pycache__/named.cpython-312.pyc")


def test_all_that_an_installation_needs_is_copied():
    project = PROJECT["project"]
    for name in ("pyproject.toml", project["readme"], *project["license-files"], "limelight"):
        assert name in copied()
    install = " ".join(steps("RUN"))
    named = re.findall(r"--constraint (\S+)", install)
    assert set(named) == {"constraints.txt"} <= set(copied())
    assert len(named) == install.count("pip install")


def test_it_begins_with_a_python_that_will_do_and_a_command_that_there_is():
    version = re.fullmatch(r"python:3\.(\d+)-slim", steps("FROM")[0])
    assert int(version[1]) >= int(PROJECT["project"]["requires-python"].removeprefix(">=3."))
    (entry,) = re.findall(r"\"(\w+)\"", steps("ENTRYPOINT")[0])
    assert entry in PROJECT["project"]["scripts"]
    assert steps("USER") == ["limelight"]
    assert "useradd --create-home limelight" in steps("RUN")[0]


@pytest.mark.system  # asks the registry for what builds it
def test_an_installation_of_what_is_copied_has_all_of_the_package(tmp_path):
    for file in [file for name in copied() for file in files_of(name)]:
        (tmp_path / "source" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / "source" / file)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", tmp_path / "installed", tmp_path / "source"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "installed" / "limelight").rglob("*") if path.is_file()]
    made = {str(path.relative_to(tmp_path / "installed")) for path in files}
    assert {name for name in made if "__pycache__" not in name} == set(files_of("limelight"))
