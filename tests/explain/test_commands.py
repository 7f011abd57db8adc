"""`limelight explain` as a person runs it: every command of docs/explain.md, and their mistakes."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from limelight.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
LINES = [
    shlex.split(line)[1:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
]
TRAIN = [line for line in LINES if line[0] == "train"]
COMMANDS = [line for line in LINES if line[0] != "train"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the page's models have been trained."""
    path = tmp_path_factory.mktemp("explain")
    before = os.getcwd()
    os.chdir(path)
    try:
        for line in TRAIN:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", ["limelight", *line])
                main()
    finally:
        os.chdir(before)
    return path


@pytest.fixture
def limelight(folder, monkeypatch, capsys):
    def run(*arguments, **environment):
        monkeypatch.chdir(folder)
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": "80", "TERM": "xterm-256color", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["limelight", *arguments])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code
        return (code, *capsys.readouterr())

    return run


def test_the_page_shows_every_option_and_stop():
    shown = " ".join(word for command in COMMANDS for word in command)
    options = ("stage", "layer", "head", "word", "target", "follow", "figure", "html", "json")
    for option in (*options, "change", "which-head", "step"):
        assert f"--{option}" in shown
        assert f"`--{option}" in PAGE


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_of_the_page_with_and_without_colour(command, limelight):
    code, plain, told = limelight(*command)
    assert code == 0
    if "--json" in command:
        checks = json.loads(plain)["checks"]
        stage = "--stage" in command
        assert all(c["passed"] for c in checks) if stage else checks["replay_same_words"]
        return
    if "--figure" in command:
        assert "drawn into attention.svg" in told
        assert Path("attention.svg").read_bytes().startswith(b"<?xml")
        return
    if "--html" in command:
        assert "written into walk.html" in told
        assert plain == ""
        assert Path("walk.html").read_text("utf-8").startswith("<!doctype html>")
        return
    _, colourless, _ = limelight(*command, FORCE_COLOR="1", NO_COLOR="1")
    _, coloured, _ = limelight(*command, FORCE_COLOR="1")
    assert "✓" in plain or {"--follow", "--change", "--which-head"} & {*command}
    assert "✗" not in plain
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    heat_map = "each row is a query" in plain or "(numbers 1 to" in plain
    assert ("48;" in coloured) == heat_map  # which has a coloured ground
    for text in (coloured, colourless):
        assert re.sub(r"\x1b\[[0-9;]*m", "", text) == plain
    assert "48;" not in colourless
    assert max(cell_len(line) for line in plain.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--layer", "3"], "there is no layer 3: this model has 1 to 2"),
        (["--layer", "-1"], "there is no layer -1"),
        (["--head", "0"], "there is no head 0: this model has 1 to 4"),
        (["--head", "5"], "there is no head 5"),
        (["--word", "giraffe"], "there is no word 'giraffe' here, but: Hi"),
        (["--stop", "scoers"], "there is no stage 'scoers': did you mean 'scores'?"),
        (["--stop", "c"], "'c' could be cross or classifier: write more of the name"),
        (["--stop", "zz"], "there is no stage 'zz': choose one of"),
        (["--figure", "picture.gif"], "must end in .svg, .png, .pdf"),
        (["--model.layers", "3"], "only [decode] can"),
        (["--tag", "de"], "this model learned no tags"),
        (["--follow", "--stop", "scores"], "--follow and --stage cannot be combined: choose one"),
        (["--step", "30"], "has no checkpoint of step 30: it has 20, 40"),
        (["--follow", "--json"], "--follow and --json cannot be combined: choose one"),
        (["--html", "a.html", "--json"], "--json and --html cannot be combined: choose one"),
        (["--json", "--layer", "1"], "--json covers all layers, heads and words: leave --layer"),
        (["--json", "--word", "Hi"], "--json covers all layers, heads and words: leave --word"),
        (["--figure", "a.svg", "--word", "Hi"], "--figure draws all words: leave --word out"),
        (["--figure", "a.svg", "--follow"], "--follow and --figure cannot be combined"),
        (["--html", "a.html", "--figure", "a.svg", "--stop", "cross"], "--stage and --html cannot"),
        (["--change", "decoder.0.cros=off"], "there is no tap 'decoder.0.cros': did you mean"),
        (["--change", "decoder.0.cross@5=off"], "there is no head 5: this model has 1 to 4"),
        (["--change", "decoder.2=off"], "there is no tap 'decoder.2': did you mean 'decoder."),
        (["--change", "decoder.0.cross"], "'decoder.0.cross' is not a change: write TAP=off"),
        (["--change", "decoder.0.cross=out"], "there is no change 'out': "),
        (["--change", "source:99=hide"], "there is no source token 99"),
        (["--change", "target:99=Hi"], "target:99=Hi is out of reach: the target has"),
        (["--change", "encoder.output=from:Hi"], "choose a text with as many tokens"),
        (["--change", "decoder.0=off", "--layer", "1"], "--layer is for a stage: add --stage"),
        (["--which-head", "--change", "decoder.0=off"], "--which-head and --change cannot be"),
        (["--which-head", "--head", "1"], "--which-head and --head cannot be combined"),
        (["--target", "e" * 3000], "tokens, and the model has room for 64: shorten it"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(arguments, sentence, limelight):
    code, out, err = limelight("explain", "runs/chat", "Hi how are you", *arguments)
    assert code == 2
    assert sentence in err
    assert out == ""
    assert not list(Path().glob("a.*"))  # and nothing was done of it


def test_changes_and_rankings_as_json_and_at_a_stage(limelight):
    given = ["explain", "runs/chat", "Hi how are you", "--change", "decoder.0.cross@2=off"]
    found = json.loads(limelight(*given, "--json")[1])
    assert found["changes"] == ["decoder.0.cross@2=off"]
    assert {row[0] for row in found["comparison"]["attention"]} >= {"decoder.0.cross.weights"}
    _, shown, _ = limelight(*given, "--stage", "cross", "--layer", "1", "--head", "2")
    assert re.search(r"^changed +decoder\.0\.cross@2=off *$", shown, re.M)
    assert "✗ every row sums to 1" in shown
    assert "A check fails where a change has replaced a value." in shown
    _, other, _ = limelight(*given, "--stage", "cross", "--layer", "1", "--head", "1")
    assert "✗" not in other
    ranked = json.loads(limelight(*given[:3], "--which-head", "--json")[1])
    assert len(ranked["heads"]) == 2 * 3 * 4
    assert ranked["heads"][0]["falls_by"] >= ranked["heads"][-1]["falls_by"]


def test_a_page_and_a_figure_are_written_together(limelight):
    files = ["--html", "both.html", "--figure", "both.svg"]
    code, out, _ = limelight("explain", "runs/chat", "Hi how are you", *files)
    assert (code, out) == (0, "")
    assert Path("both.html").is_file()
    assert Path("both.svg").is_file()


@pytest.mark.parametrize(("option", "file"), [("--html", "walk.html"), ("--figure", "walk.svg")])
def test_a_folder_that_is_not_there(option, file, limelight):
    code, _, err = limelight("explain", "runs/chat", "Hi how are you", option, f"nowhere/{file}")
    assert code == 1
    assert err == f"limelight: nowhere/{file}: No such file or directory; is the name right?\n"


def test_texts_that_cannot_be_explained(limelight):
    assert limelight("explain", "runs/chat", " ")[0] == 2
    code, _, err = limelight("explain", "runs/chat", "e " * 500)
    assert code == 2
    assert "the model has room for 64: shorten it" in err
    assert limelight("explain", "runs/nowhere", "Hi")[0] == 2


def test_odd_texts_at_the_terminal(limelight):
    for text in ("[bold]x[/]", "\x1b[31mred", "a\nb", "</s>", "🍌", "שלום"):
        code, out, _ = limelight("explain", "runs/chat", text, "--stop", "pieces")
        assert code == 0
        assert "\x1b" not in out
        assert max(cell_len(line) for line in out.splitlines()) <= 80
