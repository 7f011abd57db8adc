"""The command line as a person meets it: in a process of its own."""

import json
import os
import re
import subprocess
import sys

import pytest

from limelight import __version__
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
        (["info", "gpt2-123m"], "'gpt2-123m': did you mean 'gpt2-124m'?"),
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


@pytest.mark.parametrize("command", ["info gpt2-124m", "info reverse --json", "demo --quick"])
@pytest.mark.parametrize("reader", ["true", "head -c 1"])
def test_a_reader_that_leaves_early_is_no_error(command, reader, tmp_path):
    command += f" --run {tmp_path}" if "demo" in command else ""
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


def test_the_overview_has_every_command_and_fits(tmp_path):
    for arguments in ([], ["--help"], ["-h"]):
        done = limelight(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: limelight COMMAND")
        assert re.findall(r"^  (\w+)  ", done.stdout, re.MULTILINE) == list(COMMANDS)
        assert max(map(len, done.stdout.splitlines())) <= 80
    assert limelight("--version").stdout == f"limelight {__version__}\n"


COMPLETE = """
source {script}
COMP_WORDS=(limelight {words}) COMP_CWORD={place} COMP_LINE="limelight {words}"
COMP_POINT=${{#COMP_LINE}}
$(complete -p limelight | sed 's/.*-F \\([^ ]*\\).*/\\1/') limelight
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tra"], {"train", "translate"}),
        (["translate", "--be"], {"--beam"}),
        (["evaluate", "--split", "v"], {"valid"}),
    ],
)
def test_bash_completes_commands_options_and_choices(tmp_path, words, found):
    script = tmp_path / "script"
    script.write_text(limelight("completion", "bash").stdout, "utf-8")
    asked = COMPLETE.format(script=script, words=" ".join(words), place=len(words))
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_their_own(shell):
    done = limelight("completion", shell)
    assert done.returncode == 0
    assert "translate" in done.stdout
    own = {"zsh": "#compdef limelight", "fish": "complete --no-files --command"}
    assert own[shell] in done.stdout
