"""Two sides: sentences, heads and models; and what was generated, with its branches."""

import pytest

from tests.browser.conftest import ready, serious, visit

pytestmark = pytest.mark.system


def settled(page):
    page.wait_for_timeout(30)
    return ready(page)


def test_two_sentences_two_heads_two_models(new_page, known):
    page = new_page(bypass_csp=True)
    visit(page, tab="compare", model="greetings", text="Hi how are you")
    page.get_by_label("Text to compare with").fill("who are you")
    page.get_by_role("button", name="Compare", exact=True).click()
    settled(page)
    model = known["greetings"]
    for side, text in (("before", "Hi how are you"), ("after", "who are you")):
        assert page.locator(f".two-text.{side} p").inner_text() == model.translate(text).text
    page.get_by_label("Second head").select_option("3")
    settled(page)
    assert "headB=3" in page.url
    titles = page.locator(".two-matrices .matrix-title").all_inner_texts()
    assert [title[-6:] for title in titles] == ["head 1", "head 3"]
    page.get_by_label("Model to compare with").select_option("writer")
    settled(page)
    assert page.locator(".two-text.after .label").inner_text().startswith("writer")
    assert serious(page) == []


def test_another_candidate_starts_a_branch(page):
    visit(page, tab="write", model="writer", text="the cat")
    page.get_by_label("max tokens").fill("6")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Undo").wait_for()
    ready(page)
    field = page.get_by_label("Your text")
    first = field.input_value()
    count = page.locator(".story-piece").count()
    assert count
    page.locator(".story-piece").nth(1).click()
    ready(page)
    assert first.startswith(field.input_value())
    assert len(field.input_value()) < len(first)
    other = page.locator(".story-candidates .bars-line:not(.marked)").first
    other.click()
    page.locator(".story-tree .story-run").nth(2).wait_for()
    page.get_by_role("button", name="Undo").wait_for()
    ready(page)
    assert field.input_value() != first
    page.locator(".story-tree .story-run").nth(1).click()  # back to the first branch
    ready(page)
    assert field.input_value() == first
    assert page.locator(".story-piece").count() == count


def test_undo_takes_back_what_was_generated(page):
    visit(page, tab="write", model="writer", text="the cat")
    page.get_by_label("max tokens").fill("4")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Undo").wait_for()
    ready(page)
    field = page.get_by_label("Your text")
    assert field.input_value() != "the cat"
    field.focus()
    page.keyboard.press("Control+z")
    assert field.input_value() == "the cat"


@pytest.mark.parametrize(
    ("tab", "field"), [("explain", "Text to inspect"), ("chat", "Your message")]
)
def test_a_paste_that_a_field_cuts_is_said(new_page, tab, field):
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    visit(page, tab=tab, model="greetings", text="Hi how are you")
    page.evaluate("text => navigator.clipboard.writeText(text)", "are you here " * 1700)
    page.get_by_label(field).select_text()
    page.keyboard.press("Control+V")
    note = page.locator(".cut-note")
    note.wait_for()
    assert "2,000 characters" in note.inner_text()
    assert "5,100 words" in note.inner_text()
    assert len(page.get_by_label(field).input_value()) <= 2000
    page.keyboard.press("Backspace")
    assert note.count() == 0
    page.evaluate("navigator.clipboard.writeText('short')")
    page.get_by_label(field).select_text()
    page.keyboard.press("Control+V")
    page.wait_for_timeout(30)
    assert note.count() == 0


def test_a_fixed_word_is_in_the_link_and_a_long_paste_is_not_cut_in_silence(page):
    visit(page, tab="translate", model="greetings", text="Hi how are you")
    page.locator(".word").nth(1).click()
    page.locator(".option-row:not([aria-disabled])").nth(1).click()
    page.wait_for_selector(".word.given")
    ready(page)
    text = page.locator(".words").inner_text()
    assert "prefix=" in page.url
    page.reload()
    ready(page)
    assert page.locator(".words").inner_text() == text
    page.watch.allow("400")  # there is no alignment of a text in parts
    page.get_by_label("Text to translate").fill("are you here " * 1700)
    page.get_by_role("button", name="Translate the beginning").wait_for()
    assert "5,100 words" in page.locator(".result").inner_text()
    assert "of 2,000 characters" in page.locator(".counter").inner_text()
    page.get_by_role("button", name="Translate the beginning").click()
    page.wait_for_timeout(30)
    ready(page)
    assert len(page.get_by_label("Text to translate").input_value()) <= 2000
