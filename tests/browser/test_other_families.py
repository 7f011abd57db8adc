"""The same tabs for models that are built otherwise: recurrent, without an encoder, with tags."""

import pytest
from playwright.sync_api import expect

from limelight.tasks.translate import Constraints
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.number_format import is_share
from tests.serve.samples import Served
from tests.tasks.conftest import model  # noqa: F401  (a fixture)

pytestmark = pytest.mark.system

NAMES = ("gpt", "lstm", "tagged", "rnn", "draw")


@pytest.fixture(scope="module")
def others(run):
    with Served(*map(run, NAMES)) as served:
        yield served


@pytest.fixture
def opened(new_page, others):
    """`opened("gpt", "chat")` is a page on that tab of that model."""
    return lambda name, tab: visit(new_page(host=others.url), model=name, tab=tab)


def translation(page, text):
    page.get_by_label("Text to translate").fill(text)
    wait_until(page, "() => location.hash.includes('a+c+b')")
    page.wait_for_selector(".result:not([aria-busy]) .words")
    ready(page)
    return page.locator(".result .words").inner_text().split("⟨end⟩")[0].strip()


def test_a_model_without_an_encoder_answers_and_tells_why(opened, model):  # noqa: F811
    learned = model("gpt")
    page = opened("gpt", "translate")
    assert translation(page, "a c b") == learned.translate("a c b").text
    assert page.locator(".share-line").count() == 0  # there is no source to look at
    page.locator(".result .word").first.click()
    page.wait_for_selector("[role=option]")
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Chat").click()
    page.get_by_label("Your message").fill("a c b")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer.done .word")
    answer = " ".join(page.locator(".answer .words").inner_text().split())
    assert answer == learned.chat().reply("a c b")
    page.locator(".answer .word").nth(1).click()
    page.wait_for_selector(".inspector-card .share.strongest")
    trace = learned.explain("a c b", target=answer)
    written = [step for step in trace.steps if step.chosen.piece.strip()]
    step = written[1]  # of the second letter, as every letter is a piece
    shown = page.locator(".inspector-card .bars-line.marked")
    assert shown.locator(".bars-label").inner_text().replace("·", " ") == step.chosen.piece
    assert is_share(shown.locator(".bars-value").inner_text(), step.chosen.probability)


def test_a_recurrent_model_can_be_compared_and_one_that_draws_is_not_offered(
    opened,
    model,  # noqa: F811
):
    page = opened("gpt", "compare")
    chooser = page.get_by_label("Model to compare with")
    expect(chooser.locator("option[value=draw]")).to_have_count(0)
    assert chooser.locator("option").count() == len(NAMES) - 1
    page.get_by_label("Text to compare with").fill("a c b")
    page.get_by_role("button", name="Compare", exact=True).click()
    for name in ("lstm", "rnn", "gpt"):
        chooser.select_option(name)
        page.wait_for_timeout(30)
        ready(page)
        assert page.locator(".panel.error").count() == 0
        trace = model(name).explain("a c b")
        given, answers = trace.traced_text.given, trace.answers
        told = zip(answers.pieces[given:], answers.special[given:], strict=True)
        text = "".join(piece for piece, special in told if not special).split()
        assert page.locator(".two-text.after p").inner_text().split() == text
        heads = page.get_by_text("A recurrent model has no heads to compare.").count()
        assert heads == (name != "gpt")
        assert page.locator(".two-matrices").count() == (name == "gpt")


def test_a_recurrent_translator_shows_where_it_looked_and_explains_it(opened, model):  # noqa: F811
    page = opened("lstm", "translate")
    assert translation(page, "a c b") == model("lstm").translate("a c b").text
    page.locator(".result .word").first.hover()
    numbers = page.locator(".share-number").all_inner_texts()
    assert sum(float(number.strip("<% ")) for number in numbers) == pytest.approx(100, abs=2)
    page.get_by_role("button", name="Explain this").click()
    ready(page)
    assert page.locator(".sentence-row .chip").first.inner_text() == "a"
    assert page.get_by_role("tab", name="What if").count() == 0  # there are no heads to switch


def test_what_is_asked_of_a_model_with_tags_can_be_chosen(opened, model):  # noqa: F811
    learned = model("tagged")
    page = opened("tagged", "translate")
    for tag in learned.tags:
        page.get_by_label("Task tag").select_option(tag)
        shown = translation(page, "a c b")
        assert shown == learned.translate("a c b", constraints=Constraints(tag=tag)).text


def test_the_tag_that_was_chosen_goes_along_into_the_walk(opened, model):  # noqa: F811
    learned = model("tagged")
    last = learned.tags[-1]  # not the one that is usual
    page = opened("tagged", "translate")
    page.get_by_label("Task tag").select_option(last)
    translation(page, "a c b")
    page.get_by_role("button", name="Explain this").click()
    assert page.get_by_label("Task tag").input_value() == last
    for tag in (last, learned.tags[0]):
        page.get_by_label("Task tag").select_option(tag)
        ready(page)
        trace = learned.explain("a c b", tag=tag)
        rows = page.locator(".sentence-row").all()
        assert rows[0].locator(".chip").all_inner_texts() == list(trace.source.labels)
        assert f"tag={tag}" in page.url
    page.go_back()
    ready(page)
    assert page.get_by_label("Task tag").input_value() == last
    page.get_by_role("tab", name="Translate").click()
    page.wait_for_selector(".result:not([aria-busy]) .words")
    assert page.get_by_label("Task tag").input_value() == last


def test_a_recurrent_writer_offers_and_writes(opened, model):  # noqa: F811
    page = opened("rnn", "write")
    page.get_by_label("Your text").fill("the cat")
    wait_until(page, "() => location.hash.includes('the+cat')")
    page.wait_for_selector(".sampling:not([aria-busy]) .bars li")
    page.get_by_role("slider", name="Temperature").evaluate(
        "slider => { slider.value = 0; slider.dispatchEvent(new Event('input')); }"
    )
    page.get_by_label("max tokens").fill("12")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Undo").wait_for()
    written = model("rnn").write("the cat", max_tokens=12, temperature=0)
    assert page.get_by_label("Your text").input_value() == "the cat" + written
