"""A link can change the model, and the page says so for as long as it does."""

from urllib.parse import urlencode

import pytest

from tests.browser.conftest import ready, visit

pytestmark = pytest.mark.system

CHANGES = ["decoder.0.cross@2=off", "source:2=hide"]
LINK = {"tab": "explain", "model": "greetings", "text": "Hi how are you", "stage": "cross"}


def numbers(page):
    return page.locator(".explain-picture").inner_text()


def test_a_changed_model_is_never_taken_for_the_true_one(page, known):
    visit(page, **LINK, layer=1, head=2)
    assert page.locator(".changed").count() == 0
    true = numbers(page)
    fragment = urlencode({**LINK, "layer": 1, "head": 2, "change": CHANGES}, doseq=True)
    page.goto("about:blank")
    page.goto(f"{page.watch.host}/#{fragment}")
    ready(page)
    assert page.locator(".changed").inner_text().startswith("Changed: " + CHANGES[0])
    assert CHANGES[1] in page.locator(".changed").inner_text()
    assert numbers(page) != true
    changed = known["greetings"].explain("Hi how are you", change=CHANGES)
    words = page.locator(".sentence-words .chip").all_inner_texts()
    assert words[-len(changed.answers.labels) :] == list(changed.answers.labels)

    page.locator(".tab", has_text="Attention").click()
    ready(page)
    assert page.locator(".changed").is_visible()
    page.go_back()
    ready(page)
    page.locator(".changed .button").click()
    page.wait_for_timeout(30)
    ready(page)
    assert page.locator(".changed").count() == 0
    assert "change=" not in page.url
    assert numbers(page) == true


def test_a_wrong_change_is_explained_and_can_be_removed(page):
    page.watch.allow("400")
    visit(page, **LINK, change="decoder.0.cros=off")
    assert "did you mean" in page.locator(".panel.error").inner_text()
    page.locator(".changed .button").click()
    page.wait_for_timeout(30)
    ready(page)
    assert page.locator(".panel.error").count() == 0
