"""One real service with tiny models of every family, and a browser that forgives nothing.

A test that uses `page` fails when the page logs an error, throws, gets an answer that is none, or
asks another host for anything. What a test provokes on purpose it names: `page.watch.allow("503")`.
"""

import os
import re
import shutil
import time
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, sync_playwright

import limelight
from limelight.data.config import DataConfig
from limelight.decode.config import DecodeConfig
from tests.explain.samples import PAIRS
from tests.serve.samples import Served
from tests.tasks.conftest import file_of, run, small  # noqa: F401  (a fixture)
from tests.training.samples import train_in

ARGUMENTS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--no-first-run"]  # fmt: skip
MODELS = ("greetings", "writer", "bert", "classifier")


class Watch:
    """All that should not happen in a page, and what a test expects of it nevertheless."""

    def __init__(self, host):
        self.host, self.problems, self.allowed, self.sent = host, [], [], []

    def allow(self, pattern):
        """Problems in which this is found are none."""
        self.allowed.append(re.compile(pattern))

    def note(self, problem):
        self.problems.append(problem)

    def asked(self, request):
        """A request is on its way."""
        self.sent.append(request)
        if not request.url.startswith((self.host, "data:", "blob:")):
            self.note(f"another host: {request.url}")

    def answered(self, response):
        if response.status >= 400:
            self.note(f"{response.status} for {response.request.method} {response.url}")

    def failed(self, request):
        """What the page itself gave up is no failure."""
        if "ERR_ABORTED" not in (request.failure or ""):
            self.note(f"{request.failure} for {request.url}")

    def said(self, message):
        if message.type in ("error", "warning"):
            self.note(f"console: {message.text} ({message.location.get('url', '')})")

    @property
    def unforgiven(self):
        return [p for p in self.problems if not any(a.search(p) for a in self.allowed)]


def watch(page, host):
    """Let nothing that this page does go unnoticed."""
    page.watch = Watch(host)
    page.on("console", page.watch.said)
    page.on("pageerror", lambda error: page.watch.note(f"thrown: {error}"))
    page.on("request", page.watch.asked)
    page.on("response", page.watch.answered)
    page.on("requestfailed", page.watch.failed)
    return page


def ready(page):
    """Until all that the page waited for is there."""
    page.wait_for_selector("body[data-ready]", timeout=30_000)
    return page


def wait_until(page, expression, arg=None):
    """Until a JavaScript expression is true. `page.wait_for_function` evaluates its text again at
    every frame, which the page's CSP forbids: it fails unless the first look finds it true."""
    deadline = time.monotonic() + 30
    while not _is_true(page, expression, arg):
        assert time.monotonic() < deadline, f"not true within 30 s: {expression}"
        page.wait_for_timeout(20)


def _is_true(page, expression, arg):
    try:
        return page.evaluate(expression, arg)
    except Error as error:  # the page was being loaded anew
        if "Execution context was destroyed" in str(error):
            return False
        raise


def serious(page):
    """What axe finds that keeps people out: rules, and where they are broken."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    # What passes is not told: that would take as long again.
    found = page.evaluate("() => axe.run({ resultTypes: ['violations'] })")["violations"]
    worst = [f for f in found if f["impact"] in ("serious", "critical")]
    return [(f["id"], [node["target"] for node in f["nodes"]]) for f in worst]


def serious_after(new_page, theme, model, tab, do):
    """What axe finds on a tab in this theme, once `do` has been done there."""
    # Axe is put into the page from outside, which its policy forbids to everybody else.
    page = new_page(color_scheme=theme, bypass_csp=True)
    visit(page, model=model, tab=tab)
    do(page)
    ready(page)
    return serious(page)


def visit(page, **selection):
    """Open the page at a selection, as a link would: visit(page, model="bert", tab="fill")."""
    page.goto("about:blank")  # or else a new fragment is no new page
    page.goto(f"{page.watch.host}/#{urlencode(selection)}")
    return ready(page)


@pytest.fixture(scope="package")
def runs(run, tmp_path_factory):  # noqa: F811
    """Folders of briefly trained models, by name; the first is what the page opens with."""
    folder = tmp_path_factory.mktemp("runs")
    train_in(folder / "greetings", greeter(folder))
    return {"greetings": folder / "greetings", **{name: run(name) for name in MODELS[1:]}}


def greeter(folder):
    """A chatbot with two layers of four heads, a beam, and checkpoints of its training."""
    pairs = file_of(folder, "pairs.tsv", [f"{source}\t{target}" for source, target in PAIRS])
    shape = {"layers": 2, "heads": 4, "d_ff": 64, "max_len": 64, "positions": "sinusoidal"}
    never = {"validate_every": 10_000, "checkpoint_every": 50, "keep_checkpoints": 10}
    recipe = small("greetings", DataConfig(**pairs), "encoder-decoder", "bpe", 120, shape, **never)
    return replace(recipe, decode=DecodeConfig(beam=3), about="a few greetings, and answers")


@pytest.fixture(scope="package")
def service(runs):
    """One service with all of them."""
    with Served(*runs.values()) as served:
        yield served


@pytest.fixture(scope="package")
def known(runs):
    """The same models in this process: what the page must show is computed here."""
    return {name: limelight.load(path) for name, path in runs.items()}


@pytest.fixture(scope="package")
def browser():
    """The system's Chromium; for this folder's tests only, as it keeps an event loop running."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        assert path, "these tests need Chromium: apt-get install chromium fonts-dejavu"
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS + root)
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser, service):
    """`new_page(color_scheme="dark")` is a page in a window of its own, watched to the end."""
    pages = []

    def make(host=service.url, **options):
        usual = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**usual, **options}, service_workers="block")
        pages.append(watch(context.new_page(), host))
        pages[-1].set_default_timeout(30_000)
        return pages[-1]

    yield make
    for page in pages:
        page.context.close()
    assert not [problem for page in pages for problem in page.watch.unforgiven]


@pytest.fixture
def page(new_page):
    """A page as most people have it."""
    return new_page()
