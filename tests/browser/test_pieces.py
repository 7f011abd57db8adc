"""Characters that several byte tokens spell: the page shows text, and which part a token is."""

import re

import pytest

import limelight
from tests.browser.conftest import ready, visit, wait_until
from tests.serve.samples import Served

pytestmark = pytest.mark.system

TEXT = "Practice makes perfect."
RAW = re.compile("<[0-9A-F]{2}>")


@pytest.fixture(scope="module")
def bundled():
    with Served("en-de") as served:
        yield served


@pytest.fixture
def german(new_page, bundled):
    return new_page(host=bundled.url)


@pytest.fixture(scope="module")
def model():
    loaded = limelight.load("en-de", device="cpu")
    assert loaded.translate(TEXT).outputs[0].tokens[:2] == ("<C3>", "<9C>")  # or this shows nothing
    return loaded


def shown(page):
    """All that stands in the page, drawings included."""
    return page.locator("main").evaluate("main => main.textContent")


def test_a_translation_is_its_text_and_chips_say_which_part_they_are(german, model):
    page = visit(german, model="en-de", tab="translate", text=TEXT)
    best = model.translate(TEXT).outputs[0]
    words = page.locator(".result .words")
    assert words.inner_text().split("⟨end⟩")[0].strip() == best.text == "Übung macht perfekt."
    assert not RAW.search(shown(page))
    page.get_by_role("button", name="Übung", exact=True).click()
    chips = page.locator(".piece-choice .chip")
    chips.first.wait_for()
    assert chips.all_inner_texts() == ["Ü¹/₂", "Ü²/₂", "b", "ung"]
    assert chips.first.get_attribute("title") == "bytes <C3>"
    assert chips.nth(2).get_attribute("title") is None
    chips.nth(1).click()
    options = page.locator("[role=option]:not([aria-disabled])")  # others spell no text
    bold = options.locator("strong").all_inner_texts()
    assert "Ü" in bold
    assert not any(map(RAW.search, options.all_inner_texts()))


def test_a_prefix_before_a_fixed_word_is_text_too(german, model):
    page = visit(german, model="en-de", tab="translate", text=TEXT)
    page.get_by_role("button", name="macht", exact=True).click()
    page.locator("[role=option]").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector(".word.given")
    ready(page)
    given = page.locator(".word.given").all_inner_texts()
    assert given[0] == "Übung"
    page.locator(".word.given").nth(1).click()
    wait_until(page, "() => document.querySelectorAll('.word.given').length === 1")
    assert page.locator(".word.given").all_inner_texts() == ["Übung"]


STAGES = ["loop", "classifier", "beam", "follow", "teacher", "loss", "learning", "start"]


@pytest.mark.parametrize("stage", STAGES)
def test_explain_has_characters_and_not_bytes(german, model, stage):
    page = visit(german, model="en-de", tab="explain", text=TEXT, stage=stage, step=0)
    text = shown(page)
    assert "Ü" in text
    steps = model.explain(TEXT).steps
    raw = {c.piece for step in steps for c in step.top if RAW.search(c.piece)}
    assert "<9C>" in raw
    assert "<9C>" not in text
    if stage == "loop":
        assert "next best Ä²/₂" in text


@pytest.mark.parametrize("text", ["مرحبا 😀", "Ünal"])
def test_the_source_is_readable_too(german, model, text):
    page = visit(german, model="en-de", tab="translate", text=text)
    read = page.locator("ol[aria-label='Source tokens'] .share-word").all_inner_texts()
    assert " ".join(read[1:-1]).replace("· ", "") == text
    page = visit(page, model="en-de", tab="explain", text=text, stage="pieces")
    labels = model.explain(text).source.labels
    cards = page.locator(".pieces").inner_text()
    assert all(label in cards for label in labels)
    assert not RAW.search(shown(page))
