"""How experiments run, continue and report."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from limelight.errors import FailedError, UserError
from limelight.lab import report
from limelight.lab.catalog import EXPERIMENTS, SUBJECTS, find, subject_of
from limelight.lab.experiment import Findings, Panel, Subject, question_and_setting, run
from limelight.lab.subject import check_memory
from limelight.recipe import load_recipe

SILENT = Console(quiet=True)


@pytest.fixture
def counted():
    """An experiment of three measurements that counts how often each is made."""
    made = []

    def measure(name):
        made.append(name)
        if name == fake.breaks:
            raise KeyboardInterrupt
        return len(name)

    fake = SimpleNamespace(
        __doc__="Is <b> shown as it is?\n\nThree words &\ntheir lengths.",
        SECONDS=(1.0, 2.0),
        breaks="",
        made=made,
        measurements=lambda quick, *_: {
            name: lambda name=name: measure(name) for name in ("one at 1", "two at 2", "six at 6")
        },
        findings=lambda values: Findings(
            [Panel("n", "size", report.by_length(report.by_seed(values)))],
            [f"The sum is {sum(values.values())}."],
        ),
    )
    return fake


def test_an_interrupted_run_makes_only_what_is_missing(counted, tmp_path):
    counted.breaks = "two at 2"
    with pytest.raises(KeyboardInterrupt):
        run("fake", counted, tmp_path, True, SILENT)
    counted.breaks = ""
    results = run("fake", counted, tmp_path, True, SILENT)
    assert counted.made == ["one at 1", "two at 2", "two at 2", "six at 6"]
    assert results["conclusion"] == ["The sum is 24."]
    assert json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.parametrize("quick", [True, False])
def test_what_runs_out_of_memory_keeps_its_results_and_offers_less(counted, tmp_path, quick):
    plain = counted.measurements(quick)

    def no_room():
        raise error

    counted.measurements = lambda quick, *_: plain | {"two at 2": no_room}
    error = MemoryError()
    with pytest.raises(FailedError, match=r"not enough memory for 'two at 2'") as told:
        run("fake", counted, tmp_path, quick, SILENT)
    assert ("use --quick" in str(told.value)) is not quick
    assert json.loads((tmp_path / "results.json").read_text())["values"] == {"one at 1": 8}
    error = RuntimeError("a bug")  # any other error stays what it is
    with pytest.raises(RuntimeError, match="a bug"):
        run("fake", counted, tmp_path, quick, SILENT)


def test_results_of_another_kind_are_not_continued(counted, tmp_path):
    run("fake", counted, tmp_path, True, SILENT)
    with pytest.raises(UserError, match=r"quick=True, and this would be False"):
        run("fake", counted, tmp_path, False, SILENT)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"values": 3, "seconds": {}}', "[" * 100_000])
def test_damaged_results_are_named(counted, tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UserError, match=r"results\.json"):
        run("fake", counted, tmp_path, True, SILENT)


def test_reports_hold_everything_and_escape_it(counted, tmp_path):
    results = run("fake", counted, tmp_path, True, SILENT)
    written = {path.name: path.read_text() for path in report.write(counted, results, tmp_path)}
    assert set(written) == {"report.md", "report.html", "figure.svg"}
    for text in (
        "Is &lt;b&gt; shown",
        "words &amp; their",
        "The sum is 24.",
        "<svg",
        "<td>8.00</td>",
    ):
        assert text in written["report.html"]
    for text in (
        "# Is <b> shown",
        "| size, by n | 1 | 2 | 6 |",
        "| two | - | 8.00 | - |",
        "- The sum is 24.",
        "(figure.svg)",
    ):
        assert text in written["report.md"]
    again = {path.name: path.read_text() for path in report.write(counted, results, tmp_path)}
    assert again == written, "equal results, equal reports"


@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_every_number_is_within_its_picture(log):
    curves = {"gru": {8: [3.0, 5.0], 512: [400.0]}, "other": {8: [0.02]}}
    (ax,) = report.draw([Panel("n", "size", curves, log)]).axes
    low, high = ax.get_ylim()
    assert low < 0.02
    assert high > 400
    (ax,) = report.draw([Panel("n", "size", curves, log, limits=(0.01, 20))]).axes
    assert ax.get_ylim() == (0.01, 20)


def test_every_experiment_is_complete(tmp_path):
    for name, one in EXPERIMENTS.items():
        examined = [Subject(SUBJECTS[name][1] or "reverse", tmp_path)] if name in SUBJECTS else []
        question, setting = question_and_setting(one)
        assert question.endswith("?")
        assert setting.endswith(".")
        assert 0 < one.SECONDS[0] <= one.SECONDS[1]
        quick, full = (one.measurements(quick, *examined) for quick in (True, False))
        assert 0 < len(quick) <= len(full)


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'gradient'"):
        find("gradiant")


def test_an_experiment_of_nothing_takes_no_subject():
    assert subject_of("gradient", "") is None
    with pytest.raises(UserError, match=r"lab gradient takes no run or recipe, as 'en-de': heads"):
        subject_of("gradient", "en-de")


def test_a_subject_is_found_or_the_nearest_is_named():
    assert subject_of("heads", "")["subject"] == "en-de"
    with pytest.raises(UserError, match="did you mean 'en-de'"):
        subject_of("heads", "en-ed")
    with pytest.raises(UserError, match="did you mean 'reverse'"):
        subject_of("duel", "revers")
    with pytest.raises(UserError, match="lab diagnose examines a RECIPE: name one"):
        subject_of("diagnose", "")


def test_results_of_another_subject_are_not_continued(counted, tmp_path):
    subjects = [{"subject": name, "fingerprint": "1"} for name in ("reverse", "copy")]
    results = run("fake", counted, tmp_path, True, SILENT, subjects[0])
    assert results["subject"] == "reverse"
    text = report.write(counted, results, tmp_path)[1].read_text()
    assert "`limelight lab fake reverse`" in text
    with pytest.raises(UserError, match="subject='reverse', and this would be 'copy'"):
        run("fake", counted, tmp_path, True, SILENT, subjects[1])
    with pytest.raises(UserError, match="fingerprint='1', and this would be '2'"):
        run("fake", counted, tmp_path, True, SILENT, {**subjects[0], "fingerprint": "2"})


def test_a_fingerprint_changes_with_settings_and_files(tmp_path):
    pairs, recipe = tmp_path / "pairs.tsv", tmp_path / "own.toml"
    text = f'[data]\ntrain = ["{pairs}"]\n[model]\nvocab = 300\n'
    seen = set()
    for lines, extra in (("a\tb\n", ""), ("a\tc\n", ""), ("a\tc\n", "layers = 2\n")):
        pairs.write_text(lines)
        recipe.write_text(text + extra)
        seen.add(subject_of("diagnose", str(recipe))["fingerprint"])
        assert subject_of("diagnose", str(recipe))["fingerprint"] in seen
    assert len(seen) == 3


def test_what_does_not_fit_into_memory_is_refused_with_a_smaller_setting():
    recipe = load_recipe("reverse")
    check_memory(recipe)
    with pytest.raises(UserError, match=r"takes about [\d.]+MB, and 1MB are free here: set batch"):
        check_memory(recipe, available=10**6)
