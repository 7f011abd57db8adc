"""A training seen from inside: the same place in every checkpoint, and the loop as it writes."""

import re

import pytest
import torch
from playwright.sync_api import expect

import limelight
from limelight.explain.starting_point import starting_point
from limelight.explain.tokens import visible
from limelight.tasks.search import rank_texts, why
from tests.browser.conftest import ready, serious, visit, wait_until
from tests.browser.page_reader import alike, matrix_of

pytestmark = pytest.mark.system

TEXT = "Hi how are you"


def settled(page):
    page.wait_for_timeout(30)
    return ready(page)


def test_the_slider_shows_one_place_in_every_checkpoint(new_page, known, runs):
    page = new_page(bypass_csp=True)
    visit(page, model="greetings", tab="explain", text=TEXT, stage="cross", all=1, layer=2, head=3)
    slider = page.get_by_label("Checkpoint of the training")
    answer = known["greetings"].translate(TEXT).text
    seen = []
    for key, step in (("Home", 50), ("ArrowRight", 100)):
        slider.focus()
        page.keyboard.press(key)
        settled(page)
        assert f"checkpoint={step}&" in f"{page.url}&"
        trace = limelight.load(runs["greetings"], step=step).explain(TEXT, answer)
        heads, _, shown = matrix_of(page, ".explain-picture")
        assert heads[:-1] == list(trace.source.labels)
        weights = trace.tensor("decoder.1.cross.weights", 3).tolist()
        assert alike([row[:-1] for row in shown], weights, 6e-4)
        assert f"{step} of 120" in page.locator(".checkpoint-text").inner_text()
        seen.append(shown)
    assert seen[0] != seen[1]
    assert serious(page) == []
    page.reload()  # the link is the checkpoint
    ready(page)
    assert matrix_of(page, ".explain-picture")[2] == seen[1]
    page.get_by_label("Play the training").click()  # from here to the end
    wait_until(page, "() => !location.hash.includes('checkpoint')")
    settled(page)
    assert "120 of 120" in page.locator(".checkpoint-text").inner_text()
    assert "layer=2&head=3" in page.url
    visit(page, model="writer", tab="explain")  # it has one checkpoint
    assert slider.is_hidden()


def test_the_slider_goes_on_looking_after_a_failure_and_an_absence(page):
    asked = []

    def answer(route):
        asked.append(route.request.url)
        if len(asked) == 1:
            route.abort()
        else:
            steps = [50, 100, 120, 130, 140][: 1 + len(asked)]
            route.fulfill(json={"name": "greetings", "loaded": 120, "steps": steps})

    def wait():
        page.clock.fast_forward(16_000)
        settled(page)

    page.watch.allow("/steps")
    page.clock.install()
    page.route("**/api/runs/*/steps", answer)
    visit(page, model="greetings", tab="explain", text=TEXT)
    slider = page.get_by_label("Checkpoint of the training")
    assert (len(asked), slider.is_hidden()) == (1, True)
    wait()
    expect(slider).to_have_attribute("max", "2")
    hide = "{ value: 'hidden', configurable: true }"
    page.evaluate(f"() => Object.defineProperty(document, 'visibilityState', {hide})")
    wait()
    wait()
    assert len(asked) == 2  # nobody sees it
    page.evaluate("() => { delete document.visibilityState; }")
    wait()
    expect(slider).to_have_attribute("max", "3")
    page.get_by_role("tab", name="Model").click()
    wait()
    assert len(asked) == 3  # it was left


def top_of(known, row, how):
    """The five likeliest pieces at a row, with their chances after temperature, top-k and top-p."""
    logits = known.logits[row].double()
    shares = (logits / how["Temperature"]).softmax(-1)
    order = logits.argsort(descending=True)
    kept = order[: how["Top-k"] or None]
    before = shares[kept].cumsum(0) - shares[kept]
    kept = kept[before < how["Top-p"] * shares[kept].sum()] if how["Top-p"] < 1 else kept
    chances = torch.zeros_like(shares)
    chances[kept] = shares[kept] / shares[kept].sum()
    return [chances[i].item() for i in order[:5]]


def slide(page, values):
    for name, value in values.items():
        page.get_by_label(name).evaluate(
            "(s, v) => { s.value = v; s.dispatchEvent(new Event('input')); }", str(value)
        )


def shares_of(page):
    texts = page.locator(".loop .bars-value").all_inner_texts()
    return [float(re.sub(r"[<% ]", "", text)) / 100 for text in texts]


def test_the_loop_plays_and_every_candidate_and_slider_is_true(new_page, known):
    page, model = new_page(bypass_csp=True), known["greetings"]
    visit(page, model="greetings", tab="explain", text=TEXT, stage="loop")
    trace = model.explain(TEXT)
    page.get_by_label("The token being written").focus()
    page.keyboard.press("Home")
    settled(page)
    sent = len(page.watch.sent)
    for how in (
        {"Temperature": 1, "Top-k": 0, "Top-p": 1},
        {"Temperature": 0.6, "Top-k": 3, "Top-p": 1},
        {"Temperature": 1.7, "Top-k": 40, "Top-p": 0.8},
    ):
        slide(page, how)
        assert shares_of(page) == pytest.approx(top_of(trace, trace.steps[0].row, how), abs=2e-3)
    assert len(page.watch.sent) == sent  # the page computes it
    weights = trace.tensor(f"decoder.{starting_point(trace).layer - 1}.cross.weights").mean(0)[0]
    titles = page.locator(".loop-read").evaluate_all(
        "all => all.map(one => parseFloat(one.title.slice(10)))"
    )
    assert titles == pytest.approx([100 * w for w in weights.tolist()], abs=0.6)
    slide(page, {"Temperature": 1.5, "Top-k": 20, "Top-p": 0.9})
    another = page.get_by_role("button", name="Another text")
    assert another.is_visible()
    slide(page, {"Temperature": 0})
    assert another.is_hidden()  # the most likely tokens give the same text
    slide(page, {"Temperature": 1.5})
    page.get_by_role("button", name="Write it").click()  # with these settings it is another text
    page.wait_for_url("**sample=1.5*")
    settled(page)
    how = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 1, "beam": 1, "beam_groups": 1}
    drawn = model.explain(TEXT, **how)
    words = page.locator(".loop-word")
    assert words.all_inner_texts() == list(drawn.answers.labels)
    expect(words.nth(1)).to_have_attribute("aria-pressed", "true")  # it plays
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("The token being written").focus()
    page.keyboard.press("Home")
    expect(words.first).to_have_attribute("aria-pressed", "true")
    assert serious(page) == []
    settled(page)
    others = page.locator(".loop .bars-line:not(.marked)")
    piece = next(c.piece for c in drawn.steps[0].top if c.token != drawn.steps[0].chosen.token)
    assert visible(piece) in others.first.inner_text()
    others.first.click()
    page.wait_for_url("**target=*")
    settled(page)
    assert "".join(words.all_inner_texts()).lstrip("·").startswith(visible(piece).strip("·"))


MARKED = """one => [...one.querySelectorAll("mark")].map((mark) => {
  const before = document.createRange();
  before.setStart(one, 0);
  before.setEndBefore(mark);
  return [[...before.toString()].length, mark.textContent];
})"""


def test_a_search_marks_the_word_that_is_meant_and_not_the_first_that_is_like_it(page, known):
    text = "🍌 the old cat is there, the cat sits, the dog walks"
    visit(page, model="bert", tab="search")
    page.get_by_label("Texts to search").fill(text)
    for query in ("the dog sits", "the cat", "walks here"):
        page.get_by_role("searchbox").fill(query)
        settled(page)
        similar = why(known["bert"], query, text)
        spans = {similar.text_spans[j] for j in similar.closest}
        marks = [(start, text[start:end]) for start, end in sorted(spans)]
        expect(page.locator("mark")).to_have_count(len(marks))
        assert [tuple(m) for m in page.locator(".search-text").evaluate(MARKED)] == marks
        for n, j in enumerate(similar.closest):
            page.locator(".search-why li").nth(n).hover()
            lit = page.locator("mark.lit")
            expect(lit).to_have_text(text[slice(*similar.text_spans[j])])
            where = marks.index((similar.text_spans[j][0], lit.inner_text()))
            expect(page.locator("mark").nth(where)).to_have_class("lit")
    assert any(text.index(word) != start for start, word in marks) or len(marks) > 1


def test_a_search_has_its_matches_and_says_why(new_page, known):
    page = new_page(bypass_csp=True)
    texts = ["the cat sits here", "a dog <img src=x onerror=alert(1)>", "the old man walks"]
    visit(page, model="bert", tab="search")
    page.get_by_label("Texts to search").fill("\n".join(texts))
    page.get_by_role("searchbox").fill("the cat walks")
    expect(page.locator(".search-match")).to_have_count(3)
    settled(page)
    ranked = rank_texts(known["bert"], "the cat walks", texts, 8)
    shown = page.locator(".search-text").all_inner_texts()
    assert shown == [texts[index] for _, index in ranked]
    scores = [float(text) for text in page.locator(".search-score").all_inner_texts()]
    assert scores == pytest.approx([score for score, _ in ranked], abs=6e-4)
    assert page.locator(".search-text mark").count() > 0
    assert page.locator("main img").count() == 0
    page.locator(".search-why li").first.hover()
    expect(page.locator(".search-match").first.locator("mark.lit")).to_have_count(1)
    assert serious(page) == []
    page.locator(".search-match button").last.click()  # texts like this one
    expect(page.locator(".search-text").first).to_have_text(shown[-1])
    page.get_by_role("searchbox").fill("")
    expect(page.locator(".search-match")).to_have_count(0)
