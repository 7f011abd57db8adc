"""Fill and Classify: what could stand there, what a word does, and what looks at what."""

import pytest

import limelight
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.number_format import is_share, number_in
from tests.serve.samples import Served

pytestmark = pytest.mark.system

TEXT = "the ___ sleeps here."


@pytest.fixture
def opened(page):
    visit(page, model="bert", tab="fill", text=TEXT)
    return guessed(page)


def guessed(page):
    page.wait_for_selector(".fill-found .bars li")
    page.wait_for_selector(".fill-attention .share-number")
    return ready(page)


def field(page):
    return page.get_by_label("Text with blanks")


def told(row):
    """A bar's label and its share."""
    return row.locator(".bars-label").inner_text(), row.locator(".bars-value").inner_text()


def candidates(page, blank=0):
    rows = page.locator(".fill-found .card").nth(blank).locator(".bars li").all()
    return [told(row) for row in rows]


def are(shown, wanted):
    for (text, share), candidate in zip(shown, wanted, strict=False):
        assert text == candidate.text
        assert is_share(share, candidate.probability)


def test_the_candidates_are_pythons(opened, known):
    shown = candidates(opened)
    assert len(shown) == 8
    are(shown, known["bert"].fill(TEXT, 8).blanks[0])


def test_every_blank_has_its_own(page, known):
    text = "the ___ sleeps by the ___."
    visit(page, model="bert", tab="fill", text=text)
    guessed(page)
    for blank, wanted in enumerate(known["bert"].fill(text, 8).blanks):
        are(candidates(page, blank), wanted)


def test_a_click_hides_a_word_and_a_click_brings_it_back(opened, known):
    page = opened
    page.locator(".fill-words").get_by_role("button", name="here", exact=True).click()
    guessed(page)
    assert field(page).input_value() == "the ___ sleeps ___."
    wait_until(page, "() => document.querySelectorAll('.fill-found .card').length === 2")
    blanks = known["bert"].fill("the ___ sleeps ___.", 100).blanks
    are(candidates(page, 1)[:8], blanks[1])
    rank = [candidate.text for candidate in blanks[1]].index("here")
    said = page.locator(".fill-found .card").nth(1).locator("p").inner_text()
    assert ("most likely (argmax)" if rank == 0 else f"rank {rank + 1}") in said
    page.get_by_role("button", name="blank 2, originally here").click()
    assert field(page).input_value() == TEXT
    assert page.locator(".word.blank").count() == 1


def test_a_candidate_is_put_in_with_the_keyboard(opened, known):
    page = opened
    page.locator(".fill-found button.bars-line").nth(1).focus()
    page.keyboard.press("Enter")
    second = known["bert"].fill(TEXT, 2).blanks[0][1].text
    assert field(page).input_value() == TEXT.replace("___", second)
    page.get_by_text("No word is masked").wait_for()
    page.locator(".fill-words .word").first.focus()
    page.keyboard.press("Enter")
    guessed(page)
    assert field(page).input_value().startswith("___")
    assert page.evaluate("() => document.activeElement.classList.contains('blank')")


def test_attention_is_shown_both_ways(opened, known):
    model = known["bert"]
    trace = model.explain(TEXT)
    blank = trace.source.ids.index(model.tokenizer.mask)
    layers = model.model.config.layers
    weights = trace.tensor(f"encoder.{layers - 1}.self.weights").mean(dim=0)
    for name, expected in (
        ("What the blank attends to", weights[blank]),
        ("What attends to the blank", weights[:, blank]),
    ):
        line = opened.locator(f"ol[aria-label='{name}']")
        numbers = line.locator(".share-number").all_inner_texts()
        assert len(numbers) == len(trace.source)  # this model reads whole words
        for number, share in zip(numbers, expected.tolist(), strict=True):
            assert is_share(number, share)


def test_a_blank_that_is_typed_is_guessed_too(page, known):
    visit(page, model="bert", tab="fill")
    field(page).fill("the cat ___ by the river.")
    wait_until(page, "() => location.hash.includes('by+the+river')")
    guessed(page)
    are(candidates(page), known["bert"].fill("the cat ___ by the river.", 8).blanks[0])


def test_a_hostile_text_is_words_like_any_other(opened):
    page = opened
    before = page.locator("img").count()
    field(page).fill("<img src=x onerror=alert(1)> ___ </p>")
    wait_until(page, "() => location.hash.includes('onerror')")
    guessed(page)
    assert page.locator("img").count() == before
    assert page.locator(".fill-words").inner_text() == "<img src=x onerror=alert(1)> ___ </p>"


# Classify


@pytest.fixture
def sorted_out(page):
    visit(page, model="classifier", tab="classify", text="the cat sleeps here.")
    page.wait_for_selector("ol[aria-label='Classes and their probabilities'] li")
    return ready(page)


def chances(page):
    rows = page.locator("ol[aria-label='Classes and their probabilities'] li").all()
    return dict(told(row) for row in rows)


def test_the_classes_are_pythons_as_somebody_types(sorted_out, known):
    page, model = sorted_out, known["classifier"]
    for text in ("the cat sleeps here.", "the old man walks by the river."):
        page.get_by_label("Text to classify").fill(text)
        wait_until(page, "end => location.hash.includes(end)", arg=text.split()[-1][:-1])
        ready(page)
        shown = chances(page)
        assert list(shown) == list(model.classes)
        for name, chance in model.classify(text).items():
            assert is_share(shown[name], chance)


def test_what_each_word_does_is_asked_and_not_guessed(sorted_out, known):
    model, text = known["classifier"], "the cat sleeps here."
    whole = model.classify(text)
    best = max(whole, key=lambda name: whole[name])
    numbers = sorted_out.locator(".share-number").all_inner_texts()
    words = ["the", "cat", "sleeps", "here"]
    assert sorted_out.locator(".share-word").all_inner_texts() == words
    for word, number in zip(words, numbers, strict=True):
        change = 100 * (whole[best] - model.classify(text.replace(word, "", 1))[best])
        assert number_in(number) == pytest.approx(change, abs=0.051)


# Words of several pieces: the bundled model has some


@pytest.fixture(scope="module")
def cutting():
    """The bundled model, whose words come in pieces."""
    with Served("fill") as served:
        yield served


def test_a_word_of_several_pieces_gets_a_blank_for_each(new_page, cutting):
    model = limelight.load("fill")
    text = "She was unbelievably happy."
    trace = model.explain(text)
    inside = [i for i, span in enumerate(trace.source.spans) if span and 7 <= span[0] < 20]
    pieces = [trace.source.pieces[i].strip() for i in inside]
    assert len(pieces) > 1
    page = visit(new_page(host=cutting.url), tab="fill", text=text)
    page.get_by_role("button", name="unbelievably").click()
    guessed(page)
    hidden = text.replace("unbelievably", "___" * len(pieces))
    assert field(page).input_value() == hidden
    wait_until(
        page, "n => document.querySelectorAll('.fill-found .card').length === n", arg=len(pieces)
    )
    for blank, wanted in enumerate(model.fill(hidden, 8).blanks):
        are(candidates(page, blank)[:8], wanted)
        said = page.locator(".fill-found .card").nth(blank).locator("p").inner_text()
        assert f"The original, “{pieces[blank]}”" in said
        assert f"“unbelievably” has {len(pieces)} pieces" in said
    page.locator(".word.blank").last.click()  # any of them brings the whole word back
    assert field(page).input_value() == text


def test_a_piece_that_is_put_in_leaves_the_others_blank(new_page, cutting):
    text = "She was unbelievably happy."
    page = visit(new_page(host=cutting.url), tab="fill", text=text)
    page.get_by_role("button", name="unbelievably").click()
    guessed(page)
    count = page.locator(".word.blank").count()
    wait_until(page, "n => document.querySelectorAll('.fill-found .card').length === n", arg=count)
    chosen = candidates(page)[0][0]
    page.locator(".fill-found button.bars-line").first.click()
    assert field(page).input_value() == text.replace("unbelievably", chosen + "___" * (count - 1))
    assert page.locator(".word.blank").count() == count - 1


def test_a_part_of_a_character_is_not_put_in_as_text(new_page, cutting):
    """What the service answers is changed on its way, so that the first candidate is a byte."""
    text = "She was ___ happy."
    page = new_page(host=cutting.url)

    def with_a_byte(route):
        answer = route.fetch()
        body = answer.json()
        body["blanks"][0][0]["text"] = "<C3>"
        route.fulfill(response=answer, json=body)

    page.route("**/api/fill", with_a_byte)
    visit(page, tab="fill", text=text)
    guessed(page)
    page.locator(".fill-found button.bars-line").first.click()
    page.get_by_text("<C3> is part of a character").wait_for(state="attached")
    assert field(page).input_value() == text
    chosen = candidates(page)[1][0]  # the control: others are put in
    page.locator(".fill-found button.bars-line").nth(1).click()
    assert field(page).input_value() == text.replace("___", chosen)
