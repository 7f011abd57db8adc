"""What README and docs tell people to run is run here, and what they show is what comes out."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from limelight.cli import COMMANDS
from limelight.decode.config import DecodeConfig
from limelight.recipe import parse_recipe, recipe_names
from tests.test_faults import FAULTS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def run(arguments, folder):
    """A command as a person runs it, in a folder of its own."""
    own = {"PYTHONPATH": str(ROOT), "LIMELIGHT_CACHE": str(folder / "cache")}
    own["PATH"] = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **own},
    )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "sh")], ids=lambda p: p.name
)
def test_shell_commands_run_one_after_the_other(page, tmp_path):
    (tmp_path / "limelight").write_text(f'#!/bin/sh\nexec {sys.executable} -m limelight "$@"\n')
    (tmp_path / "limelight").chmod(0o755)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    for command in [line.split("#")[0].strip() for line in lines if line.strip()]:
        program, *arguments = shlex.split(command)
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert arguments[0] in targets  # the targets themselves are run by CI
            continue
        assert program in ("limelight", "printf")  # which makes a file, or the lines of a pipe
        done = run(["bash", "-o", "pipefail", "-c", command], tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or done.stderr or ">" in command


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda p: p.name
)
def test_python_blocks_run_from_top_to_bottom(page, tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks(page, "python")))
    done = run([sys.executable, script], tmp_path)
    assert done.returncode == 0, done.stderr


def test_recipes_in_the_docs_are_valid():
    shown = [block for page in PAGES for block in blocks(page, "toml")]
    assert shown
    for text in shown:
        assert parse_recipe("shown.toml", text).model.vocab


def test_the_readme_shows_what_the_demo_prints():
    done = subprocess.run(
        [sys.executable, "-m", "limelight", "demo"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    (shown,) = blocks(ROOT / "README.md", "text")
    assert printed.startswith(shown.rstrip())


def test_every_option_of_a_trained_model_has_a_line():
    text = (ROOT / "docs" / "use.md").read_text()
    for name in ("translate", "chat", "write", "fill", "classify", "embed", "score"):
        assert f"limelight {name} " in text
        others = {"run", "text", "prompt", "set"}
        for option in signature(COMMANDS[name]).parameters.keys() - others:
            (line,) = re.findall(rf"^\| .*`--{option.replace('_', '-')}\b.*", text, re.M)
            assert name in line or ("all" in line and name != "embed"), f"{name} --{option}"
    for setting in fields(DecodeConfig):
        assert re.search(rf"^\| .*`{setting.name}`", text, re.M), setting.name


def test_the_readme_counts_and_names_truly():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in recipe_names())
    assert len(FAULTS) == 37
    assert "thirty-seven planted" in text.replace("\n", " ")


def test_links_lead_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "LAB.md"]
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert broken == []
