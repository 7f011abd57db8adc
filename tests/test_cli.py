"""The command line as a person meets it: in a process of its own."""

import json
import os
import re
import subprocess
import sys

import pytest

from limelight.cli import COMMANDS


def limelight(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "limelight", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_answers_without_torch(arguments):
    code = "import sys; from limelight.cli import main; sys.argv[0] = 'limelight'\n"
    code += "try: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("usage: limelight")
    assert done.stderr.strip().endswith("False")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["info", "gpt2-123m"],
            "there is no recipe or model 'gpt2-123m': did you mean 'gpt2-124m'?",
        ),
        (["info", "nowhere.toml"], "cannot read the recipe nowhere.toml: No such file"),
        (["info", "reverse", "--devices", "0"], "--devices 0 is out of range"),
        (["info", "reverse", "--devices", "many"], "invalid"),
        (["info", "reverse", "--device", "2"], "--devices"),
        (["info"], "required"),
        (["inform", "reverse"], "info"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(arguments, sentence):
    done = limelight(*arguments)
    assert done.returncode == 2
    assert sentence in re.sub(r"[\s│]+", " ", done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_info_for_people_and_for_programs():
    done = limelight("info", "wmt14-en-de-base")
    assert done.returncode == 0
    assert "counted 63.1M, published 65M (Vaswani et al. 2017, table 3)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    facts = json.loads(limelight("info", "wmt14-en-de-base", "--json").stdout)
    assert facts["parameters"] == 63_119_496


def test_info_shares_gpt3_out():
    done = limelight("info", "gpt3-175b", "--devices", "1024")
    assert done.returncode == 0
    assert "each of 1024 devices" in done.stdout
    assert re.search(r"weights, gradients, Adam +2\.73GB", done.stdout)


@pytest.mark.parametrize("command", ["info gpt2-124m", "info reverse --json", "demo"])
@pytest.mark.parametrize("reader", ["true", "head -c 1"])
def test_a_reader_that_leaves_early_is_no_error(command, reader):
    line = f"set -o pipefail; {sys.executable} -m limelight {command} | {reader}"
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env=buffered
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_text_from_a_recipe_is_shown_as_it_is(tmp_path):
    file = tmp_path / "odd.toml"
    file.write_text('about = "see [/foo] [bold]"\n[model]\nvocab = 9\nlayers = 1\n')
    done = limelight("info", str(file))
    assert done.returncode == 0
    assert "see [/foo] [bold]" in done.stdout


def test_demo_shows_true_numbers():
    done = limelight("demo")
    assert done.returncode == 0
    assert "It adds up." in done.stdout
    rows = re.findall(r"^ (?:the|cat|sat|on|a|mat) +((?:\d\.\d{3} +){6})1\.000", done.stdout, re.M)
    assert len(rows) == 6
    for row in rows:
        assert abs(sum(map(float, row.split())) - 1) < 0.004
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_demo_with_colour_says_the_same():
    plain = limelight("demo").stdout
    coloured = limelight("demo", FORCE_COLOR="1").stdout
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
