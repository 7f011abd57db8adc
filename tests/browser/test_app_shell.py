"""The frame: tabs, keys, themes, a key for the service, and what is said when nobody answers."""

import os
import signal

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ready, visit
from tests.serve.samples import Served, until

pytestmark = pytest.mark.system


class Loading(Served):
    """A service that listens and whose workers are halted while they load their models."""

    def wait_for(self, event, seconds):
        super().wait_for("listening", seconds)
        until(lambda: len(self.worker()) == 2, seconds, self.process)
        self.halted = self.worker()
        for worker in self.halted:
            os.kill(worker, signal.SIGSTOP)

    def go_on(self):
        """Let the last halted worker load its model."""
        os.kill(self.halted.pop(), signal.SIGCONT)

    def __exit__(self, *wrong):
        while self.halted:
            self.go_on()
        super().__exit__(*wrong)


def chosen(page):
    return page.locator("[role=tab][aria-selected=true]").inner_text()


def test_tabs_go_by_arrow_keys_and_back_goes_back(page):
    visit(page, tab="explain")
    page.get_by_role("tab", name="Explain").focus()
    page.keyboard.press("ArrowRight")
    ready(page)
    assert chosen(page) == "What if"
    assert page.evaluate("document.activeElement.id") == "tab-what-if"
    page.keyboard.press("Home")
    assert chosen(page) == page.get_by_role("tab").first.inner_text()
    page.keyboard.press("ArrowLeft")
    assert chosen(page) == page.get_by_role("tab").last.inner_text()
    tabs = page.get_by_role("tab").all()
    assert [tab.get_attribute("tabindex") for tab in tabs].count("0") == 1
    for _ in range(3):
        page.go_back()
    assert chosen(page) == "Explain"


def test_help_lists_the_keys_and_they_can_be_switched_off(page):
    visit(page, tab="explain")
    page.keyboard.press("?")
    box = page.get_by_role("dialog")
    for key in ("/", "[ ]", "{ }", ", .", "p", "t"):
        assert box.locator("kbd", has_text=key).count() >= 1
    box.get_by_label("enable single-key shortcuts").uncheck()
    box.get_by_role("button", name="Close").click()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    assert page.locator(".walk").get_attribute("data-stage") == "pieces"
    page.keyboard.press("?")
    box.get_by_label("enable single-key shortcuts").check()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    page.locator(".walk[data-stage=embedding]").wait_for()


def test_keys_are_letters_while_somebody_types(page):
    visit(page, tab="explain")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "sentence"
    page.keyboard.press("Control+A")
    page.keyboard.type("pt?[]/.,")
    assert page.locator("#sentence").input_value() == "pt?[]/.,"
    assert page.get_by_role("dialog").count() == 0


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_follows_the_system_until_somebody_chooses(new_page, system):
    page = visit(new_page(color_scheme=system), tab="explain")
    shown = "() => document.documentElement.dataset.theme"
    assert page.evaluate(shown) == system
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(shown) == "light"
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(shown) == "dark"
    page.reload()
    ready(page)
    assert page.evaluate(shown) == "dark"
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(shown) == system


def test_another_model_is_a_choice_away_and_an_unknown_one_is_the_first(page):
    visit(page, model="nonsense", tab="explain")
    assert page.title() == "greetings · Limelight"
    assert "There is no model “nonsense” here" in page.locator("main > [role=status]").inner_text()
    page.get_by_label("Model", exact=True).select_option("writer")
    expect(page).to_have_title("writer · Limelight")
    ready(page)
    assert page.get_by_role("tab").first.inner_text() == "Write"
    assert page.locator("main > [role=status]").count() == 0
    page.go_back()
    expect(page).to_have_title("greetings · Limelight")


def test_when_the_service_does_not_answer_it_is_said_and_can_be_tried_again(page):
    page.watch.allow("503|ERR_|Failed to load")
    away = {
        "error": {"code": "worker_died", "message": "it had to start anew", "hint": "ask again"}
    }
    page.route("**/api/trace", lambda route: route.fulfill(status=503, json=away))
    visit(page, tab="explain")
    panel = page.locator(".panel.error")
    assert "it had to start anew" in panel.inner_text()
    assert "ask again" in panel.inner_text()
    page.unroute("**/api/trace")
    panel.get_by_role("button", name="Try again").click()
    page.locator(".walk[data-stage=pieces]").wait_for()
    assert page.locator(".panel.error").count() == 0
    page.route("**/api/trace/*/stop/**", lambda route: route.abort())
    page.keyboard.press("ArrowRight")
    panel.wait_for()
    assert "the service does not respond" in panel.inner_text()
    page.unroute("**/api/trace/*/stop/**")
    panel.get_by_role("button", name="Try again").click()
    page.locator(".figure").first.wait_for()


def test_while_models_load_the_page_waits_and_goes_on_by_itself(runs, new_page):
    with Loading(runs["greetings"], runs["writer"]) as service:
        assert service.client.get("/readyz").status_code == 503
        page = new_page(host=service.url)
        page.watch.allow("503")
        page.goto(f"{service.url}/#tab=explain")
        status = page.locator("main [role=status]")
        expect(status).to_have_text("loading greetings: 0 of 2 models are ready")
        service.go_on()
        expect(status).to_have_text("loading greetings: 1 of 2 models are ready", timeout=60_000)
        assert page.locator(".panel.error").count() == 0
        service.go_on()
        expect(page).to_have_title("greetings · Limelight", timeout=60_000)
        ready(page)
        page.locator(".walk[data-stage=pieces]").wait_for()
        assert page.locator(".panel.error").count() == 0


def test_another_model_can_be_opened_while_one_is_loaded(runs, new_page):
    with Loading(runs["greetings"], runs["writer"]) as service:
        service.go_on()  # the writer's
        page = new_page(host=service.url)
        page.watch.allow("503")
        page.goto(f"{service.url}/#tab=explain")
        expect(page.locator("main [role=status]")).to_contain_text("1 of 2", timeout=60_000)
        page.evaluate("() => { location.hash = 'model=writer&tab=explain'; }")
        expect(page).to_have_title("writer · Limelight")
        service.go_on()
        until(lambda: service.client.get("/readyz").status_code == 200, 60)
        page.wait_for_timeout(2500)  # the first model's poll has seen that it is ready
        assert page.title() == "writer · Limelight"


def test_a_service_with_a_key_asks_for_it(runs, new_page):
    with Served(runs["greetings"], key="open sesame") as service:
        page = new_page(host=service.url)
        page.watch.allow("401")
        page.goto(f"{service.url}/#tab=explain")
        field = page.get_by_role("textbox", name="Key")
        field.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("That key is wrong").wait_for()
        field.fill("open sesame")
        page.keyboard.press("Enter")
        page.locator(".walk[data-stage=pieces]").wait_for()
        assert "sesame" not in page.url
        page.reload()  # in the same window it is remembered
        ready(page)
        assert page.locator(".walk[data-stage=pieces]").count() == 1
