"""The page opens on every model, quietly."""

import pytest

from tests.browser.conftest import MODELS, visit

pytestmark = pytest.mark.system


@pytest.mark.parametrize("model", MODELS)
def test_the_page_opens_on_every_model(page, model):
    visit(page, model=model)
    assert page.title() == f"{model} · Limelight"
    assert page.get_by_role("tab").count() >= 1
    assert page.locator(".error").count() == 0


def test_a_problem_is_noticed(page):
    """The watch itself is watched: each of these must be told."""
    visit(page)
    page.evaluate("console.error('an odd thing')")
    page.evaluate("setTimeout(() => { throw new Error('thrown away') })")
    page.evaluate("fetch('/api/nothing')")
    page.evaluate("fetch('http://elsewhere.invalid/').catch(() => 0)")
    page.wait_for_timeout(500)
    for found in ("an odd thing", "thrown away", "404 for GET", "Content Security Policy"):
        assert any(found in problem for problem in page.watch.unforgiven), found
    page.watch.allow("")
