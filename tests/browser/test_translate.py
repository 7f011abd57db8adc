"""Translate: what a person sees is what Python says, and every word can be asked about."""

import json
import math
import re

import pytest

from limelight.tasks.translate import Constraints, alternative_choices
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.number_format import is_share, number_in

pytestmark = pytest.mark.system

TEXT = "Hi how are you"


@pytest.fixture
def opened(page):
    return visit(page, model="greetings", tab="translate", text=TEXT)


def said(page):
    """The translation as it stands there, without its end token."""
    words = page.locator(".result .words .word:not(.special)").all_inner_texts()
    return "".join(page.locator(".result .words").inner_text().split("⟨end⟩")[:1]).strip(), words


def can_be_said(choice):
    """An end is no text, and neither is half a character."""
    return not choice.piece.startswith("⟨") and "\ufffd" not in choice.begin


def posts(page, path):
    return [r.post_data_json for r in page.watch.sent if r.method == "POST" and path in r.url]


def test_the_translation_comes_as_somebody_types_and_is_pythons(page, known):
    visit(page, model="greetings", tab="translate")
    for text in ("Good morning", "What is your name?"):
        page.get_by_label("Text to translate").fill(text)
        wait_until(
            page,
            "text => document.querySelector('.result:not([aria-busy]) .words')"
            " && location.hash.includes(text)",
            arg=json.dumps(text)[1:5],
        )
        ready(page)
        best = known["greetings"].translate(text, nbest=3)
        assert said(page)[0] == best.text
        listed = page.locator(".hypotheses tbody tr")
        for row, output in zip(listed.all(), best.outputs, strict=True):
            text_shown, probability, score = row.locator("td").all_inner_texts()
            assert text_shown == (output.text or "(nothing)")
            assert number_in(score) == pytest.approx(output.score, abs=6e-4)
            assert is_share(probability, math.exp(sum(output.logprobs)))


def test_every_key_is_not_a_request_and_two_are_never_in_flight(opened):
    page = opened
    page.evaluate("""() => {
      window.flying = 0; window.most = 0;
      const real = window.fetch;
      window.fetch = async (path, options) => {
        window.flying += 1;
        window.most = Math.max(window.most, window.flying);
        try { return await real(path, options); }
        finally { window.flying -= 1; }
      };
    }""")
    before = len(posts(page, "/api/translate"))
    page.get_by_label("Text to translate").fill("")
    page.get_by_label("Text to translate").press_sequentially("Hello my friend", delay=20)
    wait_until(page, "() => location.hash.includes('friend')")
    ready(page)
    asked = posts(page, "/api/translate")[before:]
    assert asked[-1]["text"] == "Hello my friend"
    assert len(asked) <= 4  # and not one for each of the 15 keys
    assert page.evaluate("window.most") == 1


def test_a_word_tells_where_it_looked_in_numbers(opened, known, service):
    page = opened
    told = service.ask("/api/translate", model="greetings", text=TEXT, alignment=True)["alignment"]
    assert told["source"][-1] == "⟨end⟩"
    page.locator(".result .word").first.hover()
    numbers = page.locator("ol[aria-label='Source tokens'] .share-number").all_inner_texts()
    shown = [float(number.strip("<% ")) / 100 for number in numbers]
    assert sum(shown) == pytest.approx(1, abs=0.03)
    # The first word's share of the last source word, the end, which is a piece of its own.
    places = len(page.locator(".result .word").first.inner_text())  # its pieces spell it
    rows, spelled = [], ""
    for piece, row in zip(told["target"], told["weights"], strict=True):
        if len(spelled) < places:
            spelled, rows = spelled + piece.strip(), [*rows, row]
    expected = sum(row[-1] for row in rows) / len(rows)
    assert shown[-1] == pytest.approx(expected, abs=0.006)
    page.mouse.move(0, 0)
    assert page.locator(".share-number").all_inner_texts() == [""] * len(numbers)


def test_another_word_can_be_chosen_with_the_keyboard_alone(opened, known):
    page, model = opened, known["greetings"]
    config = model.settings()
    places = list(alternative_choices(model, TEXT, config, count=6))
    page.get_by_label("Text to translate").focus()
    while not page.evaluate("document.activeElement.classList.contains('word')"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=listbox]")
    shown = page.locator("[role=option]")
    assert shown.count() == 6
    for option, choice in zip(shown.all(), places[0], strict=True):
        assert is_share(option.locator(".option-share").inner_text(), choice.probability)
        if not can_be_said(choice):
            assert option.get_attribute("aria-disabled") == "true"
        else:
            text = " ".join(option.locator(".option-text").inner_text().split())
            assert re.sub(r"(<[0-9A-F]{2}>)+", "", text) == choice.text
    page.keyboard.press("Escape")
    assert page.locator("[role=listbox]").count() == 0
    assert page.evaluate("document.activeElement.classList.contains('word')")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=listbox]")
    wanted = next(i for i, c in enumerate(places[0]) if i and can_be_said(c))
    page.keyboard.press("Home")
    for _ in range(wanted):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".word.given")
    ready(page)
    forced = model.translate(TEXT, nbest=3, constraints=Constraints(prefix=places[0][wanted].begin))
    assert said(page)[0] == forced.text
    page.get_by_role("button", name="Remove the fixed words").click()
    page.wait_for_selector(".result:not([aria-busy]) .words")
    wait_until(page, "() => !document.querySelector('.word.given')")
    assert said(page)[0] == model.translate(TEXT).text


def test_the_tree_is_the_search_and_its_winner_is_marked(opened, service):
    told = service.ask("/api/translate", model="greetings", text=TEXT, nbest=3, tree=True)
    assert opened.locator(".beam-node").count() == sum(map(len, told["tree"]))
    won = opened.locator(".beam-node.won .beam-piece").all_text_contents()
    tokens = told["outputs"][0]["tokens"]
    assert [piece.replace("·", " ") for piece in won[: len(tokens)]] == [t[:10] for t in tokens]
    with opened.expect_download() as saved:
        opened.get_by_role("button", name="Save PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    opened.get_by_text("Show as table").click()
    opened.locator(".fold table").wait_for()  # made when somebody wants it
    assert opened.locator(".fold table tbody tr").count() == sum(map(len, told["tree"]))


def test_explain_this_leads_to_explain_with_this_text(opened):
    opened.get_by_role("button", name="Explain this").click()
    opened.wait_for_selector("#tab-explain[aria-selected=true]")
    ready(opened)
    assert "text=Hi+how+are+you" in opened.url


def test_a_text_that_is_too_long_is_translated_in_parts_and_says_so(page, known):
    text = "How are you today, my friend? " * 12
    visit(page, model="greetings", tab="translate", text=text.strip())
    page.watch.allow("400")  # its words cannot be told, which is asked first
    page.wait_for_selector(".result:not([aria-busy]) .prose")
    assert page.locator(".result .prose").inner_text() == known["greetings"].translate(text).text
    assert "parts" in page.locator(".hint").inner_text()


def test_a_refusal_is_told_and_can_be_tried_again(opened):
    page = opened
    page.watch.allow("503|Failed to load")
    problem = {"code": "worker_died", "message": "the model had to start anew", "hint": "wait"}
    page.route("**/api/translate", lambda r: r.fulfill(status=503, json={"error": problem}))
    page.get_by_label("Text to translate").fill("Thank you")
    page.get_by_role("alert").get_by_text("the model had to start anew").wait_for()
    page.unroute("**/api/translate")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".result .words")
    assert page.get_by_role("alert").count() == 0


def test_nothing_typed_is_no_error(opened):
    opened.get_by_label("Text to translate").fill("   ")
    opened.get_by_text("Type a sentence to translate it").wait_for()
    assert opened.locator(".error").count() == 0
