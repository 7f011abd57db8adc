"""How soon the page can be used, with the paper's base model behind it, in the system's Chromium.

    python benchmarks/page_speed.py             all of it
    python benchmarks/page_speed.py en-de       only what the bundled translator is measured with

The model has 6 + 6 layers of 512, 8 heads and random weights; a text of 64 tokens is read and one
of 64 written. The budgets: Explain can be used within 2 s after the pass, a stop that was seen
before changes within 100 ms, and pointing at an attention of 256 tokens stays fluent. Over a line
of 50 KB/s with 400 ms of latency something is painted within 3 s, and all is usable within 8 s.
The bundled en-de has the same budgets, answers a what-if within 300 ms, and ranks all its heads
within a second; 60 frames a second are drawn while numbers travel to the next stop, and after 50
more sentences the page holds no more than before. Its script is 250 KB at most, compressed.
"""

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, sync_playwright
from serving import Case, make_run, serving, sources

SIZES = {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "max_len": 512}
BASE = Case("base", 32000, SIZES, 64)
USABLE, CHANGED, FRAME, WHAT_IF, RANKED = 2000.0, 100.0, 50.0, 300.0, 1000.0  # milliseconds
SCRIPT, TRAVEL, GROWTH = 250.0, 1000 / 60, 10.0  # KB, milliseconds for the middle frame, percent
PAINTED, SLOW_PAINTED, SLOW_USABLE = 1000.0, 3000.0, 8000.0
SLOW = {"offline": False, "latency": 400, "downloadThroughput": 51200, "uploadThroughput": 51200}
# From the answer with the manifest to a view that is complete, as the page's own clock has it.
SINCE_THE_PASS = """() => performance.now() - performance.getEntriesByType("resource")
    .filter((entry) => entry.name.endsWith("/api/trace")).at(-1).responseEnd"""
GO = """(label) => new Promise((done) => {
    const began = performance.now();
    const look = () => document.body.dataset.ready
        ? requestAnimationFrame(() => done(performance.now() - began)) : setTimeout(look, 1);
    [...document.querySelectorAll("button")].find((b) => b.textContent.includes(label)).click();
    setTimeout(look, 0);
})"""
FRAMES = """() => new Promise((done) => {
    const times = [];
    const frame = (now) => { times.push(now); times.length < 121 ? requestAnimationFrame(frame)
        : done(times.slice(1).map((time, i) => time - times[i])); };
    requestAnimationFrame(frame);
})"""


def visit(page: Page, url: str, **selection: str) -> None:
    """Open a view, and wait until it is complete."""
    page.goto("about:blank")
    page.goto(f"{url}/#{urlencode(selection)}")
    page.wait_for_selector("body[data-ready]", timeout=120_000)


def tell(what: str, times: list[float], budget: float) -> None:
    """The middle and the longest, and whether that is within the budget."""
    over = "   OVER BUDGET" if max(times) > budget else ""
    print(f"  {what:48} {statistics.median(times):7.0f} ms, at most {max(times):5.0f} ms{over}")


def opening(page: Page, url: str, source: str, target: str) -> list[float]:
    """From the end of the pass until Explain is complete, several times."""
    times = []
    for _ in range(5):
        visit(page, url, tab="explain", text=source, target=target)
        times.append(page.evaluate(SINCE_THE_PASS))
    return times


def walking(page: Page) -> dict[str, float]:
    """How long each stop takes that was seen before, the middle of several times."""
    times: dict[str, list[float]] = {}
    for button in ("Back", "Next") * 3:
        for _ in range(17):
            taken = page.evaluate(GO, button)
            name = page.evaluate("() => new URLSearchParams(location.hash.slice(1)).get('stage')")
            times.setdefault(name or "the first", []).append(taken)
    return {name: statistics.median(each) for name, each in times.items()}


def first_screen(browser: Browser, url: str, slow: bool) -> tuple[float, float]:
    """The first paint, and the complete first screen, of a browser that has seen nothing yet."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    if slow:
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.send("Network.emulateNetworkConditions", SLOW)
    page.goto(url, wait_until="commit")
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    painted, done = page.evaluate(
        "() => [performance.getEntriesByType('paint')[0].startTime, performance.now()]"
    )
    page.close()
    return painted, done


def first_screens(browser: Browser, url: str) -> None:
    """Here, and over a slow line."""
    for name, slow, budgets in (
        ("here", False, (PAINTED, USABLE)),
        ("at 50 KB/s", True, (SLOW_PAINTED, SLOW_USABLE)),
    ):
        painted, done = first_screen(browser, url, slow)
        tell(f"first paint, {name}", [painted], budgets[0])
        tell(f"first screen complete, {name}", [done], budgets[1])


def pointing(page: Page) -> list[float]:
    """The times between frames while the mouse goes over a matrix."""
    box = page.locator("canvas").last.bounding_box()
    assert box, "there is no matrix to point at"
    page.evaluate(f"() => {{ window.seen = ({FRAMES})(); }}")
    for i in range(200):
        step = i / 200
        page.mouse.move(box["x"] + step * min(box["width"], 500), box["y"] + 60 + 300 * step)
    times: list[float] = page.evaluate("() => window.seen")
    return times


def asked(page: Page, path: str) -> list[float]:
    """How long the requests to this path took, as the browser measured them."""
    found: list[float] = page.evaluate(
        """(path) => performance.getEntriesByType("resource")
            .filter(({ name }) => name.endsWith(path)).map(({ duration }) => duration)""",
        path,
    )
    return found


def what_if(page: Page, url: str) -> tuple[list[float], list[float]]:
    """Each head of the last cross-attention off, one by one; then all heads ranked."""
    visit(page, url, tab="what-if", text="A man is sleeping in the park.")
    heads = page.locator(".switch-table").last.locator("tbody tr").last.locator(".switch-head")
    for i in range(heads.count()):
        heads.nth(i).click()
        page.wait_for_timeout(30)
        page.wait_for_selector("body[data-ready]")
        page.locator(".bench-change").click()
        page.wait_for_timeout(30)
        page.wait_for_selector("body[data-ready]")
    page.get_by_role("button", name="Which head matters?").click()
    page.wait_for_selector(".switch-head.ranked")
    return asked(page, "/api/trace")[1:], asked(page, "/heads")


def travelling(browser: Browser, url: str) -> list[float]:
    """The times between frames while what was computed travels to where it is needed next."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    visit(page, url, tab="explain", text="A man is sleeping in the park.", stage="queries")
    times: list[float] = []
    for _ in range(8):
        page.evaluate(f"() => {{ window.seen = ({FRAMES})(); }}")
        page.get_by_role("button", name="Next").click()
        times += page.evaluate("() => window.seen")[:30]  # half a second
    page.close()
    return times


def held(page: Page) -> tuple[float, float]:
    """Megabytes of JavaScript's heap, and DOM nodes, after a collection of garbage."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.enable")
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    return used, session.send("Memory.getDOMCounters")["nodes"]


def fifty(page: Page, url: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the page holds after ten sentences explained, and after fifty more."""
    visit(page, url, tab="explain", stage="scores", text="A man is sleeping in the park.")

    def explain(count: int) -> None:
        for n in range(count):
            page.locator("#sentence").fill(f"A man is sleeping in park {n}.")
            page.keyboard.press("Enter")
            page.wait_for_timeout(30)
            page.wait_for_selector("body[data-ready]")

    explain(10)
    before = held(page)
    explain(50)
    return before, held(page)


def translator(browser: Browser) -> None:
    """What is measured with the bundled model."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    with serving(Path("en-de"), "cpu") as (url, _):
        first_screens(browser, url)
        changed, ranked = what_if(page, url)
        tell("en-de: a what-if", changed, WHAT_IF)
        tell("en-de: which head matters", ranked, RANKED)
        script = page.evaluate(
            """() => performance.getEntriesByType("resource")
                .find(({ name }) => name.endsWith("page.js")).encodedBodySize / 1000"""
        )
        print(f"  {'the script, compressed':48} {script:7.0f} KB, at most {SCRIPT:.0f} KB")
        frames = travelling(browser, url)
        fluent = sum(frame < 1.5 * TRAVEL for frame in frames) / len(frames)
        tell("travelling to the next stop: a frame", [statistics.median(frames)], TRAVEL + 0.5)
        print(f"    {fluent:.0%} of {len(frames)} frames without a gap")
        (mb, nodes), (later, nodes_later) = fifty(page, url)
        over = "   OVER BUDGET" if later > mb * (1 + GROWTH / 100) else ""
        print(f"  50 explains: heap {mb:.1f} MB, then {later:.1f} MB{over}; ", end="")
        print(f"{nodes:.0f} nodes, then {nodes_later:.0f}")


def main() -> None:
    """Print what a person waits for."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place) / "base"
        make_run(folder, BASE)
        short, long = (sources(folder, 2, (n, n)) for n in (64, 256))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        load = os.getloadavg()[0]
        print(f"Chromium {browser.version}, {os.cpu_count()} cores, load average {load:.1f}")
        translator(browser)
        if "en-de" in sys.argv[1:]:
            return
        print("the paper's base model")
        with serving(folder, "cpu") as (url, _):
            first_screens(browser, url)
            tell("Explain complete after the pass", opening(page, url, *short), USABLE)
            first = [page.evaluate(GO, "Next") for _ in range(17)]
            tell("the next stop, its numbers fetched first", first, USABLE)
            again = walking(page)
            tell("a stop that was seen before", list(again.values()), CHANGED)
            slowest = sorted(again, key=again.__getitem__, reverse=True)[:4]
            print("    of these", ", ".join(f"{name} {again[name]:.0f}" for name in slowest))
            visit(page, url, tab="attention", text=long[0], target=long[1])
            tell("Attention, 256 tokens: complete", [page.evaluate(SINCE_THE_PASS)], USABLE)
            tell("the same: a frame while pointing", pointing(page), FRAME)
        browser.close()


if __name__ == "__main__":
    main()
