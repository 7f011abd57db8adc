"""The Training tab follows a log as it grows, and its table is the model's own arithmetic."""

import json
import math
import os

import pytest

from limelight.explain.tokens import visible
from limelight.run.log import read_log
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.page_reader import number, read_table

pytestmark = pytest.mark.system

PAIRS = [
    ("greetings", "Hi how are you", "I am fine"),
    ("greetings", "what is that", "I am a dog"),  # not what it would have said
    ("writer", "", "the old man walks"),
]


@pytest.mark.parametrize(("model", "source", "target"), PAIRS)
def test_the_teachers_table_is_the_models_own(page, known, model, source, target):
    visit(page, model=model, tab="training")
    if source:
        page.get_by_label("Source", exact=True).fill(source)
    page.locator("#teach-target").fill(target)
    page.get_by_role("button", name="Show the loss").click()
    wait_until(page, HAS_POSITIONS, arg=len(known[model].tokenizer.encode(target)) + 1)
    scored = known[model].score(*([source] if source else []), target)
    rows = table_rows(page)
    assert [row[2] for row in rows] == [visible(piece) for piece in scored.tokens]
    assert [row[1] for row in rows[1:]] == [row[2] for row in rows[:-1]]  # shifted right
    for row, logprob in zip(rows, scored.logprobs, strict=True):
        assert number(row[3]) == pytest.approx(math.exp(logprob), abs=1.1e-4)
        assert number(row[4]) == pytest.approx(-logprob, abs=1.1e-4)
    mean = number(page.locator(".teacher-rows tfoot td.n").inner_text())
    assert mean == pytest.approx(-scored.total / len(scored.logprobs), abs=1.1e-4)


HAS_POSITIONS = "count => document.querySelectorAll('.teacher-rows tbody tr').length === count"


def table_rows(page):
    """Position, input, target, probability, loss, best."""
    _, names, cells = read_table(page.locator(".teacher-rows"))
    return [[name, *row] for name, row in zip(names, cells, strict=True)]


def test_a_model_that_reads_both_ways_is_taught_otherwise(page):
    visit(page, model="bert", tab="training")
    assert page.locator(".teacher").count() == 0
    assert "Masked language modelling" in page.locator("main").inner_text()


def test_the_curve_is_the_log(page, runs):
    visit(page, model="greetings", tab="training")
    lines = [entry for entry in read_log(runs["greetings"] / "log.jsonl") if "lr" in entry]
    assert lines
    for kind, name in {"loss": "loss", "lr": "learning rate"}.items():
        page.get_by_role("radio", name=name).check()
        shown = chart_table(page, "training")
        assert [step for step, _ in shown] == [entry["step"] for entry in lines]
        wanted = [entry[kind] for entry in lines]
        assert [y for _, y in shown] == pytest.approx(wanted, rel=1e-3, abs=1e-5)


def chart_table(page, series):
    """Steps and numbers of one curve, from the chart's table view."""
    view = page.locator(".chart")
    if not view.locator("table").count():
        view.get_by_role("button", name="Show as table").click()
    heads, steps, cells = read_table(view.locator("table"))
    column = heads.index(series) - 1
    return [(int(s), number(c[column])) for s, c in zip(steps, cells, strict=True) if c[column]]


@pytest.fixture
def growing(runs):
    """A log that can be written on; afterwards it is as it was."""
    path = runs["greetings"] / "log.jsonl"
    before = path.read_bytes()

    def write(**entry):
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    yield write
    path.write_bytes(before)


def train_line(step, loss):
    names = ("perplexity", "accuracy", "lr", "grad_norm", "tokens_per_second", "seconds")
    told = {"step": step, "epoch": 1, "loss": loss, "objective": loss, "tokens": step * 100}
    return told | dict.fromkeys(names, 1)


def test_a_curve_out_of_sight_has_its_value_for_listeners_all_the_same(new_page):
    page = visit(new_page(viewport={"width": 1280, "height": 60}), tab="training")
    curve = page.locator(".chart-view").first
    assert curve.bounding_box()["y"] > 60 + 150  # so far away it is not drawn
    for name in ("valuenow", "valuemin", "valuemax"):
        assert float(curve.get_attribute(f"aria-{name}")) >= 0


def test_the_curve_grows_with_the_log(page, growing):
    visit(page, model="greetings", tab="training")
    assert chart_table(page, "training")
    assert page.locator(".training-live").count() == 0
    growing(**train_line(5000, 0.123))
    step_is_there(page, 5000)
    assert chart_table(page, "training")[-1] == (5000, 0.123)
    page.locator(".training-live").wait_for()
    # The validation of a step that is known already comes later, with what the model wrote.
    hostile = ["'Hi' -> '<img src=x onerror=alert(1)>'"]
    growing(step=5000, validation=True, loss=0.5, samples=hostile)
    page.get_by_text("'<img src=x onerror=alert(1)>'").wait_for()
    assert page.locator("main img").count() == 0
    assert chart_table(page, "validation")[-1] == (5000, 0.5)
    growing(step=5001, spike=True, loss=9.0, usual=0.1, examples=[1])
    page.get_by_text("step 5001: loss spike, 9.00").wait_for()
    assert chart_table(page, "training")[-1] == (5000, 0.123)


def step_is_there(page, step):
    found = "step => document.querySelector('.chart tbody').innerText.includes(step)"
    wait_until(page, found, arg=str(step))


def test_nobody_asks_while_nobody_looks(page, growing):
    visit(page, model="greetings", tab="training")
    chart_table(page, "training")
    page.evaluate("Object.defineProperty(document, 'visibilityState', {get: () => window.seen})")
    page.evaluate("window.seen = 'hidden'")
    page.wait_for_timeout(2500)  # one that was on its way may still come
    before = asked(page)
    growing(**train_line(6000, 0.1))
    page.wait_for_timeout(4500)
    assert asked(page) == before
    page.evaluate("window.seen = 'visible'; document.dispatchEvent(new Event('visibilitychange'))")
    step_is_there(page, 6000)
    page.get_by_role("tab", name="Model").click()  # and not from another tab either
    ready(page)
    left = asked(page)
    page.wait_for_timeout(3000)
    assert asked(page) == left


def asked(page):
    return sum("/metrics" in request.url for request in page.watch.sent)


def test_a_run_without_a_log_says_so(page, runs):
    log = runs["bert"] / "log.jsonl"
    os.rename(log, f"{log}.away")
    try:
        visit(page, model="bert", tab="training")
        assert "has no log" in page.locator(".training-curves").inner_text()
    finally:
        os.rename(f"{log}.away", log)
