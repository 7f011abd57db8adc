"""Comparisons of trainings: groups, spreads, significance, time."""

import json
import math
import re
import shutil
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from rich.console import Console

from limelight.errors import UserError
from limelight.evaluate.significance import welch_p_value
from limelight.workflows.compare import compare, show

GOLDEN = Path(__file__).parent.parent / "golden" / "run"


@pytest.fixture
def make(tmp_path):
    """Makes run folders: with a seed, losses of validations, and settings of their recipe."""

    def made(name, seed, losses, seconds=None, **settings):
        run = tmp_path / name
        shutil.copytree(GOLDEN, run)
        lines = []
        for i, loss in enumerate(losses, start=1):
            time = (seconds or range(60, 10**6, 60))[i - 1]
            lines.append({"step": 10 * i, "loss": loss, "lr": 0.1, "tokens": 100 * i})
            lines[-1]["seconds"] = time
            lines.append({"step": 10 * i, "validation": True, "loss": loss, "seconds": time})
        (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text = (run / "recipe.toml").read_text()
        for key, value in {"seed": seed, "steps": 10 * len(losses), **settings}.items():
            old = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
            text = text.replace(f"\n{old}\n", f"\n{key} = {json.dumps(value)}\n")
        (run / "recipe.toml").write_text(text)
        return str(run)

    return made


def test_runs_of_other_seeds_are_one_group(make):
    two = [make(f"two{seed}", seed, [3.0, 2.0 + seed / 10]) for seed in (1, 2, 3)]
    four = [make(f"four{seed}", seed, [3.0, 1.0 + seed / 10], warmup=7) for seed in (1, 2)]
    report = compare([*two, *four])
    best, other = report["groups"]
    assert [best["name"], other["name"]] == ["warmup=7", other["name"]]
    assert [len(best["runs"]), len(other["runs"])] == [2, 3]
    expected = [2.1, 2.2, 2.3]
    assert other["validation"]["loss"]["mean"] == pytest.approx(fmean(expected))
    assert other["validation"]["loss"]["sd"] == pytest.approx(stdev(expected))
    assert other["p_value"] == pytest.approx(welch_p_value([1.1, 1.2], expected))
    assert other["p_value"] < 0.01
    assert "p_value" not in best
    assert best["tokens"] == 200
    assert report["warnings"] == []


def test_parameters_are_counted_and_a_larger_model_is_another_group(make):
    runs = [make(f"layers{n}", 1, [2.0, 1.0], layers=n) for n in (1, 3)]
    groups = compare(runs)["groups"]
    assert sorted(group["name"] for group in groups) == ["layers=1", "layers=3"]
    sizes = {group["name"]: group["parameters"] for group in groups}
    assert sizes["layers=3"] > sizes["layers=1"]
    assert all(group.get("p_value") is None for group in groups), "one seed says nothing of chance"


def test_minutes_of_all_sessions_count(make):
    whole = make("whole", 1, [3.0, 2.0, 1.0], [60, 120, 180])
    resumed = make("resumed", 1, [3.0, 2.0, 1.0], [60, 120, 60])
    (group,) = compare([whole, resumed])["groups"]
    assert [run["minutes"] for run in group["runs"]] == [3.0, 3.0]


def test_what_makes_runs_unequal_is_said(make):
    first, second = make("first", 1, [2.0, 1.0]), make("second", 2, [2.0, 1.0])
    assert compare([first, second])["warnings"] == []
    environment = Path(second, "environment.json")
    facts = json.loads(environment.read_text())
    environment.write_text(json.dumps({**facts, "tokenizer": "another"}))
    unfinished = make("third", 3, [2.0])
    text = Path(unfinished, "recipe.toml").read_text()
    Path(unfinished, "recipe.toml").write_text(text.replace("steps = 10\n", "steps = 20\n"))
    warnings = " ".join(compare([first, second, unfinished])["warnings"])
    assert "differ in their tokenizer" in warnings
    assert unfinished in warnings


@pytest.mark.parametrize("names", [["first"], ["first", "first"], []])
def test_one_run_is_no_comparison(make, names):
    first = make("first", 1, [2.0])
    with pytest.raises(UserError, match="a comparison needs two runs"):
        compare([first for _ in names])


def test_a_metric_must_have_been_measured(make):
    runs = [make(str(seed), seed, [2.0]) for seed in (1, 2)]
    with pytest.raises(UserError, match="'bleu'"):
        compare(runs, "bleu")


def test_a_run_without_a_validation_is_named(make):
    runs = [make("first", 1, [2.0]), make("second", 2, [])]
    with pytest.raises(UserError, match=r"second has no validation"):
        compare(runs)


def test_the_page_and_the_figure_show_all_groups_and_escape_names(make, tmp_path):
    runs = [make("a", 1, [3.0, 2.0]), make("b", 1, [3.0, 1.0], positions="rotary")]
    report = compare(runs, output=str(tmp_path / "out"))
    page, figure = ((tmp_path / "out" / f"compare.{kind}").read_text() for kind in ("html", "svg"))
    for group in report["groups"]:
        assert group["name"] in page
        assert group["name"] in figure
    assert page.count("<svg") == 1
    assert not re.search(r"(src|href)=.http", page), "nothing is loaded from elsewhere"
    before = figure
    compare(runs, output=str(tmp_path / "out"))
    assert (tmp_path / "out" / "compare.svg").read_text() == before, "equal figures, equal files"


def test_the_table_fits_a_terminal(make):
    runs = [make(f"{n}-{seed}", seed, [3.0, 2.0], layers=n) for n in (1, 3) for seed in (1, 2)]
    console = Console(width=80, record=True)
    show(compare(runs), console)
    text = console.export_text()
    assert "layers=1" in text
    assert "± 0.0000" in text


@pytest.mark.parametrize("t", [0.1, 1.0, 3.0, 30.0])
def test_welch_is_student_where_that_is_known_in_closed_form(t):
    """Two groups of two with equal spread: 2 degrees of freedom, p = 1 - t / sqrt(2 + t^2)."""
    spread = math.sqrt(0.5)  # so that the standard error of the difference is 1
    first = [spread * x for x in (-1, 1)]
    second = [t + x for x in first]
    assert welch_p_value(first, second) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)


def test_welch_rejects_as_often_as_it_says():
    random = np.random.default_rng(0)
    p_values = [welch_p_value(*random.normal(size=(2, 5))) for _ in range(600)]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.025)


def test_welch_at_the_edges():
    assert welch_p_value([1.0], [2.0, 3.0]) is None
    assert welch_p_value([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch_p_value([1.0, 1.0], [2.0, 2.0]) == 0.0
