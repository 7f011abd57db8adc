"""An exported file: the same walk from a disk, with the network off and nobody asked."""

import sys
from pathlib import Path

import numpy as np
import pytest

from limelight.cli import main
from limelight.explain.explanation import explain
from limelight.explain.render.html import as_html
from tests.browser.conftest import MODELS, ready
from tests.browser.test_explain import (
    ASIDES,
    TEXTS,
    chosen_row,
    expected_matrix,
    go,
    hands,  # noqa: F401  (a fixture)
    matrices_on,
    near,
    stops_of,
    strips_on,
    value_at,
)
from tests.explain.by_hand import ByHand
from tests.explain.samples import trained
from tests.explain.test_html import smallest

pytestmark = pytest.mark.system

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><!-- are you"
LARGEST = 3_000_000


@pytest.fixture
def opened_file(new_page, tmp_path):
    """Open a text as a file would be: from the disk, with nothing else to reach."""

    def make(html, fragment="", **options):
        path = tmp_path / "walk.html"
        path.write_text(html, encoding="utf-8")
        page = new_page(host="file://", offline=True, **options)
        page.goto(f"file://{path}{fragment}")
        return page

    return make


@pytest.mark.parametrize("model", MODELS)
def test_a_file_walks_through_every_stop_with_true_numbers(opened_file, model, hands):  # noqa: F811
    trace, hand = hands[model]
    html = as_html(trace, model, layer=1, head=1)
    assert len(html.encode()) < LARGEST
    page = ready(opened_file(html))
    names = stops_of(page)
    expected = {stop.name: stop for stop in trace.walk()}
    for name in names:
        go(page, name)
        assert page.locator("h1").inner_text() == expected[name].title
        assert page.locator(".check-line.failed, .panel.error").count() == 0
        for value, shown in strips_on(page):
            near(shown, value_at(hand, value, 1, 1, chosen_row(page)), 4)
    page.keyboard.press("t")
    for name in [name for name in names if name not in ASIDES]:
        go(page, name)
        assert page.locator(".panel.error").count() == 0
        for value, _, rows in matrices_on(page):
            table = expected_matrix(hand, name, value, chosen_row(page))
            if table is None:
                continue
            shown = np.array([[float(x) for x in row[: table.shape[1]]] for row in rows])
            assert np.array_equal(np.isneginf(shown), np.isneginf(table))
            near(np.nan_to_num(shown), np.nan_to_num(table), 5)
    assert page.watch.sent[1:] == []


@pytest.mark.parametrize("kind", ["bare", "gpt-bare", "ssru"])
def test_experiments_are_shown_as_they_are(opened_file, kind):
    trace = explain(trained(kind), "Hi how are you")
    hand = ByHand(trace.trained.model, trace.traced_text.source, trace.traced_text.target)
    page, seen = ready(opened_file(as_html(trace, kind, layer=1, head=1))), 0
    for name in stops_of(page):
        go(page, name)
        assert page.locator(".check-line.failed, .panel.error").count() == 0
        for value, shown in strips_on(page):
            near(shown, value_at(hand, value, 1, 1, chosen_row(page)), 4)
            seen += 1
    assert seen >= 12


@pytest.fixture
def written(runs, tmp_path, monkeypatch, capsys):
    """What the command writes."""
    into = str(tmp_path / "out.html")
    place = ["--html", into, "--layer", "2"]
    arguments = ["limelight", "explain", str(runs["greetings"]), TEXTS["greetings"], *place]
    monkeypatch.setattr(sys, "argv", arguments)
    main()
    assert "open it in a browser" in capsys.readouterr().err
    return Path(into).read_text(encoding="utf-8")


def test_the_command_writes_a_file_with_attention_in_it(written, opened_file, hands):  # noqa: F811
    trace, hand = hands["greetings"]
    page = ready(opened_file(written, "#tab=attention"))
    assert page.title() == "greetings · Limelight"
    tabs = page.get_by_role("tab").all_inner_texts()
    assert set(tabs) <= {"Explain", "Attention", "Model"}
    assert {"Explain", "Attention"} <= set(tabs)
    for tab in tabs:
        page.get_by_role("tab", name=tab).click()
        ready(page)
        assert page.locator(".panel.error").count() == 0, tab
    page.get_by_role("tab", name="Attention").click()
    page.get_by_role("button", name="Show as table").click()
    rows = page.locator("table.numbers tbody tr").all()
    shown = [[float(x) for x in row.locator("td").all_inner_texts()] for row in rows]
    near(np.array(shown)[:, :-1], hand.values["decoder.1.cross.weights"][0], 5)
    assert [row[-1] for row in shown] == [1.0] * len(trace.target)


def test_what_has_no_room_is_left_out_and_said_so(opened_file, hands):  # noqa: F811
    trace, _ = hands["greetings"]
    room = smallest(trace) + 25_000
    small = as_html(trace, layer=1, head=1, max_bytes=room)
    assert len(small.encode()) <= room < len(as_html(trace).encode())
    page = ready(opened_file(small, "#stop=scores"))
    assert page.locator(".panel.error").count() == 0
    assert page.locator(".check-line.failed").count() == 0
    page.select_option("#choose-layer", "2")
    page.select_option("#choose-head", "4")
    page.get_by_text("this value is not in the file").wait_for()


def test_the_task_about_the_mask_can_be_done_in_a_file(opened_file, hands):  # noqa: F811
    trace, _ = hands["writer"]
    html = as_html(trace, layer=1, head=1)
    for row in (0, 1):
        page = ready(opened_file(html, f"#stage=mask&layer=1&head=1&query={row}"))
        task = page.get_by_role("region", name="Your turn")
        assert task.get_by_role("button", name="Switch the mask").count() == 0  # it needs the model
        task.get_by_role("textbox").fill(str(len(trace.target) - row - 1))
        task.get_by_role("button", name="Check").click()
        assert task.get_by_role("status").inner_text().startswith("✓")
    masked_off = trace.trained.explain("the cat", change=["decoder.*.self.masked=off"])
    page = ready(opened_file(as_html(masked_off, layer=1, head=1), "#stage=mask&query=0"))
    assert page.get_by_role("button", name="Switch the mask").count() == 0


def test_a_file_can_be_read_without_a_script(opened_file, hands):  # noqa: F811
    trace, hand = hands["greetings"]
    page = opened_file(as_html(trace, layer=1, head=1), java_script_enabled=False)
    text = page.locator("body").inner_text()
    assert trace.text in text
    written = "".join(step.chosen.piece for step in trace.steps[:-1]).strip()
    assert written in text.replace("  ", " ")
    tables = page.locator("table").all()
    assert len(tables) == 3
    cross = [row.locator("td").all_inner_texts() for row in tables[2].locator("tr").all()[1:]]
    near(np.array(cross, dtype=float), hand.values["decoder.0.cross.weights"][0], 3)


def test_hostile_text_is_text(opened_file, known):
    page = ready(opened_file(as_html(known["greetings"].explain(HOSTILE))))
    assert page.locator(".typed").inner_text() == f"“{HOSTILE}”"
    assert page.locator("img").count() == 0
    for stop in ("embedding", "softmax", "cross", "classifier", "loop"):
        go(page, stop)
        assert page.locator("img").count() == 0
    assert "broken" not in page.title()


def test_a_notebook_shows_it_in_a_frame_of_its_own(new_page, known):
    page = new_page(host="about:", offline=True)
    first, second = (known["greetings"].explain(text) for text in ("Hi", "who are you"))
    page.set_content(f"<h1>A notebook</h1>{first._repr_html_()}{second._repr_html_()}")
    for frame, explanation in zip(page.locator("iframe").all(), (first, second), strict=True):
        inside = frame.content_frame
        inside.locator("body[data-ready]").wait_for()
        assert inside.locator(".typed").inner_text() == f"“{explanation.text}”"
        inside.get_by_role("button", name="Next →").click()
        inside.locator(".walk[data-stage=embedding]").wait_for()
        assert inside.locator(".panel.error").count() == 0
    assert first._repr_png_().startswith(b"\x89PNG")
    assert "every row sums to 1" in repr(first)
