"""The command line as a person meets it: in a process of its own."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from limelight import __version__
from limelight.cli import COMMANDS, main
from limelight.recipe import recipe_names
from tests.doc_pages import ROOT


@pytest.fixture
def limelight(monkeypatch, capsys):
    """A command in this process, which has imported everything already."""

    def call(*arguments):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["limelight", *arguments])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as left:
            code = left.code
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return call


def test_help_answers_without_torch():
    code = """
import sys
from limelight.cli import COMMANDS, main
for words in ([], *([name] for name in COMMANDS)):
    sys.argv = ["limelight", *words, "--help"]
    main()
print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "False\n")
    called = re.findall(r"^usage: limelight (\S+)", done.stdout, re.MULTILINE)
    assert called == ["COMMAND", *COMMANDS]


def test_a_model_answers_without_what_training_imports(run):
    """Torch's compiler and FSDP would take longer to import than all else."""
    code = """
import sys, limelight
from limelight.extensions import extend_from_environment
extend_from_environment()
print(limelight.load(sys.argv[1]).translate("a b").text)
print({"torch._dynamo", "torch.distributed.fsdp", "sympy"} & sys.modules.keys())
import limelight.training.distributed
print("torch.distributed.fsdp" in sys.modules)
"""
    command = [sys.executable, "-c", code, run("reverse")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["b a", "set()", "True"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["info", "gpt2-123m"], "'gpt2-123m': did you mean 'gpt2-124m'?"),
        (["info", "nowhere.toml"], "cannot read the recipe nowhere.toml: No such file"),
        (["info", "reverse", "--devices", "0"], "--devices 0 is out of range"),
        (["info", "reverse", "--devices", "many"], "--devices many: not a whole number"),
        (["info", "reverse", "--devices", "9" * 5000], "9...: not a whole number"),
        (["info", "reverse", "--device", "2"], "info has no option --device: did you mean --devi"),
        (["info", "reverse", "--json=yes"], "--json takes no value"),
        (["info", "reverse", "--devices"], "--devices needs a value: write --devices N"),
        (["info", "reverse", "--devices", "--json"], "--devices needs a value: write --devices N"),
        (["info", "reverse", "--set"], "--set needs a value: write --set TABLE.SETTING=VALUE"),
        (["info", "reverse", "--model.layers"], "--model.layers needs a value: write --model.lay"),
        (
            ["info", "reverse", "gpt2-124m"],
            "info takes RECIPE|RUN, so gpt2-124m is one too many: see",
        ),
        (["info", ""], "RECIPE|RUN is empty: is a variable not set?"),
        (["info"], "info needs RECIPE|RUN: see limelight info --help"),
        (
            ["info", "chat", "--model.layers", "9"],
            "'model.layers=9' cannot be changed in a trained",
        ),
        (["write", "writer", "Hi", "--beam", "3"], "no option --beam: did you mean --decode.beam?"),
        (["write", "writer", "Hi", "--top-p", "all"], "--top-p all: not a number"),
        (["write", "writer", "-x"], "write has no option -x"),
        (["translate"], "translate needs RUN: see limelight translate --help"),
        (["translate", "", "hi"], "RUN is empty: is a variable not set?"),
        (["translate", "en-de", "hi", "--ensemble", ""], "--ensemble is empty: is a variable"),
        (["translate", "en-de", "hi", "--prefix"], "--prefix needs a value: write --prefix TEXT"),
        (["evaluate", "runs/a", "--data.test"], "--data.test needs a value: write --data.test"),
        (["evaluate", "runs/a", "--split", "foo"], "there is no split 'foo': choose one of: "),
        (["fill", "fill"], "fill needs TEXT: see limelight fill --help"),
        (
            ["fill", "fill", "a ___", "b ___"],
            "fill takes RUN TEXT, so 'b ___' is one too many: put",
        ),
        (["fill", "fill", "a ___", "--decode.beam", "3"], "no settings that --decode.beam=3 could"),
        (
            ["classify", "x", "--set", "a\nb"],
            r"classify has no settings that --'a\nb' could change",
        ),
        (["train", "reverse"], "train needs --run FOLDER: see limelight train --help"),
        (["train", "--run", "nowhere"], "nowhere has no run to resume: name a RECIPE"),
        (["train", "reverse", "--run", "x", "--from", ""], "--from is empty: is a variable"),
        (["serve"], "serve needs RUN [RUN ...]: see limelight serve --help"),
        (["serve", "x", "--limits.queue"], "--limits.queue needs a value: write --limits.queue V"),
        (["serve", "chat", "--allowed-hosts", "http://x"], "'http://x'"),
        (["serve", "chat", "--allowed-origins", "foo"], "'foo'"),
        (["data", "chek", "reverse"], "there is no action 'chek': did you mean 'check'?"),
        (
            ["export", "writer", "out", "--to", "onx"],
            "there is no format 'onx': did you mean 'onnx'",
        ),
        (["completion", "csh"], "there is no shell 'csh': did you mean"),
        (["--helpp"], "limelight has no option --helpp: see limelight --help"),
        (["inform", "reverse"], "info"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(limelight, arguments, sentence):
    done = limelight(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("limelight: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert done.stdout == ""


def test_info_for_people_and_for_programs(limelight):
    done = limelight("info", "wmt14-en-de-base")
    assert done.returncode == 0
    assert "counted 63.1M, published 65M (Vaswani et al. 2017, table 3)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    facts = json.loads(limelight("info", "wmt14-en-de-base", "--json").stdout)
    assert facts["parameters"] == 63_119_496


def test_all_recipes_are_listed_with_what_they_are_for(limelight):
    listed = limelight("recipes").stdout
    told = json.loads(limelight("recipes", "--json").stdout)["recipes"]
    assert [recipe["name"] for recipe in told] == recipe_names()
    for recipe in told:
        assert recipe["about"]
        assert any(recipe["name"] in line.split() for line in listed.splitlines())


def test_the_help_of_data_says_that_check_comes_first(limelight):
    first = limelight("data", "--help").stdout.splitlines()[0]
    assert first.startswith("usage: limelight data check RECIPE")


def test_info_shares_gpt3_out(limelight):
    done = limelight("info", "gpt3-175b", "--devices", "1024")
    assert done.returncode == 0
    assert "on each of 1,024 devices" in done.stdout
    for part, size in ("weights", "682MB"), ("optimizer", "1.36GB"):
        assert re.search(rf"^ {part} +{re.escape(size)}", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("command", ["info gpt2-124m", "info reverse --json", "demo --quick"])
@pytest.mark.parametrize("reader", ["true", "head -c 1"])
def test_a_reader_that_leaves_early_is_no_error(programs, command, reader, tmp_path):
    command += f" --run {tmp_path}" if "demo" in command else ""
    line = f"set -o pipefail; {programs}/limelight {command} | {reader}"
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env=buffered
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_text_from_a_recipe_is_shown_as_it_is(limelight, tmp_path):
    file = tmp_path / "odd.toml"
    file.write_text('about = "see [/foo] [bold]"\n[model]\nvocab = 9\nlayers = 1\n')
    done = limelight("info", str(file))
    assert done.returncode == 0
    assert "see [/foo] [bold]" in done.stdout


def test_the_overview_has_every_command_and_fits(limelight):
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
def test_bash_completes_commands_options_and_choices(limelight, tmp_path, words, found):
    script = tmp_path / "script"
    script.write_text(limelight("completion", "bash").stdout, "utf-8")
    asked = COMPLETE.format(script=script, words=" ".join(words), place=len(words))
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_their_own(limelight, shell):
    done = limelight("completion", shell)
    assert done.returncode == 0
    assert "translate" in done.stdout
    own = {"zsh": "#compdef limelight", "fish": "complete -c limelight -n"}
    assert own[shell] in done.stdout


def test_ctrl_c_before_the_command_is_read_is_no_crash():
    """Whoever is quick meets Python while it still imports."""
    code = """
import runpy, sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "limelight.errors":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
sys.argv[1:] = ["models"]
"""
    for start in ("runpy.run_module('limelight', run_name='__main__')", CONSOLE_SCRIPT):
        done = subprocess.run(
            [sys.executable, "-c", code + start], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (130, "")
        assert done.stderr == "limelight: interrupted\n"


CONSOLE_SCRIPT = "from limelight.__main__ import main; sys.exit(main())"  # as installers write it


def test_the_console_script_is_the_one_above():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"limelight": "limelight.__main__:main"}
