"""The what-if bench: what is clicked is what is computed, and the URL has all of it."""

from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from limelight.explain.comparison import rank_heads
from tests.browser.conftest import ready, serious, visit
from tests.browser.number_format import is_share
from tests.explain.by_hand import ByHand, softmax

pytestmark = pytest.mark.system

LINK = {"tab": "what-if", "model": "greetings", "text": "Hi how are you"}
TITLE = "Cross-attention, layer 1, head 2"


def changes(page):
    return parse_qs(urlsplit(page.url).fragment).get("change", [])


def switch(page, name):
    """Click it, and wait for the answer."""
    page.get_by_role("switch", name=name, exact=True).first.click()
    page.wait_for_timeout(30)
    ready(page)


def shown(page):
    """Token, before, after, for each row of the table."""
    rows = page.locator(".pair-table tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("th, td.n").all()] for row in rows]


def test_a_head_off_shows_the_numbers_computed_by_hand(page, known):
    visit(page, **LINK)
    before = [row[-1] for row in shown(page)]
    switch(page, TITLE)
    assert changes(page) == ["decoder.0.cross@2=off"]
    trace = known["greetings"].explain("Hi how are you")
    given = trace.traced_text

    def off(weights):
        return np.concatenate([weights[:1], 0 * weights[1:2], weights[2:]])

    hand = ByHand(trace.model, given.source, given.target, {"decoder.0.cross.weights": off})
    shares = softmax(hand.values["logits"])
    expected = [shares[step.row, step.chosen.token] for step in trace.steps]
    after = [row[2] for row in shown(page)]
    assert all(map(is_share, after, expected))
    assert len(after) == len(expected)
    assert [row[1] for row in shown(page)] == before != after
    assert page.locator(".two-matrices .matrix").count() == 2

    page.reload()
    ready(page)
    assert [row[2] for row in shown(page)] == after  # the link has it
    switch(page, f"{TITLE}, off")  # on again
    assert changes(page) == []
    assert [row[-1] for row in shown(page)] == before


def test_words_are_hidden_and_forced(page, known):
    visit(page, **LINK)
    page.get_by_role("switch", name="token 2 of the source").click()
    page.wait_for_timeout(30)
    ready(page)
    page.locator(".force summary").first.click()
    page.get_by_label("Another word as token 1", exact=True).fill("bye")
    page.get_by_role("button", name="Force").first.click()
    page.wait_for_timeout(30)
    ready(page)
    assert changes(page) == ["source:2=hide", "target:1=bye"]
    after = known["greetings"].explain("Hi how are you", change=changes(page)).comparison.after
    assert page.locator(".two-text.after p").inner_text() == after
    assert after.startswith("bye")
    page.locator(".bench-change").first.click()  # one of them is taken back
    page.wait_for_timeout(30)
    ready(page)
    assert changes(page) == ["target:1=bye"]


def test_which_head_matters(page, known):
    visit(page, **LINK)
    page.get_by_role("button", name="Which head matters?").click()
    page.wait_for_selector(".switch-head.ranked")
    trace = known["greetings"].explain("Hi how are you")
    ranked = rank_heads(trace)
    assert page.locator(".switch-head.ranked").count() == len(ranked)
    tap, head, effect = ranked[0]
    cell = page.locator(f'[data-key="{tap.removesuffix(".weights")}@{head}"]')
    assert cell.inner_text() == f"{effect:.2f}"


def test_the_mask_and_any_value(page):
    visit(page, **LINK)
    page.locator("details.card > summary").click()
    switch(page, "look-ahead mask")
    assert changes(page) == ["decoder.*.self.masked=off"]
    page.get_by_label("Value").fill("encoder.0.self.norm")
    page.get_by_label("Action").select_option("scale")
    page.get_by_role("button", name="Change", exact=True).click()
    page.wait_for_timeout(30)
    ready(page)
    assert changes(page)[-1] == "encoder.0.self.norm=scale:0.5"
    assert "now most likely" in page.locator(".pair-table").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_kept_out(new_page, theme):
    page = new_page(color_scheme=theme, bypass_csp=True)
    visit(page, **LINK, change="decoder.0.cross@2=off")
    page.get_by_role("button", name="Which head matters?").click()
    page.wait_for_selector(".switch-head.ranked")
    assert serious(page) == []


@pytest.mark.parametrize("model", ["writer", "bert", "classifier"])
def test_every_family(page, model):
    visit(page, tab="what-if", model=model)
    page.locator(".switch-head").first.click()
    page.wait_for_timeout(30)
    ready(page)
    assert changes(page)[0].endswith("@1=off")
    assert shown(page)
