"""The walk at a terminal: true numbers, within its width, the same with and without colour."""

import io
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from limelight.explain.explanation import explain
from limelight.explain.render.terminal import around, heat_map, show, step_through
from limelight.explain.stage import Heatmap, TableFigure, factor
from limelight.model import build
from tests.explain.samples import KINDS, trained
from tests.explain.test_trace import HOSTILE
from tests.explain.test_truth import by_hand, picture, traced

LONG = "who are you what is that are you fine Hi how are you"
NUMBER = re.compile(r"-?(?:\d+\.\d+|inf)|NaN")


def printed(draw, width=80, colour=False):
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        highlight=False,
    )
    draw(console)
    return console.file.getvalue()


def without_colour(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_printed_number_of_every_picture_is_the_one_computed_by_hand(kind):
    """Read off the printed lines again: a row of them is a part of the row computed by hand."""
    trace = traced(kind)
    hand, cells = by_hand(trace), 0
    for stop in trace.walk(2, 3, "how"):
        for grid in [exhibit for exhibit in stop.figures if isinstance(exhibit, Heatmap)]:
            text = printed(lambda console, grid=grid: console.print(heat_map(grid, 80)))
            _, *lines = [line for line in text.splitlines() if line[:2] in ("  ", "> ")]
            expected = picture(trace, hand, stop, grid)
            for line, label, row in zip(lines, grid.rows, expected, strict=True):
                own = line.split("…", 1)[1] if "…" in line else line[2:].removeprefix(label)
                assert own != line[2:]
                numbers = NUMBER.findall(own)
                if "percent" in text:
                    whole = own.rsplit(maxsplit=1)[0].split()
                    numbers = [str(int(x) / 100) for x in whole] + numbers[-1:]
                assert numbers
                if grid.sums:
                    *numbers, total = numbers
                    assert float(total) == pytest.approx(1, abs=0.0011)
                assert is_part(numbers, row), (stop.name, grid.title, line)
                cells += len(numbers)
    assert cells > 300


def is_part(numbers, row):
    """Whether these are neighbours in the row, as far as their digits go."""
    exact = 0.6 * 10.0 ** -max(2, min(len(x.partition(".")[2]) or 9 for x in numbers))
    shown = [float(x) for x in numbers]
    starts = range(len(row) - len(shown) + 1)
    return any(np.allclose(row[i : i + len(shown)], shown, atol=exact, rtol=0) for i in starts)


def test_many_words_are_shown_in_percent():
    trace = explain(trained("paper"), "e e e e e e e e e")
    grid = next(stop for stop in trace.walk(1, 1) if stop.name == "softmax").figures[0]
    weights = by_hand(trace).values["encoder.0.self.weights"][0]
    lines = printed(lambda console: console.print(heat_map(grid, 60))).splitlines()
    assert "in percent" in lines[0]
    (line,) = [line for line in lines if line.startswith("> ")]
    numbers = line.split(grid.rows[0], 1)[1].split()[:-1]
    assert is_part([str(int(x) / 100) for x in numbers], weights[grid.focus[0]])


SHORT, USUAL = "Hi", "Hi how are you"
SAMPLED = [(SHORT, 80), (USUAL, 60), (LONG, 60), (LONG, 130)]
OTHERS = [both for both in product((SHORT, USUAL, LONG), (60, 80, 130)) if both not in SAMPLED]


@pytest.mark.parametrize(
    ("text", "width"),
    [*SAMPLED, *(pytest.param(*both, marks=pytest.mark.soak) for both in OTHERS)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wider_than_the_terminal_and_colour_adds_nothing(kind, text, width):
    trace = explain(trained(kind), text)
    stops = trace.walk()
    plain = printed(lambda console: show(console, trace, stops), width)
    assert max(cell_len(line) for line in plain.splitlines()) <= width
    for stop in stops if width > 100 else []:  # in a narrower one a title may be cut
        assert stop.title in re.sub(r"\s+", " ", plain)
    coloured = printed(lambda console: show(console, trace, stops), width, colour=True)
    assert "\x1b[" in coloured
    assert without_colour(coloured) == plain


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("kind", ["paper", "gpt", "bert"])
def test_hostile_text_is_printed_as_text(kind, text):
    trace = explain(trained(kind), text)
    plain = printed(lambda console: show(console, trace, trace.walk()))
    assert "\x1b" not in plain
    assert "\u202e" not in plain
    assert max(cell_len(line) for line in plain.splitlines()) <= 80
    given = trace.source or trace.target
    line = next(line for line in plain.splitlines() if line.startswith("reads"))
    assert given.labels[0] in line


def test_rich_markup_stays_text():
    trace = explain(trained("paper"), "[bold]you[/bold]")
    assert "[ b o l d ]" in printed(lambda console: show(console, trace, []))


def test_a_window_lies_round_what_is_looked_at():
    assert around(5, 9, None) == range(5)
    assert around(100, 10, None) == range(10)
    assert around(100, 10, 50) == range(45, 55)
    assert around(100, 10, 99) == range(90, 100)
    assert around(3, 0, 2) == range(2, 3)


def test_one_can_walk_back_and_forth():
    trace = explain(trained("paper"), "Hi how are you")
    answers = iter(["", "b", "cross", "3", "q"])
    text = printed(
        lambda console: step_through(console, trace, trace.walk(), lambda _: next(answers))
    )
    order = re.findall(r"^(\d+)/18 ", text, re.M)
    assert order == ["1", "2", "1", "16", "3"]


def test_the_walk_ends_after_the_last_stop():
    trace = explain(trained("bert"), "Hi how ___ you")
    text = printed(lambda console: step_through(console, trace, trace.walk(), lambda _: ""))
    assert re.findall(r"^(\d+)/14 ", text, re.M) == [str(n) for n in range(1, 15)]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("paper", 18),
        ("gpt", 15),
        ("bert", 14),
    ],
)
def test_each_family_has_its_own_stops(kind, names):
    trace = traced(kind)
    text = repr(trace)
    assert f"/{names}  " in text
    stops = [stop.name for stop in trace.stops]
    assert ("cross" in stops) == (kind == "paper")
    assert ("loop" in stops) == (kind != "bert")
    assert max(map(cell_len, text.splitlines())) <= 80


def test_the_order_of_norms_is_the_models():
    def rows(kind):
        return next(s for s in traced(kind).stops if s.name == "add-norm").figures[0].rows

    assert rows("paper")[-1] == "normalised"
    assert rows("pre-norm")[1] == "normalised"


def test_a_trace_shows_itself():
    trace = traced("paper")
    assert "✓ every row sums to 1" in repr(trace)
    assert trace._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_model_can_be_walked_through(kind, damage):
    model = trained(kind)
    broken = replace(model, model=build(model.model.config))
    broken.model.load_state_dict(model.model.state_dict())
    side = broken.model.decoder if model.family == "decoder-only" else broken.model.encoder
    with torch.no_grad():
        side.layers[0].self_attention.key.weight[0, 0] = damage
    trace = explain(broken, "Hi how are you")
    plain = printed(lambda console: show(console, trace, trace.walk()))
    assert "NaN" in plain
    assert "The weights are damaged" in re.sub(r"\s+", " ", plain)
    assert "✗" in plain
    assert max(cell_len(line) for line in plain.splitlines()) <= 80


def test_a_long_table_is_whole_where_its_stage_was_asked_for():
    trace = explain(trained("paper"), "Hi how are you")
    stage = next(stop for stop in trace.walk() if stop.name == "learning")
    table = max((f for f in stage.figures if isinstance(f, TableFigure)), key=lambda f: len(f.rows))
    names = [row[-1] for row in table.rows]
    assert len(names) > 24
    alone, among = (
        "".join(printed(lambda console, s=stages: show(console, trace, s), 110).split())
        for stages in ([stage], [stage, stage])
    )
    assert [name for name in names if name.replace(" ", "") not in alone] == []
    assert [name for name in names if name.replace(" ", "") not in among]
    assert f"rows1to24of{len(names)}:--stagelearninghasall" in among


def test_no_zero_is_negative():
    assert [factor(x) for x in (-0.0004, 0.0, -0.0006, 2.0)] == [
        "0.000",
        "0.000",
        "(-0.001)",
        "2.000",
    ]


def test_sums_are_those_of_the_rows():
    """A printed row that sums to 1.1, as some explainers have it, would be seen."""
    values = torch.tensor([[0.1, 0.3, 0.6, 0.1], [0.25, 0.25, 0.25, 0.25]])
    grid = Heatmap("", ("",), values, ["are", "you"], list("abcd"), ("", ""), "share", sums=True)
    lines = printed(lambda console: console.print(heat_map(grid, 80))).splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["1.100", "1.000"]
