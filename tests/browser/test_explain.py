"""Explain tells the truth: what stands there is what NumPy computes from the weights alone."""

import math
import re

import numpy as np
import pytest

from limelight.explain.focus import focus_on
from limelight.explain.stages import stage_at
from limelight.explain.starting_point import starting_point
from tests.browser.conftest import MODELS, ready, visit
from tests.explain.by_hand import ByHand

pytestmark = pytest.mark.system

TEXTS = {"greetings": "Hi how are you", "writer": "the cat", "bert": "the ___ sat"}
COUNTS = {"greetings": 18, "writer": 15, "bert": 14, "classifier": 14}
MINUS = "\u2212"
ASIDES = ("follow", "teacher", "beam", "loss", "learning")


@pytest.fixture(scope="package")
def hands(known):
    """For every model a trace and the pass by hand of the same tokens."""

    def made(name):
        trace = known[name].explain(TEXTS.get(name, "the cat sat"))
        model, passage = trace.trained.model, trace.traced_text
        return trace, ByHand(model, passage.source, passage.target)

    return {name: made(name) for name in MODELS}


def number(text):
    """A number as the page writes it; a minus is one, whatever it looks like."""
    return float(text.replace(MINUS, "-").strip())


def numbers(text):
    return [number(part) for part in text.split()]


def opened(page, model, stop="pieces", **selection):
    text = {"text": TEXTS.get(model, "the cat sat")}
    there = {"layer": 1, "head": 1, **selection}  # a fixed place, wherever the walk would start
    visit(page, tab="explain", model=model, stage=stop, **text, **there)
    assert page.locator(".walk").get_attribute("data-stage") == stop
    return page


def settle(page):
    page.wait_for_timeout(30)
    return ready(page)


def go(page, stop):
    """To another stop, as by a click in the list."""
    page.eval_on_selector(f".stage-list [data-stage='{stop}']", "button => button.click()")
    settle(page)
    assert page.locator(".walk").get_attribute("data-stage") == stop


def stops_of(page):
    return page.eval_on_selector_all(".stage-list button", "all => all.map(b => b.dataset.stage)")


def value_at(hand, name, layer, head, row):
    """A word's vector of a value, by hand."""
    value = hand.values[name]
    if value.ndim < 3:
        return value[row]
    config = hand.c
    shared = config.heads // (config.kv_heads or config.heads) if name[-1] in "kv" else 1
    return value[(head - 1) // shared][row]


def near(shown, expected, digits):
    expected = np.asarray(expected, dtype=float)
    np.testing.assert_allclose(shown, expected, rtol=2e-5, atol=0.6 * 10**-digits + 2e-5)


def strips_on(page):
    """Every vector that is a value of the model: its name, and all its numbers."""
    found = []
    for row in page.locator(".strips-row[data-value]:not([data-value=''])").all():
        row.get_by_role("button", name="numbers").click()
        found.append(
            (row.get_attribute("data-value"), numbers(row.locator(".strip-list").inner_text()))
        )
    return found


def matrices_on(page):
    """Every matrix: the value it is of, and its table without the labels."""
    found = []
    for figure in page.locator("figure[data-of]").all():
        while (closed := figure.get_by_role("button", name="Show as table")).count():
            closed.first.click()
        for table in figure.locator("table.numbers").all():
            rows = [
                [cell.replace(MINUS, "-") for cell in row.locator("td").all_inner_texts()]
                for row in table.locator("tbody tr").all()
            ]
            caption = table.locator("caption").inner_text()
            found.append((figure.get_attribute("data-of"), caption, rows))
    return found


@pytest.mark.parametrize("model", MODELS)
def test_every_stop_of_every_family_is_reached_and_checks_itself(page, model, hands):
    opened(page, model)
    names = [name for name in stops_of(page) if name not in ASIDES]
    assert len(names) == COUNTS[model]
    trace, _ = hands[model]
    start = starting_point(trace)
    rows = [row if len(words) else None for row, words in
            ((start.source, trace.source), (start.target, trace.target))]  # fmt: skip
    focus = focus_on(trace, 1, 1, None, tuple(rows))
    expected = {name: stage_at(trace, name, focus) for name in names}
    for place, name in enumerate(names):
        assert page.locator(".walk").get_attribute("data-stage") == name
        assert page.locator("h1").inner_text() == expected[name].title
        assert page.locator(".what").inner_text() == expected[name].what
        assert page.locator(".stage-number").inner_text().startswith(f"{place + 1} of {len(names)}")
        assert page.locator(".check-line").count() > 0
        assert page.locator(".check-line.failed, .panel.error").count() == 0
        current = page.locator(".map [aria-current=step]")
        assert current.count() >= 1, name
        if place < len(names) - 1:
            page.get_by_role("button", name="Next →").click()
            settle(page)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("place", [(1, 1), (2, 2)])
def test_every_vector_on_every_stop_is_the_one_computed_by_hand(page, model, place, hands):
    _, hand = hands[model]
    layer, head = (min(a, b) for a, b in zip(place, (hand.c.layers, hand.c.heads), strict=True))
    opened(page, model, layer=layer, head=head)
    seen = set()
    for stop in [name for name in stops_of(page) if name not in ASIDES]:
        go(page, stop)
        row = chosen_row(page)
        for name, shown in strips_on(page):
            near(shown, value_at(hand, name, layer, head, row), 4)
            seen.add(name.rsplit(".", 1)[-1])
    assert {"embedding", "input", "q", "k", "v", "mixed", "concat", "output", "add", "norm"} <= seen


def chosen_row(page):
    """The word that this stop is about."""
    chips = page.locator(".sentence-words .chip:not(.last):not(.inactive)")
    pressed = chips.evaluate_all("all => all.map(c => c.getAttribute('aria-pressed'))")
    return pressed.index("true")


@pytest.mark.parametrize("model", MODELS)
def test_every_cell_of_every_matrix_is_the_one_computed_by_hand(page, model, hands):
    _, hand = hands[model]
    seen = set()
    opened(page, model, all=1)
    for stop in [name for name in stops_of(page) if name not in ASIDES]:
        go(page, stop)
        for name, _, rows in matrices_on(page):
            expected = expected_matrix(hand, stop, name, chosen_row(page))
            if expected is None:
                continue
            shown = np.array([[float(x) for x in row[: expected.shape[1]]] for row in rows])
            assert np.array_equal(np.isneginf(shown), np.isneginf(expected)), (stop, name)
            near(np.nan_to_num(shown), np.nan_to_num(expected), 5)
            if name.endswith("weights"):
                assert {row[-1] for row in rows} == {"1.000"}, (stop, name)
            seen.add(name.rsplit(".", 1)[-1])
    assert {"embedding", "q", "scores", "scaled", "masked", "weights", "mixed", "active"} <= seen


def expected_matrix(hand, stop, name, row):
    """What a matrix should hold, by the value it is of; None for what is made of several."""
    if stop == "stack":
        return None
    value = hand.values[name]
    if stop == "heads":
        return value[:, row] if name.endswith("weights") else None
    return value[0] if value.ndim == 3 else value


@pytest.mark.parametrize(
    ("model", "stop", "at"),
    [
        ("greetings", "scores", "encoder.0.self"),
        ("greetings", "scaling", "encoder.0.self"),
        ("greetings", "mask", "encoder.0.self"),
        ("greetings", "softmax", "encoder.0.self"),
        ("greetings", "masked", "decoder.0.self"),
        ("greetings", "cross", "decoder.0.cross"),
        ("writer", "mask", "decoder.0.self"),
        ("writer", "softmax", "decoder.0.self"),
        ("bert", "softmax", "encoder.0.self"),
    ],
)
def test_the_table_of_one_word_is_a_row_of_equation_1(page, model, stop, at, hands):
    _, hand = hands[model]
    opened(page, model, stop)
    row = chosen_row(page)
    heads = page.locator(".weights-table thead th").all_inner_texts()
    named = {"q · k": "scores", "÷ √d": "scaled", "= masked": "masked", "weight": "weights"}
    for column, head in enumerate(heads):
        if head not in named:
            continue
        rows = page.locator(f".weights-table tbody tr > :nth-child({column + 1})")
        cells = rows.all_inner_texts()
        shown = [number(cell.replace("inf", "Infinity")) for cell in cells]
        expected = hand.values[f"{at}.{named[head]}"][0][row]
        assert [x == -math.inf for x in shown] == list(np.isneginf(expected))
        near(np.nan_to_num(shown), np.nan_to_num(expected), 3)
    if "weight" in heads:
        assert page.locator(".weights-table .sum").inner_text() == "1.000"


@pytest.mark.parametrize(("model", "stop"), [("greetings", "masked"), ("writer", "mask")])
def test_the_future_reads_minus_infinity_and_then_nothing(page, model, stop):
    opened(page, model, stop, all=1)
    tables = {name.rsplit(".", 1)[-1] + caption: rows for name, caption, rows in matrices_on(page)}
    masked = next(rows for name, rows in tables.items() if "Masked" in name)
    size = len(masked)
    for i in range(size):
        assert masked[i][i + 1 : size] == ["-inf"] * (size - i - 1)
        assert "-inf" not in masked[i][: i + 1]
    opened(page, model, "masked" if model == "greetings" else "softmax", all=1)
    weights = next(rows for _, caption, rows in matrices_on(page) if "weights" in caption)
    for i in range(size):
        assert [float(x) for x in weights[i][i + 1 : size]] == [0.0] * (size - i - 1)
        assert all(float(x) > 0 for x in weights[i][: i + 1])


def test_cross_attention_has_target_rows_and_source_columns(page, hands):
    trace, _ = hands["greetings"]
    opened(page, "greetings", "cross", all=1)
    assert "Queries from the decoder" in page.locator(".role.queries").inner_text()
    assert "Keys and values from the encoder" in page.locator(".role.keys").inner_text()
    page.get_by_role("button", name="Show as table").click()
    head = page.locator("table.numbers thead th").all_inner_texts()
    rows = page.locator("table.numbers tbody th").all_inner_texts()
    assert head[1:-1] == list(trace.source.labels)
    pairs = zip(trace.target.labels, trace.answers.labels, strict=True)
    assert rows == [f"at {a} → predicts {b}" for a, b in pairs]


def test_a_formula_multiplies_to_what_it_says(page, hands):
    """Any shown q and k, multiplied by hand, give the shown score."""
    _, hand = hands["greetings"]
    opened(page, "greetings", "scores")
    row = chosen_row(page)
    for key, choose in enumerate(page.locator(".weights-table tbody th button").all()):
        choose.click()
        settle(page)
        told = page.locator(".explain-more .calculation").first.inner_text().replace(MINUS, "-")
        shown = [float(x) for x in re.findall(r"-?\d+\.\d+", told)]
        *factors, others, total = shown
        products = sum(a * b for a, b in zip(factors[::2], factors[1::2], strict=True))
        assert products + others == pytest.approx(total, abs=0.02)
        assert total == pytest.approx(hand.values["encoder.0.self.scores"][0][row, key], abs=1e-3)


@pytest.mark.parametrize("model", ["greetings", "writer", "bert"])
def test_probabilities_move_with_the_temperature_without_a_request(page, model, hands):
    _, hand = hands[model]
    opened(page, model, "classifier")
    row = chosen_row(page)
    before = len(page.watch.sent)
    for temperature in (0.5, 1.0, 1.7):
        page.get_by_label("Temperature").evaluate(
            "(s, t) => { s.value = t; s.dispatchEvent(new Event('input')); }", str(temperature)
        )
        scores = hand.values["logits"][row] / temperature
        chances = np.exp(scores - scores.max())
        best = np.sort(chances / chances.sum())[::-1]
        shown = page.locator(".bars-value").all_inner_texts()
        for text, chance in list(zip(shown, best, strict=False))[:5]:
            if chance < 0.001:
                assert text == "< 0.1%"
                continue
            assert float(text.strip("%")) / 100 == pytest.approx(chance, abs=6e-3)
    assert len(page.watch.sent) == before


def test_a_link_names_the_stage_and_links_that_named_a_stop_still_work(page):
    opened(page, "greetings", "softmax")
    visit(page, tab="explain", model="greetings", stop="softmax", text=TEXTS["greetings"])
    assert page.locator(".walk").get_attribute("data-stage") == "softmax"
    page.get_by_role("button", name="Next →").click()
    settle(page)
    assert "stage=sum" in page.url
    assert "stop=" not in page.url


def test_a_number_leads_to_where_it_comes_from(page):
    opened(page, "greetings", "softmax", layer=2)
    way = []
    for _ in range(4):
        link = page.locator(".origin .link, .link[data-value]").first
        way.append(link.get_attribute("data-value"))
        link.click()
        settle(page)
    assert way == [f"encoder.1.self.{x}" for x in ("masked", "scaled", "scores", "q")]
    assert page.locator(".walk").get_attribute("data-stage") == "queries"
    assert page.locator("#choose-layer").input_value() == "2"
    page.go_back()
    settle(page)
    assert page.locator(".walk").get_attribute("data-stage") == "scores"


def test_from_a_sentence_to_a_cross_attention_weight_with_the_keyboard_alone(page, known):
    visit(page, tab="explain")
    page.keyboard.press("/")
    page.keyboard.press("Control+A")
    page.keyboard.type("who are you")
    page.keyboard.press("Enter")
    settle(page)
    page.keyboard.press("Tab")  # out of the field: keys are keys again
    for _ in range(15):
        page.keyboard.press("ArrowRight")
        settle(page)
    assert page.locator(".walk").get_attribute("data-stage") == "cross"
    page.keyboard.press("t")
    settle(page)
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "grid":
            break
    for key in ("Control+Home", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    settle(page)
    trace = known["greetings"].explain("who are you")
    weight = trace.attention(layer=1, head=1, which="cross")[1, 1].item()
    said = page.locator(".explain-picture").inner_text()
    assert f"weight {weight:.3f}" in said
    assert page.locator(".row-sum").inner_text() == "1.000"
    pair = page.locator(".pair").first.inner_text()
    assert pair == f"query {trace.target.labels[1]}, key {trace.source.labels[1]}"


def test_a_stop_asks_for_what_it_needs_and_nothing_twice(page):
    opened(page, "greetings", "scores")
    start = len(page.watch.sent)

    def asked():
        nonlocal start
        urls = [r.url for r in page.watch.sent[start:] if "/api/" in r.url]
        new = [re.sub(r".*/api/trace/[^/]+/", "", url) for url in urls]
        start = len(page.watch.sent)
        return new

    for name in ("scaling", "mask", "softmax", "sum"):
        page.keyboard.press("ArrowRight")
        settle(page)
        assert [path.split("?")[0] for path in asked()] == [f"stop/{name}"]
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
        settle(page)
    page.keyboard.press("t")
    settle(page)
    assert asked() == []


def test_the_scrubber_goes_through_the_writing(page, hands):
    trace, _ = hands["greetings"]
    opened(page, "greetings", "cross", step=0)
    for step in range(len(trace.steps)):
        reads, finds = trace.target.labels[step], trace.answers.labels[step]
        assert page.locator(".scrubbed").inner_text().endswith(f"{reads} → {finds}")
        assert page.locator(".pair strong").first.inner_text() == reads
        page.keyboard.press(".")
        settle(page)


def test_what_stands_beside_the_walk_is_calculated_with_the_models_numbers(page, hands):
    opened(page, "greetings", "teacher")
    trace, _ = hands["greetings"]
    losses = [-math.log(step.chosen.probability) for step in trace.steps]
    line = page.locator(".calculation").first
    assert line.locator("mfrac").count() == 1
    above, below, mean = map(number, line.locator("mn").all_text_contents())
    assert above == pytest.approx(sum(losses), abs=6e-4)
    assert (below, mean) == (len(losses), pytest.approx(sum(losses) / len(losses), abs=6e-4))
    go(page, "beam")
    total, five, length, six, *_ = map(number, page.locator(".calculation mn").all_text_contents())
    assert (five, length, six) == (5, len(losses), 6)
    assert total == pytest.approx(-sum(losses), abs=6e-4)


@pytest.mark.parametrize("model", MODELS)
def test_loss_and_learning_are_the_models_own_for_every_family(page, model, hands):
    trace, _ = hands[model]
    known = {stage.name: stage for stage in trace.walk()}
    for name in ("loss", "learning"):
        opened(page, model, name)
        assert page.locator("h1").inner_text() == known[name].title
        assert page.locator(".check-line").count() > 0
        assert page.locator(".check-line.failed, .panel.error").count() == 0
        page.get_by_text("The same as a table").click()
        shown = page.locator("table.listing").all()
        for table, figure in zip(shown, known[name].figures, strict=True):
            cells = [row.locator("td").all() for row in table.locator("tbody tr").all()]
            for row, wanted in zip(cells, figure.rows, strict=True):
                for cell, value in zip(row, wanted, strict=True):
                    text = cell.inner_text()
                    assert text == value if isinstance(value, str) else near_text(text, value)
    weight, rate, slope, new, *_ = page.locator(".calculation mn").all_text_contents()
    assert number(new) == pytest.approx(number(weight) - float(rate) * number(slope), abs=2e-3)


def near_text(text, value):
    return number(text.split()[0]) == pytest.approx(value, abs=6e-4, rel=1e-3)
