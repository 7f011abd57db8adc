"""The page as a film: a first screen that says it all, one picture, motion, a shared cursor."""

import re
from importlib.resources import files

import numpy as np
import pytest
from playwright.sync_api import expect

from limelight.explain.starting_point import starting_point
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.test_explain import MINUS, TEXTS, number, opened, settle, stops_of
from tests.explain.by_hand import ByHand

pytestmark = pytest.mark.system

SIZES = ((1440, 900), (1280, 720), (1024, 768), (390, 844))
EXTRAS = {
    "follow",
    "teacher",
    "beam",
    "loss",
    "learning",
}  # long tables, which scroll in themselves
DOES = {"greetings": "translating", "writer": "writing", "bert": "filling in a blank"}
# What is out of sight of the first figure of this stage, and what only scrolls into sight.
HIDDEN = """async () => {
  for (let i = 0; i < 3; i += 1) await new Promise(requestAnimationFrame);
  const at = (selector) => document.querySelector(selector);
  const picture = at(".explain-picture");
  const hero = picture.querySelector("figure, .scroller, .pieces, .bars, .turns");
  const box = hero.getBoundingClientRect();
  const fixed = getComputedStyle(at(".explain-middle")).overflowY === "auto";
  const end = Math.min(at(".explain-foot").getBoundingClientRect().top,
                       fixed ? at(".explain-middle").getBoundingClientRect().bottom : Infinity);
  const map = at(".map").getBoundingClientRect();
  return { below: Math.round(box.bottom - end), above: Math.round(-box.top), height: box.height,
           inside: hero.scrollHeight - hero.clientHeight, wide: box.right - innerWidth,
           map: map.top >= 0 && map.bottom <= innerHeight && map.height > 20 };
}"""


@pytest.mark.parametrize("model", DOES)
def test_every_stop_shows_its_picture_and_the_model_without_scrolling(page, model):
    visit(page, model=model, tab="explain", text=TEXTS.get(model, "the cat sat"))
    failed = {}
    for stop in stops_of(page):
        assert page.locator(".walk").get_attribute("data-stage") == stop
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            found = page.evaluate(HIDDEN)
            hidden = max(found["below"], found["above"], found["wide"])
            scrolls = found["inside"] > 2 and stop not in EXTRAS
            if hidden > 0 or scrolls or found["height"] < 20 or not found["map"]:
                failed[stop, width] = found
        page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
        page.keyboard.press("ArrowRight")
        settle(page)
    assert not failed
    # The measure itself: a picture that is too high would be noticed.
    page.locator(".explain-picture figure, .explain-picture .scroller").first.evaluate(
        "one => { one.style.marginTop = '2000px'; }"
    )
    assert page.evaluate(HIDDEN)["below"] > 0


def test_on_a_phone_the_map_stays_beside_the_picture_and_off_the_text(new_page):
    page = visit(new_page(viewport={"width": 390, "height": 844}), tab="explain", stage="scores")
    where = """(y) => {
      scrollTo(0, y);
      const [map, picture, text] = [".map", ".explain-middle", ".explain-text"].map(
        (one) => document.querySelector(one).getBoundingClientRect());
      const { top, bottom, height } = map;
      return [bottom - text.top, bottom - picture.bottom, top - picture.top, height];
    }"""
    for y in (0, 200, 500, 700, 1000):
        over_text, over_picture, below_top, height = page.evaluate(where, y)
        assert over_text <= 0, y
        assert over_picture <= 1, y
        assert below_top >= -1, y
        assert height > 300


def test_what_was_computed_travels_and_is_gone_when_it_has_arrived(new_page):
    page = visit(new_page(reduced_motion="no-preference"), tab="explain", stage="queries")
    page.evaluate(
        """() => { window.seen = []; window.ends = [];
          new MutationObserver((all) => all.forEach((one) => {
            for (const node of one.addedNodes) setTimeout(() => {
              for (const { effect } of node.getAnimations?.() ?? []) {
                seen.push(effect.getTiming().duration);
                const { transform } = effect.getKeyframes()[1];
                const [x, y, wide, high = wide] = transform.match(/-?\\d[\\d.e-]*/g);
                const { left, top, width, height } = node.style;
                ends.push([parseFloat(left) + Number(x), parseFloat(top) + Number(y),
                           parseFloat(width) * wide, parseFloat(height) * high]);
              }});
          })).observe(document.body, { childList: true }); }"""
    )
    page.keyboard.press(" ")
    page.locator(".walk[data-stage=scores]").wait_for()
    wait_until(page, "() => window.seen.length > 0")
    assert page.evaluate("seen") == [400]
    expect(page.locator(".traveller")).to_have_count(0)
    expect(page.locator(".map [aria-current]")).to_have_attribute("data-stage", "scores")
    # It ended where something of the next picture is, though that was still zooming then.
    off = page.evaluate(
        """() => Math.min(...[...document.querySelectorAll(".explain-picture *")].map((one) => {
          const { left, top, width, height } = one.getBoundingClientRect();
          return Math.max(...[left, top, width, height].map((x, i) => Math.abs(x - ends[0][i])));
        }))"""
    )
    assert off < 3


def test_lines_lead_from_the_query_to_its_keys_after_the_zoom_too(new_page):
    page = visit(new_page(reduced_motion="no-preference"), tab="explain", stage="mask")
    page.keyboard.press(" ")
    page.locator(".walk[data-stage=softmax] .fan-line").first.wait_for()
    ready(page)
    page.wait_for_timeout(450)
    off = page.evaluate(
        """() => {
          const box = document.querySelector(".fan").getBoundingClientRect();
          const rows = [...document.querySelectorAll(".weights-table tbody tr")];
          const middles = rows.map((row) => row.getBoundingClientRect()).map((r) => r.top + r.height / 2);
          const ends = [...document.querySelectorAll(".fan-line")].map((line) => {
            const numbers = line.getAttribute("d").match(/-?[\\d.]+/g).map(Number);
            return { x: box.left + numbers.at(-2) - box.right, y: box.top + numbers.at(-1) };
          });
          return Math.max(...ends.map(({ x, y }) =>
            Math.max(Math.abs(x), Math.min(...middles.map((m) => Math.abs(m - y))))));
        }"""  # noqa: E501
    )
    assert off < 2


def test_without_motion_it_is_a_cut(page):
    visit(page, tab="explain", stage="queries")
    page.keyboard.press(" ")
    page.locator(".walk[data-stage=scores]").wait_for()
    assert page.evaluate("document.getAnimations().length") == 0
    assert page.locator(".traveller").count() == 0


@pytest.fixture(scope="module")
def hand(known):
    trace = known["greetings"].explain(TEXTS["greetings"])
    return ByHand(trace.trained.model, trace.traced_text.source, trace.traced_text.target)


def test_pointing_at_a_word_or_a_number_lights_it_everywhere(page, hand):
    opened(page, "greetings", "scores")
    row = page.locator(".sentence-words [aria-pressed=true]:not(.inactive)")
    query = int(row.get_attribute("data-word").split(":")[1])
    page.locator(".weights-table tbody tr").nth(2).hover()
    expect(page.locator(".sentence-words [data-word='encoder:2']")).to_have_class(re.compile("lit"))
    key = page.locator(".sentence-words [data-word='encoder:2']").inner_text()
    expect(page.locator(".pair").first).to_contain_text(f"key {key}")
    expect(page.locator(".products th").first).to_have_text(re.compile(f"of {key}$"))
    total = hand.values["encoder.0.self.scores"][0][query, 2]
    assert number(page.locator(".products .sum").inner_text()) == pytest.approx(total, abs=6e-4)
    # A number of any strip is the same number of all of them.
    strip = page.locator(".query-row .strip-canvas")
    box = strip.bounding_box()
    q, k = (hand.values[f"encoder.0.self.{part}"][0] for part in "qk")
    at = q.shape[1] - 2
    strip.hover(position={"x": box["width"] * (at + 0.5) / q.shape[1], "y": 5})
    told = page.locator(".products-readout")
    expect(told).to_contain_text(f"number {at + 1}: ")
    shown = [float(x) for x in re.findall(r"-?\d+\.\d+", told.inner_text().replace(MINUS, "-"))]
    chosen = page.locator(".weights-table tbody tr.focus").get_attribute("data-word")
    products = q[query] * k[int(chosen.split(":")[1])]
    expected = [
        q[query][at],
        k[int(chosen.split(":")[1])][at],
        products[at],
        products[: at + 1].sum(),
    ]
    np.testing.assert_allclose(shown, expected, atol=6e-4)
    sliders = page.locator(".weights-table .strip-slider")
    values = sliders.evaluate_all("all => all.map(s => s.getAttribute('aria-valuenow'))")
    assert set(values) == {str(at + 1)}
    # A term of the formula is such a number too.
    term = page.locator(".explain-more [data-number]").first
    term.hover()
    wanted = str(int(term.get_attribute("data-number")) + 1)
    expect(sliders.first).to_have_attribute("aria-valuenow", wanted)


def test_pointing_at_a_cell_gives_the_formula_of_that_cell(page, known):
    opened(page, "greetings", "cross", all=1)
    grid = page.get_by_role("grid")
    before = page.locator(".pair").first.inner_text()
    grid.focus()
    page.keyboard.press("Control+Home")
    page.keyboard.press("ArrowRight")
    trace = known["greetings"].explain(TEXTS["greetings"])
    pair = f"query {trace.target.labels[0]}, key {trace.source.labels[1]}"
    expect(page.locator(".pair").first).to_have_text(pair)
    assert page.locator(".pair").first.inner_text() != before
    expect(page.locator(".sentence-words .lit")).to_have_count(2)


@pytest.mark.parametrize("model", DOES)
def test_the_first_screen_says_what_it_is_and_the_model_is_at_work(page, model, known):
    visit(page, model=model)
    assert page.locator("h1").first.inner_text().startswith(f"A Transformer, {DOES[model]}.")
    assert "Every number on this page is its own." in page.locator("h1").first.inner_text()
    example = page.evaluate(
        "model => fetch(`/api/example?model=${model}`).then(r => r.json())", model
    )
    trace = known[model].explain(example["text"], tag=example["tag"])
    layer = starting_point(trace).layer - 1
    side, use = {"greetings": ("decoder", "cross"), "writer": ("decoder", "self")}.get(
        model, ("encoder", "self")
    )
    mean = trace.tensor(f"{side}.{layer}.{use}.weights").double().mean(0).numpy()
    lines = page.locator(".intro-link").evaluate_all(
        "all => all.map(one => Number(one.style.getPropertyValue('--weight')))"
    )
    assert lines
    assert page.locator(".intro-word.unwritten").count() == 0
    if model == "greetings":  # each word of one piece: the weights of all rows are there
        large = [w for w in mean.ravel() if w > 0.3]
        assert sum(any(abs(w - x) < 1e-4 for x in lines) for w in large) >= len(large) // 2
    page.get_by_role("button", name="Watch how").click()
    ready(page)
    assert page.locator(".walk").get_attribute("data-stage") == "pieces"
    assert "walk=1" in page.url
    page.locator(".wordmark").click()
    ready(page)
    assert page.locator(".intro").count() == 1


def test_the_sentence_writes_itself_word_by_word(new_page):
    page = new_page(reduced_motion="no-preference")
    visit(page)
    words = page.locator(".intro-line").last.locator(".intro-word")
    assert page.locator(".intro-word.unwritten").count() > 0  # not at once
    expect(page.locator(".intro-word.unwritten")).to_have_count(0, timeout=20_000)
    assert words.count() > 0
    assert page.locator(".intro-link").count() > 0


def test_a_model_opens_on_what_it_was_trained_for(page):
    def talking(route):
        facts = route.fetch().json()
        route.fulfill(json={**facts, "kind": "dialogues"})

    visit(page)
    assert page.get_by_role("tab").first.inner_text() == "Translate"
    page.route("**/api/model*", talking)
    visit(page)
    assert page.get_by_role("tab").first.inner_text() == "Chat"
    assert page.get_by_role("tab", name="Translate").count() == 0
    assert page.locator("h1").first.inner_text().startswith("A Transformer, talking.")


def test_it_is_one_script_and_there_is_something_to_read_before_it(new_page):
    bare = new_page(java_script_enabled=False)
    bare.goto(bare.watch.host)
    assert "Every number on this page is its own." in bare.locator("h1").inner_text()
    page = visit(new_page(), tab="model")
    kinds = [request.resource_type for request in page.watch.sent]
    assert (kinds.count("script"), kinds.count("stylesheet")) == (1, 1)
    head = page.locator("head")
    for wanted in ("meta[name=description]", "meta[property='og:title']", "link[rel=icon]"):
        assert head.locator(wanted).count() == 1
    picture = head.locator("meta[property='og:image']").get_attribute("content")
    assert picture.startswith(f"{page.watch.host}/")  # elsewhere a relative address leads nowhere
    found = page.request.get(picture)
    assert found.headers["content-type"] == "image/png"
    width = head.locator("meta[property='og:image:width']").get_attribute("content")
    assert int.from_bytes(found.body()[16:20], "big") == int(width)


PLACES = {
    "greetings": {"cross": "decoder.{}.cross", "softmax": "encoder.{}.self"},
    "writer": {"softmax": "decoder.{}.self"},
    "bert": {"softmax": "encoder.{}.self"},
}


@pytest.mark.parametrize("model", PLACES)
def test_the_walk_says_why_it_starts_here_with_the_weights_of_the_trace(page, known, model):
    trace = known[model].explain(TEXTS[model])
    first = starting_point(trace)
    for stage, place in PLACES[model].items():
        visit(page, model=model, tab="explain", text=TEXTS[model], stage=stage)
        why = page.locator(".why").inner_text()
        assert f"head {first.head} of layer {first.layer}" in why
        at = place.format(first.layer - 1)
        row = first.source if at.startswith("encoder") else first.target
        weights = trace.tensor(f"{at}.weights")[first.head - 1, row]
        words = trace.target if model == "writer" else trace.source
        query = trace.answers.labels[row] if stage == "cross" else words.labels[row]
        pattern = r"(?:For|At) (\S+), (\S+) of its weight is on (\S+)\.$"
        said_query, number, key = re.search(pattern, why).groups()
        assert said_query == query
        keys = [j for j, label in enumerate(words.labels) if label == key]
        assert any(f"{weights[j].item():.3f}" == number for j in keys)
        if stage == "cross":
            assert f"= {first.score:.3f}" in why


def test_the_walk_does_not_say_why_where_it_did_not_choose(page):
    visit(page, model="greetings", tab="explain", text=TEXTS["greetings"], stage="masked")
    assert page.locator(".why").count() == 0  # cross-attention was scored, not this
    visit(page, model="greetings", tab="explain", text=TEXTS["greetings"], stage="cross")
    head = int(page.locator("#choose-head").input_value())
    page.locator("#choose-head").select_option(str(head % 4 + 1))
    settle(page)
    assert page.locator(".why").count() == 0  # it is the reader's choice now


def test_attention_and_comparisons_begin_there_too(page, known):
    first = starting_point(known["greetings"].explain(TEXTS["greetings"]))
    visit(page, model="greetings", tab="attention", text=TEXTS["greetings"])
    title = page.locator(".attention-panel .matrix-title").inner_text()
    assert title == f"Cross-attention, layer {first.layer}, head {first.head}"
    labels = known["greetings"].explain(TEXTS["greetings"]).target.labels
    assert page.locator(".top-attention h2").inner_text().startswith(labels[first.target])
    visit(page, model="greetings", tab="compare", text=TEXTS["greetings"])
    titles = page.locator(".two-matrices .matrix-title").all_inner_texts()
    assert titles[0].endswith(f"layer {first.layer}, head {first.head}")
    assert titles[1].endswith(f"layer {first.layer}, head {first.head % 4 + 1}")


def test_walks_have_three_lengths(page):
    visit(page, model="writer", tab="explain", text=TEXTS["writer"])
    walks = page.get_by_label("Length of the walk")
    counts = {}
    for length, every in (("1", 7), ("10", 15), ("", 19)):
        walks.select_option(length)
        settle(page)
        seen = counts["10"][0] if length == "" else 1  # the extras follow the end of the others
        if length:
            page.locator(".map [data-stage=pieces]").click()
            settle(page)
        while page.get_by_role("button", name="Next →").is_enabled():
            page.keyboard.press("ArrowRight")
            settle(page)
            seen += 1
        counts[length] = (seen, every)
    assert all(seen == every for seen, every in counts.values()), counts
    visit(page, model="writer", tab="explain", text=TEXTS["writer"], walk="none")
    assert walks.input_value() == ""  # a length that there is not is that of everything


def test_every_key_can_be_pressed_before_there_is_a_trace(page):
    source = files("limelight.web").joinpath("js/core/keys.js").read_text("utf-8")
    listed = re.findall(r'^  \["(.+?)", "', source, re.MULTILINE)
    names = {"←": "ArrowLeft", "→": "ArrowRight", "↑": "ArrowUp", "↓": "ArrowDown"}
    held = []

    def hold(route):
        held.append(route)

    page.route("**/api/trace", hold)
    page.goto(f"{page.watch.host}/#model=greetings&tab=explain")
    page.locator("#sentence").wait_for()
    keys = [
        key
        for keys in listed
        if " " not in keys or len(keys.split()[0]) == 1
        for key in keys.split()
    ]
    assert {"p", "t", "[", "}", "?"} <= set(keys)
    for key in (*keys, "Space", "p"):
        page.evaluate("() => document.activeElement.blur()")
        page.keyboard.press(names.get(key, key))
        page.keyboard.press("Escape")  # the help
    assert len(held) == 1
    assert page.locator(".explain-foot").is_hidden()
    held[0].continue_()
    ready(page)
    assert page.locator("h1#stage-title").is_visible()


def test_an_empty_text_is_not_inspected_and_it_is_said(page):
    visit(page, tab="explain")
    sent = len(page.watch.sent)
    page.locator("#sentence").fill("   ")
    page.keyboard.press("Enter")
    assert page.locator("#sentence").evaluate("field => field.validationMessage")
    assert len(page.watch.sent) == sent
