"""Attention, Training and Model for everybody: axe's rules, both themes, a phone, enlarged."""

import re

import pytest

from tests.browser.conftest import serious_after, visit, wait_until

pytestmark = pytest.mark.system


def open_the_table(page):
    page.get_by_role("button", name="Show as table").click()
    page.get_by_role("button", name=re.compile("All heads of layer")).click()
    page.locator(".attention-facts table").wait_for()


def see_lines(page):
    page.get_by_role("radio", name="Lines").check()
    page.locator(".lines-word").first.focus()


def see_the_curve_as_a_table(page):
    page.get_by_role("button", name="Show as table").click()
    page.locator(".teacher-rows").wait_for()


def see_all_settings(page):
    page.get_by_text("All settings").click()
    page.locator(".diagram").wait_for()


JOURNEYS = [
    ("greetings", "attention", open_the_table),
    ("writer", "attention", see_lines),
    ("greetings", "training", see_the_curve_as_a_table),
    ("greetings", "model", see_all_settings),
    ("bert", "model", see_all_settings),
]
NAMES = [f"{model}-{tab}" for model, tab, _ in JOURNEYS]
EACH = pytest.mark.parametrize(("model", "tab", "do"), JOURNEYS, ids=NAMES)


@EACH
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(new_page, model, tab, do, theme):
    assert serious_after(new_page, theme, model, tab, do) == []


@EACH
@pytest.mark.parametrize("width", [360, 640])  # a phone; a desktop at 200%
def test_nothing_is_lost_on_a_narrow_screen(new_page, model, tab, do, width):
    page = new_page(viewport={"width": width, "height": 740})
    visit(page, model=model, tab=tab)
    do(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for control in page.locator("main button:visible, main input:visible").all():
        at = control.bounding_box()
        assert at["x"] >= 0
        assert at["x"] + at["width"] <= width + 1


CORNER = """() => {
  const canvas = document.querySelector(".matrix-canvas");
  return [...canvas.getContext("2d").getImageData(2, 2, 1, 1).data].slice(0, 3);
}"""


def test_pictures_follow_the_theme(page):
    """What is painted is painted again in the colours of the other theme."""
    page.watch.allow("willReadFrequently")  # the test reads pixels, the page does not
    visit(page, model="greetings", tab="attention")
    page.locator(".matrix-canvas").wait_for()
    wait_until(page, f"({CORNER})().join() === '255,255,255'")
    page.get_by_role("button", name="Theme").click()  # auto, then light
    page.get_by_role("button", name="Theme").click()  # dark
    wait_until(page, f"Math.max(...({CORNER})()) < 60")
