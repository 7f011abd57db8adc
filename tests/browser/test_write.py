"""Write: suggestions, exact probabilities under the sliders, and what the word looks at."""

import math
import re

import pytest
import torch

from limelight.decode.alternatives import alternatives
from limelight.decode.config import DecodeConfig
from limelight.decode.request import Request
from limelight.decode.sampling import top_k_top_p_mask
from limelight.explain.tokens import visible
from limelight.tasks.write import encode_prompt
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.number_format import is_share

pytestmark = pytest.mark.system

TEXT = "the cat s"


@pytest.fixture
def opened(page):
    return settled(visit(page, model="writer", tab="write", text=TEXT))


def settled(page):
    """Until the probabilities are those of this text."""
    page.wait_for_selector(".sampling:not([aria-busy]) .bars li")
    return ready(page)


def editor(page):
    return page.get_by_label("Your text")


def at_the_end(page):
    editor(page).focus()
    page.keyboard.press("Control+End")


def sent(page, path):
    return [r for r in page.watch.sent if r.method == "POST" and path in r.url]


def slide(page, name, value):
    """Move a slider as a person does, event and all."""
    page.get_by_role("slider", name=name).evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }",
        str(value),
    )


def drawn_from(model, text, config):
    """The probabilities that Python draws the next token from, by token."""
    tokens = torch.tensor([encode_prompt(model, text)[0]])
    with torch.inference_mode():
        logits = model.model(tokens)[0, -1].double()
    ranked, order = logits.sort(descending=True, stable=True)
    chances = (ranked / config.temperature).softmax(dim=-1)[None]
    chances = chances * top_k_top_p_mask(chances, config)
    return dict(zip(order.tolist(), (chances / chances.sum())[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.6, 5, 1.0), (1.0, 0, 0.6), (1.3, 7, 0.85), (2.0, 0, 0.98)],
)
def test_under_the_sliders_are_pythons_probabilities_and_nothing_is_asked(
    opened, known, temperature, top_k, top_p
):
    page, model = opened, known["writer"]
    before = len(page.watch.sent)
    slide(page, "Temperature", temperature)
    slide(page, "Top-k", top_k)
    slide(page, "Top-p", top_p)
    assert len(page.watch.sent) == before
    config = DecodeConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    chances = drawn_from(model, TEXT, config)
    kept = sum(chance > 0 for chance in chances.values())
    said = page.locator(".sampling-summary").inner_text()
    assert said.startswith(f"{kept} of {len(model.tokenizer)} pieces can be sampled")
    rows = page.locator(".sampling .bars li").all()
    assert len(rows) == 12
    best = sorted(chances.items(), key=lambda pair: -pair[1])
    for row, (token, chance) in zip(rows[: min(kept, 12)], best, strict=False):
        label = visible(model.tokenizer.pieces([token])[0])
        assert row.locator(".bars-label").inner_text() == label
        assert is_share(row.locator(".bars-value").inner_text(), chance)
    for row in rows[kept:]:
        assert row.locator(".bars-value").inner_text() == "0.0%"


def test_temperature_zero_takes_the_likeliest(opened, known):
    slide(opened, "Temperature", 0)
    assert opened.locator(".bars-value").first.inner_text() == "100.0%"
    assert opened.locator(".sampling-summary").inner_text().startswith("1 of")


def suggested(model, text, count):
    """As Python's own search for alternatives finds them."""
    limit = min(8, max(1, model.max_len // 2))
    read, _ = encode_prompt(model, text)
    request = Request(read[-max(1, model.max_len - limit) :], limit)
    with torch.inference_mode():
        (found,) = alternatives(model.engine.model, request, [], [0], count, model.tokenizer)
    texts = [model.tokenizer.decode([choice.token, *choice.rest.tokens]) for choice in found]
    logprobs = [(choice.logprob, *choice.rest.logprobs) for choice in found]
    shares = [(math.exp(sum(every)), math.exp(every[0])) for every in logprobs]
    return list(zip(texts, shares, strict=True))


def offered(page):
    page.wait_for_selector("[role=listbox] [role=option]")
    options = page.locator("[role=option]").all()
    texts = [" ".join(o.locator(".option-text").inner_text().split()) for o in options]
    shares = [o.locator(".option-share").inner_text() for o in options]
    firsts = [o.locator(".option-note").inner_text() for o in options]
    return list(zip(texts, zip(shares, firsts, strict=True), strict=True))


def same(shown, wanted):
    for (text, (percent, note)), (expected, (chance, first)) in zip(shown, wanted, strict=True):
        plain = visible(expected).replace("·", " ")
        assert text == (" ".join(plain.split()) or "end of the text")
        assert is_share(percent, chance)
        assert note.startswith("first token ")
        assert is_share(note.removeprefix("first token "), first)


def test_tab_offers_three_and_three_more_and_enter_puts_one_in(opened, known):
    page, model = opened, known["writer"]
    wanted = suggested(model, TEXT, 6)
    at_the_end(page)
    page.keyboard.press("Tab")
    same(offered(page), wanted[:3])
    first = page.locator(".option-text").first.inner_text()
    page.keyboard.press("Tab")
    wait_until(
        page, "first => document.querySelector('.option-text').innerText !== first", arg=first
    )
    same(offered(page), wanted[3:])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert editor(page).input_value() == TEXT + wanted[4][0]
    assert page.locator("[role=listbox]").count() == 0
    assert page.evaluate("() => document.activeElement.id") == "sentence"
    page.keyboard.press("Control+z")
    assert editor(page).input_value() == TEXT


def test_control_space_offers_too_and_escape_changes_nothing(opened, known):
    page = opened
    at_the_end(page)
    page.keyboard.press("Control+Space")
    same(offered(page), suggested(known["writer"], TEXT, 3))
    page.keyboard.press("Escape")
    assert page.locator("[role=listbox]").count() == 0
    assert editor(page).input_value() == TEXT
    page.keyboard.press("Control+Space")
    offered(page)
    page.keyboard.type("x")  # who writes on has chosen nothing
    assert editor(page).input_value() == TEXT + "x"


def test_tab_is_no_trap(opened):
    page = opened
    at_the_end(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") != "sentence"
    page.get_by_label("Tab suggests too").uncheck()
    at_the_end(page)
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") != "sentence"
    at_the_end(page)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("() => document.activeElement.id") != "sentence"
    assert not sent(page, "/api/suggest")


def test_what_the_word_before_the_cursor_looks_at(opened, known):
    page, model = opened, known["writer"]
    page.wait_for_selector(".under .share-line")
    trace = model.explain(TEXT, target="")
    last = len(TEXT)  # of characters, and of rows after the first, as this model reads characters
    layers = model.model.config.layers
    weights = trace.tensor(f"decoder.{layers - 1}.self.weights")[:, last].mean(dim=0)
    numbers = page.locator(".under .share-number").all_inner_texts()
    assert is_share(numbers[0], weights[0].item())
    words = [weights[1:4].sum(), weights[4:8].sum(), weights[8:10].sum()]  # the| cat| s
    for number, share in zip(numbers[1:], words, strict=True):
        assert is_share(number, share.item())
    marks = page.locator(".editor-under mark")
    assert "".join(marks.all_text_contents()) == TEXT
    deepest = [float(m.evaluate("m => m.style.getPropertyValue('--share')")) for m in marks.all()]
    assert max(deepest) == pytest.approx(1)
    assert deepest.index(max(deepest)) == weights[1:].argmax().item()
    editor(page).evaluate("field => { field.focus(); field.setSelectionRange(3, 3); }")
    page.keyboard.press("ArrowLeft")  # after "th"
    wait_until(page, "() => document.querySelectorAll('.editor-under mark').length === 2")
    early = trace.tensor(f"decoder.{layers - 1}.self.weights")[:, 2].mean(dim=0)
    numbers = page.locator(".under .share-number").all_inner_texts()
    assert is_share(numbers[0], early[0].item())


@pytest.mark.parametrize("settings", [(0, 0, 1.0, 1), (0.9, 12, 0.9, 5)])
def test_the_text_goes_on_as_python_writes_it(opened, known, settings):
    page, (temperature, top_k, top_p, seed) = opened, settings
    page.watch.allow("413")  # of a text that became too long, how much fits is guessed, and learned
    slide(page, "Temperature", temperature)
    slide(page, "Top-k", top_k)
    slide(page, "Top-p", top_p)
    page.get_by_label("max tokens").fill("25")
    page.get_by_label("seed").fill(str(seed))
    at_the_end(page)
    page.get_by_role("button", name="Generate").dblclick()
    page.get_by_role("button", name="Undo").wait_for()
    fields = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    assert editor(page).input_value() == TEXT + known["writer"].write(TEXT, max_tokens=25, **fields)
    assert len(sent(page, "/v1/completions")) == 1  # a double click writes once
    settled(page)
    page.get_by_role("button", name="Undo").click()
    assert editor(page).input_value() == TEXT


def test_writing_goes_on_where_the_cursor_is(opened, known):
    page = opened
    editor(page).evaluate("field => { field.focus(); field.setSelectionRange(7, 7); }")
    page.get_by_label("max tokens").fill("5")
    slide(page, "Temperature", 0)
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Undo").wait_for()
    written = known["writer"].write(TEXT[:7], max_tokens=5, temperature=0)
    assert editor(page).input_value() == TEXT[:7] + written + TEXT[7:]


def test_a_text_that_breaks_off_says_so_and_can_be_tried_again(opened, known):
    page = opened
    slide(page, "Temperature", 0)
    at_the_end(page)
    half = 'data: {"choices": [{"index": 0, "text": "le"}]}\n\n'
    page.route(
        "**/v1/completions",
        lambda r: r.fulfill(status=200, content_type="text/event-stream", body=half),
    )
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("Generation was interrupted").wait_for()
    assert editor(page).input_value() == TEXT + "le"
    page.unroute("**/v1/completions")
    page.get_by_role("button", name="Try again").click()
    wait_until(page, "() => !document.querySelector('.write-state .bad')")
    page.get_by_role("button", name="Undo").wait_for()
    whole = known["writer"].write(TEXT, max_tokens=40, temperature=0)
    assert editor(page).input_value() == TEXT + whole


def test_stop_keeps_what_is_there(opened):
    page = opened
    page.route("**/v1/completions", lambda route: None)
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("You stopped it here.").wait_for()
    assert editor(page).input_value() == TEXT
    assert not editor(page).evaluate("field => field.readOnly")


def test_a_long_text_is_looked_at_where_the_model_still_sees_it(page, known):
    text = "the old man walks by the river. " * 4 + "the dog"
    page.watch.allow("413")  # the whole of it is asked for first
    settled(visit(page, model="writer", tab="write", text=text))
    page.wait_for_selector(".under .share-line")
    marks = page.locator(".editor-under mark").all_text_contents()
    assert text.endswith("".join(marks))
    assert 0 < len("".join(marks)) < known["writer"].max_len


def test_the_text_is_kept_over_a_reload_and_typing_asks_little(opened):
    page = opened
    before = len(sent(page, "/api/next"))
    at_the_end(page)
    page.keyboard.type("leeps by", delay=15)
    wait_until(page, "() => location.hash.includes('leeps+by')")
    settled(page)
    assert len(sent(page, "/api/next")) - before <= 3
    page.reload()
    settled(page)
    assert editor(page).input_value() == TEXT + "leeps by"
    assert re.search("leeps by", page.locator(".sampling-after").inner_text())
