"""The tour: from the first word to the last, interrupted, repeated, and where it cannot go on."""

import io
import re
import shutil
import signal
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.cells import cell_len
from rich.console import Console

from limelight.cli import main
from limelight.errors import UserError
from limelight.loading import load
from limelight.recipe import load_recipe
from limelight.training import loop
from limelight.training.console import Report
from limelight.workflows import demo
from tests.tasks.conftest import run  # noqa: F401
from tests.tiny_demo import shorten
from tests.training.samples import tiny, train_in

STEPS, STEPS_IF_QUICK = demo.STEPS, demo.STEPS_IF_QUICK  # before they are made fewer


@pytest.fixture(scope="module")
def start(run):  # noqa: F811
    """`limelight demo` with tiny models in place of those that come along, and very few steps."""
    bundled = {"en-de": run("reverse"), "writer": run("writer")}
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(demo, "load", lambda name: load(bundled.get(name, name)))
        patch.setattr(demo, "SENTENCE", "a b c")
        patch.setattr(demo, "BEGINNING", "the old")
        for name in ("NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        patch.setenv("COLUMNS", "80")

        def go(folder, *arguments):
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err), chdir(folder):
                patch.setattr(sys, "argv", ["limelight", "demo", "--quick", *arguments])
                try:
                    main()
                    code = 0
                except SystemExit as left:
                    code = left.code
            return Tour(code, out.getvalue(), err.getvalue(), folder / "runs" / "demo")

        yield go


class Tour(NamedTuple):
    """What came of one."""

    code: int
    out: str
    err: str
    run: Path


@pytest.fixture(scope="module")
def first(start, tmp_path_factory):
    """A tour to the end, in an empty folder. Nobody may change what it made."""
    return start(tmp_path_factory.mktemp("tour"))


@pytest.fixture
def again(start, first, tmp_path, monkeypatch):
    """Once more, where the first one was. Its page takes longest, and is tested there."""
    shutil.copytree(first.run, tmp_path / "runs" / "demo")
    monkeypatch.setattr(demo, "as_html", lambda explanation, name: f"<!doctype html>{name}")
    return partial(start, tmp_path)


def test_it_shows_everything_and_ends_by_itself(first):
    code, out, err, made = first
    assert code == 0, err
    assert re.findall(r"^\d  (.*?) ═+$", out, re.MULTILINE) == [
        *("It translates", "It writes", "It learns"),
        *("It answers", "It explains itself", "What next"),
    ]
    assert "step 3  validation" in err
    for stage in demo.STAGES:
        assert re.search(rf"^{stage}: .*section .* of the paper$", out, re.MULTILINE)
    assert "✗" not in out
    page = (made / "explain.html").read_text("utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert demo.QUESTION in page
    lines = [line.rstrip() for line in out.splitlines() if "limelight " not in line]
    assert max(map(cell_len, lines)) <= 80  # but for commands, which are to be copied whole


def test_the_answers_are_the_model_s_own(first):
    chatbot = load(first.run)
    assert (chatbot.recipe.name, chatbot.step) == (demo.RECIPE, 3)
    for question in (demo.QUESTION, *demo.MORE_QUESTIONS):
        said = f"you {question} it {chatbot.chat().reply(question)}"
        assert " ".join(said.split()) in " ".join(first.out.split())


def test_every_row_of_the_alignment_is_one_of_the_model(first, run):  # noqa: F811
    """Read back from what was printed, beside the tensor that it is from."""
    translator = load(run("reverse"))
    explanation = translator.explain("a b c", translator.translate("a b c").text)
    title, layer = re.findall(r"(How much .*, layer (\d), mean of all heads)", first.out)[0]
    below = first.out[first.out.index(title) :].splitlines()[2:]
    weights = explanation.tensor(f"decoder.{int(layer) - 1}.cross.weights").mean(dim=0)
    assert len(weights) > 3
    for row, line in zip(weights[:-1].tolist(), below, strict=False):
        shown = [float(x) for x in re.findall(r"\d\.\d{3}", line)]
        assert shown == pytest.approx(row[:-1], abs=6e-4)  # but for the ends


def test_colour_says_the_same(again, monkeypatch):
    def timeless(text):
        return re.sub(r"took \d+:\d\d \(min:s\)", "", re.sub(r"\x1b\[[0-9;]*m", "", text))

    colours = re.compile(r"\x1b\[(?:[0-9]+;)*(?:38;|48;|3[0-7])")
    plain = again().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = again().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in plain
    assert colours.search(coloured)
    assert not colours.search(again().out)
    assert timeless(coloured) == timeless(plain)


# Again


def test_the_second_time_it_takes_what_is_there(first, again):
    code, out, err, made = again()
    assert code == 0
    assert "holds a chatbot from an earlier tour" in " ".join(out.split())
    assert err == ""
    assert (made / "log.jsonl").read_bytes() == (first.run / "log.jsonl").read_bytes()


def test_after_a_quick_one_the_whole_tour_learns_on(again):
    code, _, err, made = again("--no-quick")
    assert code == 0
    assert "resuming from step 3" in err
    assert load(made).step == 5
    code, out, _, _ = again()  # what has learned more is not made to learn less
    assert code == 0
    assert "trained for 5 steps" in " ".join(out.split())


def test_interrupted_while_it_learns_it_saves_and_goes_on(start, tmp_path, monkeypatch):
    true_step = loop.train_step

    def train_step(trainer, micro_batches):
        if trainer.state.step == 1:
            signal.raise_signal(signal.SIGINT)
        return true_step(trainer, micro_batches)

    monkeypatch.setattr(loop, "train_step", train_step)
    monkeypatch.setattr(demo, "as_html", lambda explanation, name: name)  # tested above
    code, out, err, made = start(tmp_path)
    assert code == 130
    assert err.splitlines()[-1] == "limelight: saved; run the same command again to continue"
    assert "It answers" not in out
    monkeypatch.setattr(loop, "train_step", true_step)
    code, out, err, _ = start(tmp_path)
    assert code == 0
    assert "resuming from step 2" in err
    assert load(made).step == 3


# Where it cannot go on


def test_another_run_in_its_place_is_left_alone(start, tmp_path):
    train_in(tmp_path / "runs" / "demo", tiny())
    code, out, err, _ = start(tmp_path)
    assert (code, out) == (2, "")
    assert "runs/demo holds another run, of the recipe 'tiny'" in err
    assert "choose another folder for the tour with --run" in err


def test_too_small_a_disk_is_told_before_the_tour_begins(start, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "DISK_SPACE", 10**18)
    code, out, err, _ = start(tmp_path)
    assert (code, out) == (1, "")
    sentence = r"1,000,0.* bytes are to be written and .* are free; free some space on this"
    assert re.search(sentence, err)


def test_without_the_models_that_should_come_along_it_learns_all_the_same(again, monkeypatch):
    def refuse(name):
        if name in ("en-de", "writer"):
            raise UserError(f"{name} is not a run folder")
        return load(name)

    monkeypatch.setattr(demo, "load", refuse)
    code, out, _, _ = again()
    assert code == 0
    assert out.count("is not available here") == 2
    assert "It answers" in out


# Parts


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_text_flows_in_lines_and_loses_no_word(width):
    text = " had come\nfrom far, far away: nobody knew-where. \n\nThen  they left"
    pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.out("  They", end="")
    demo.flow(console, pieces, column=6)
    written = console.file.getvalue()
    assert written.split() == ["They", *text.split()]
    assert max(map(len, written.splitlines())) <= width


def test_the_recipe_is_as_long_as_the_tour_says():
    assert load_recipe(demo.RECIPE).train.steps == STEPS
    assert load_recipe(demo.RECIPE).train.warmup < STEPS_IF_QUICK < STEPS


@pytest.mark.parametrize("width", [80, 140])
def test_the_bar_has_room_for_what_it_says(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    report = Report(console=console)
    report.begin(0, 500)
    told = {"step": 120, "loss": 2.1234, "lr": 0.001, "tokens_per_second": 12_345.6}
    report.train({**told, "peak_memory": 510_000_000, "seconds": 30}, 500)
    report.end()
    shown = console.file.getvalue()
    for part in ("step 120/500", "loss 2.1234", "12,346 tokens/s", "left "):
        assert part in shown
    assert ("0.5 GB" in shown) == (width > 80)
    assert "…" not in shown
