"""The tabs that use the model, for everybody: by axe's rules, in both themes, on a phone, enlarged.

What a tab opens, a list or a panel, is judged while it is open.
"""

import pytest

from tests.browser.conftest import serious_after, visit

pytestmark = pytest.mark.system


def choose_a_word(page):
    page.locator(".result .word").first.click()
    page.wait_for_selector("[role=listbox]")


def talk(page):
    page.get_by_label("Your message").fill("Hi how are you")
    page.keyboard.press("Enter")
    page.locator(".answer.done .word").first.click()
    page.wait_for_selector(".inspector-card .share.strongest")


def be_offered_something(page):
    page.wait_for_selector(".sampling:not([aria-busy]) .bars li")
    page.get_by_role("button", name="Suggest").click()
    page.wait_for_selector("[role=listbox]")


def guess(page):
    page.wait_for_selector(".fill-attention .share-number")


def sort_out(page):
    page.wait_for_selector(".share.for, .share.against")


JOURNEYS = [
    ("greetings", "translate", choose_a_word),
    ("greetings", "chat", talk),
    ("writer", "write", be_offered_something),
    ("bert", "fill", guess),
    ("classifier", "classify", sort_out),
]
EACH = pytest.mark.parametrize(("model", "tab", "do"), JOURNEYS, ids=[j[1] for j in JOURNEYS])


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
    for box in page.locator(".use button:visible").all():
        at = box.bounding_box()
        scrolls = box.evaluate("button => button.closest('.scroller') !== null")
        assert scrolls or (at["x"] >= 0 and at["x"] + at["width"] <= width + 1)
