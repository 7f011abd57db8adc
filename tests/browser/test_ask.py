"""Ask: summaries and paraphrases of a model that learned them, and where one finds it."""

import re

import pytest

from tests.browser.conftest import ready, serious, visit, wait_until
from tests.serve.samples import Served
from tests.tasks.conftest import model  # noqa: F401  (a fixture)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def others(run):
    with Served("helper", run("summaries")) as served:
        yield served


def card(page, name="Summary"):
    return page.get_by_role("region", name=name)


def answer(page, name, text):
    """What a card answers to a text; `None` while it does not."""
    card(page, name).get_by_role("textbox").fill(text)
    page.wait_for_timeout(300)  # after the last key
    ready(page)
    return card(page, name).locator(".ask-answer p").all_inner_texts()


def shown(lines):
    """The texts, without the probability behind each."""
    return [re.sub(r" (< )?[\d.]+%$", "", line) for line in lines]


def test_another_model_of_the_service_is_offered_and_summarises(new_page, others, model):  # noqa: F811
    learned = model("summaries")
    page = visit(new_page(host=others.url), model="helper", tab="ask")
    card(page).get_by_role("button", name="summaries can: open it").click()
    wait_until(page, "() => location.hash.includes('model=summaries')")
    ready(page)
    assert page.get_by_role("tab", selected=True).inner_text() == "Ask"
    texts = {"a c b": learned.summarise("a c b"), "d d a": learned.summarise("d d a")}
    for text, expected in texts.items():
        assert shown(answer(page, "Summary", text)) == [expected.text]
    assert len({done.text for done in texts.values()}) == 2
    others_words = [output.text for output in learned.paraphrase("a c b").outputs[:3]]
    assert shown(answer(page, "Paraphrase", "a c b")) == others_words
    assert answer(page, "Summary", "  ") == ["Fill in every field."]


def test_a_long_text_is_summarised_in_parts_and_says_so(new_page, others, model):  # noqa: F811
    text = " ".join(["a c b."] * 12)
    done = model("summaries").summarise(text)
    assert done.parts > 1
    page = visit(new_page(host=others.url), model="summaries", tab="ask")
    first, note = answer(page, "Summary", text)
    assert shown([first]) == [done.text]
    assert note == f"Too long to be read at once: read in {done.parts} parts."
    assert serious(page) == []


def test_a_summary_is_explained_as_one(new_page, others, model):  # noqa: F811
    page = visit(new_page(host=others.url), model="summaries", tab="ask")
    answer(page, "Summary", "b a c")
    card(page).get_by_role("button", name="Explain this").click()
    ready(page)
    assert page.get_by_label("Task tag").input_value() == "summarise"
    trace = model("summaries").explain("b a c", tag="summarise")
    chips = page.locator(".sentence-row").first.locator(".chip").all_inner_texts()
    assert chips == list(trace.source.labels)
