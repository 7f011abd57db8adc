"""A link, a frame, one file, a static site: what is shared works for whoever gets it."""

import functools
import random
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from limelight.explain.render.animation import as_svg
from limelight.workflows.site import write_site
from tests.browser.conftest import ready, visit

pytestmark = pytest.mark.system

LINK = {"model": "greetings", "text": "Hi how are you"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def files_at(folder):
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_link_is_copied_and_the_button_says_so(new_page):
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    visit(page, **LINK, tab="what-if", change="decoder.0.cross@2=off")
    page.get_by_label("Share").click()
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("button", name="Copy as a frame").click()
    page.get_by_role("button", name="Copied").last.wait_for()
    assert "?embed=1#" in page.evaluate("navigator.clipboard.readText()")


def test_a_frame_is_the_content_alone(page):
    page.goto(f"{page.watch.host}/?embed=1#tab=explain&model=greetings&stage=cross")
    ready(page)
    assert page.locator(".explain-picture").is_visible()
    assert page.locator(".bar").is_hidden()


def test_the_page_saves_itself_with_every_place_inside(page, new_page, tmp_path):
    visit(page, **LINK, tab="explain")
    page.get_by_label("Share").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as one file").click()
    saved.value.save_as(tmp_path / "index.html")
    assert saved.value.suggested_filename == "hi-how-are-you.html"
    with files_at(tmp_path) as host:
        file = new_page(host=host)
        file.goto(host)
        ready(file)
        chosen = random.Random(3)
        for stage in ("scores", "cross", "masked", "feed-forward", "classifier"):
            place = {"layer": chosen.randint(1, 2), "head": chosen.randint(1, 4)}
            where = f"stage={stage}&layer={place['layer']}&head={place['head']}&step=2&query=3"
            file.evaluate(f"location.hash = '{where}'")
            file.wait_for_timeout(30)
            ready(file)
            assert file.locator(".panel.error").count() == 0
            assert file.locator(".explain-picture").inner_text()


def fulfil(answer, route):
    route.fulfill(**answer)


def test_a_file_that_does_not_hold_all_says_how_much(page):
    for holds, told in ((0.125, "It holds 13% of this walk"), (1, "")):
        answer = {"json": {"html": "x", "holds": holds}}
        page.route("**/html", functools.partial(fulfil, answer))
        visit(page, **LINK, tab="explain")
        page.get_by_label("Share").click()
        with page.expect_download():
            page.get_by_role("button", name="Save as one file").click()
        state = page.locator(".share-state")
        expect(state).to_contain_text("saved, 0.00 MB")
        assert told in state.inner_text()
        assert ("left out" in state.inner_text()) == bool(told)
        page.unroute("**/html")


def test_the_walk_is_saved_as_a_film_that_plays_without_the_page(page, new_page, known, tmp_path):
    visit(page, **LINK, tab="explain", layer=2, head=3)
    page.get_by_label("Share").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as an animation").click()
    assert saved.value.suggested_filename == "hi-how-are-you.svg"
    saved.value.save_as(tmp_path / "film.svg")
    text = (tmp_path / "film.svg").read_text()
    assert text == as_svg(known["greetings"].explain("Hi how are you"), 2, 3)
    (tmp_path / "index.html").write_text("<img src=film.svg>")
    with files_at(tmp_path) as host:
        film = new_page(host=host, reduced_motion="no-preference")
        film.watch.allow("favicon")
        film.goto(host)
        assert film.evaluate("document.images[0].naturalWidth") == 960
        film.goto(f"{host}/film.svg")
        count = film.evaluate("document.getAnimations().length")
        assert count == text.count('class="frame"')
        shown = []
        for seconds in (1, 4, 5.9):  # one frame at a time
            film.evaluate(
                "t => document.getAnimations().forEach(a => { a.pause(); a.currentTime = t; })",
                1000 * seconds,
            )
            alphas = film.evaluate(
                "[...document.querySelectorAll('.frame')].map(g => getComputedStyle(g).opacity)"
            )
            shown.append(alphas.index("1"))
            assert alphas.count("1") == 1
        assert shown == [0, 1, 2]


def test_a_site_works_from_a_plain_file_server(new_page, tmp_path, runs, monkeypatch):
    monkeypatch.setattr("limelight.workflows.site._TEXTS", {"pairs": ("Hi how are you",)})
    write_site(tmp_path, [str(runs["greetings"])])
    with files_at(tmp_path) as host:
        page = new_page(host=host)  # and nobody else is asked for anything
        page.watch.allow("favicon")
        page.goto(host)
        page.locator("a").click()
        ready(page)
        assert page.locator(".explain-picture").inner_text()
        assert [each.url for each in page.watch.sent if "favicon" not in each.url] == [
            f"{host}/",
            f"{host}/greetings-1.html",
        ]
