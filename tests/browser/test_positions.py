"""The stop about positions: its curves, and the turns of rotary positions, computed once more."""

import math
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import serious, visit
from tests.browser.number_format import number_in
from tests.browser.test_explain import near
from tests.explain.by_hand import ByHand, waves
from tests.serve.samples import Served
from tests.tasks.conftest import model  # noqa: F401  (a fixture)

pytestmark = pytest.mark.system

TEXT = "the old man sits by the river"
NUMBER = r"-?\d+\.\d+"


@pytest.fixture(scope="module")
def others(run):
    with Served(run("placed"), run("reverse")) as served:
        yield served


def at_positions(page, name, **more):
    return visit(page, model=name, tab="explain", stage="positions", **{"text": TEXT, **more})


def curves(page):
    """Headings and numbers of the table behind the curves, positions down."""
    chart = page.locator(".curves .chart")
    chart.get_by_role("button", name="Show as table").click()
    heads = chart.locator("thead th").all_inner_texts()[1:]
    rows = [row.locator("td").all_inner_texts() for row in chart.locator("tbody tr").all()]
    return heads, np.array([[number_in(cell) for cell in row] for row in rows])


def drawn(page):
    """The y coordinates of each curve."""
    paths = page.locator(".curves path.chart-curve").all()
    points = [re.findall(r"[ML](\S+) (\S+?)(?=[ML]|$)", p.get_attribute("d")) for p in paths]
    return np.array([[float(y) for _, y in path] for path in points]).T


def follows(pixels, values):
    """Whether a picture is these numbers, scaled: the higher, the smaller its y."""
    (slope, _), error, *_ = np.polyfit(values.ravel(), pixels.ravel(), 1, full=True)
    return slope < 0 and error.item() < 0.01 * len(values.ravel())


def test_the_curves_of_sinusoids_are_the_papers_formula(page, known):
    at_positions(page, "greetings", text="Hi how are you")
    width = known["greetings"].config.d_model
    heads, shown = curves(page)
    columns = [int(name.split(" ")[1]) - 1 for name in heads]
    assert [name.split(" ")[0] for name in heads] == ["cos" if n % 2 else "sin" for n in columns]
    assert len(shown) >= 48  # beyond this text
    table = waves(len(shown), width)[:, columns]
    near(shown, table, 5)
    assert follows(drawn(page), table)
    assert not follows(drawn(page)[:, ::-1], table)  # the measure notices a wrong curve


def test_the_curves_of_learned_positions_are_the_models_table(new_page, others, model):  # noqa: F811
    learned = model("placed")
    page = at_positions(new_page(host=others.url), "placed")
    heads, shown = curves(page)
    assert heads == [f"number {n}" for n in range(1, 5)]
    trace = learned.explain(TEXT)
    table = learned.model.state_dict()["target.positions.weight"].double().numpy()
    expected = table[: len(trace.target), :4]
    near(shown, expected, 5)
    assert follows(drawn(page), expected)
    assert page.locator(".rotary").count() == 0


def turned_by_hand(hand, layer, head, side="decoder"):
    """q and k of every word as complex numbers, a pair each, before they are turned; and turned."""
    config, name = hand.c, f"{side}.{layer - 1}.self"
    speeds = config.rotary_base ** (-2 * np.arange(config.d_head // 2) / config.d_head)
    found = {}
    for role, part in (("q", "query"), ("k", "key")):
        flat = hand.values[f"{name}.{part}"]
        own = flat.reshape(len(flat), -1, config.d_head)
        group = config.heads // own.shape[1]
        pairs = own[:, (head - 1) // (group if role == "k" else 1)]
        before = pairs[:, 0::2] + 1j * pairs[:, 1::2]
        angles = np.arange(len(flat))[:, None] * speeds
        found[role] = before, before * np.exp(1j * angles), angles
    return found


def arrow(dial, kind, role):
    line = dial.locator(f"line.{kind}.role-{role}")
    return complex(float(line.get_attribute("x2")), -float(line.get_attribute("y2")))


def check_dial(dial, role, hand, position, by=0):
    """One arrow of a dial, its numbers and its angle."""
    first = int(dial.locator("strong").inner_text().split(" ")[1]) - 1
    before, _, angles = hand[role]
    pair = before[position, first // 2]
    speed = angles[1, first // 2]
    angle = (position + by) * speed
    after = pair * np.exp(1j * angle)
    told = dial.locator(f"p.role-{role}").inner_text().replace("\N{MINUS SIGN}", "-")
    assert told.startswith(f"{role}: {position + by} \N{MULTIPLICATION SIGN} ")
    numbers = [float(x) for x in re.findall(NUMBER, told)]
    assert numbers[:2] == pytest.approx([speed, angle], abs=6e-4)
    shown = [pair.real, pair.imag, after.real, after.imag]
    assert numbers[2:] == pytest.approx(shown, abs=0.0051)
    most = max(abs(hand[r][0][hand["at"][r], first // 2]) for r in "qk")
    assert arrow(dial, "dial-was", role) == pytest.approx(pair / most, abs=2e-3)
    assert arrow(dial, "dial-arrow", role) == pytest.approx(after / most, abs=2e-3)
    assert abs(arrow(dial, "dial-arrow", role)) <= 1.001


@pytest.mark.parametrize(("layer", "head", "row"), [(1, 1, 4), (1, 2, 2)])
def test_the_dials_turn_a_pair_of_q_and_of_k_by_their_positions(
    page,
    known,
    layer,
    head,
    row,
):
    at_positions(page, "writer", layer=layer, head=head, query=row)
    trace = known["writer"].explain(TEXT)
    given = trace.traced_text
    by_hand = ByHand(trace.trained.model, given.source, given.target)
    hand = turned_by_hand(by_hand, layer, head)
    weights = by_hand.values[f"decoder.{layer - 1}.self.weights"][head - 1, row].copy()
    weights[row] = -1
    hand["at"] = {"q": row, "k": int(weights.argmax())}
    scores = by_hand.values[f"decoder.{layer - 1}.self.scores"][head - 1]
    score = scores[row, hand["at"]["k"]]
    mine = (hand["q"][1][row] * hand["k"][1][hand["at"]["k"]].conj()).real.sum()
    assert mine == pytest.approx(score)  # two ways by hand
    assert page.locator(".dial").count() == 3
    legend = page.locator(".rotary figcaption").inner_text()
    assert f"Layer {layer}, head {head}" in legend
    for role, position in hand["at"].items():
        assert trace.target.labels[position] in legend
        assert f"position {position}" in legend
        for dial in page.locator(".dial").all():
            check_dial(dial, role, hand, position)
    told = page.locator(".rotary output")
    moved = page.get_by_role("slider", name="Move both words on")
    for by in (0, 1, 100):
        moved.fill(str(by))
        expect(told).to_contain_text(f"by {by} positions")
        assert number_in(told.inner_text().rpartition("= ")[2]) == pytest.approx(score, abs=1e-3)
        for role, position in hand["at"].items():
            check_dial(page.locator(".dial").first, role, hand, position, by)
    angle = page.locator(".dial").first.locator("line.dial-arrow").first
    assert angle.evaluate("one => getComputedStyle(one).animationName") == "none"
    checks = page.locator(".check-line").all_inner_texts()
    assert any("positions further on" in line for line in checks)
    assert page.locator(".check-line.failed").count() == 0


def test_the_arrows_come_from_where_they_were(new_page, known):
    page = new_page(reduced_motion="no-preference")
    at_positions(page, "writer", query=2)
    turns = page.evaluate(
        """() => [...document.querySelectorAll("line.dial-arrow")].map((one) => {
          const [animation] = one.getAnimations();
          animation?.pause();
          if (animation) animation.currentTime = 0;
          const { a, b } = new DOMMatrix(getComputedStyle(one).transform);
          const was = one.parentNode.querySelectorAll("line.dial-was");
          const own = [...was].find((w) => w.classList[1] === one.classList[1]);
          const at = (line) => Math.atan2(line.getAttribute("y2"), line.getAttribute("x2"));
          return [at(one) + Math.atan2(b, a), at(own)];
        })"""
    )
    assert len(turns) == 6
    for begins, was in turns:
        assert math.cos(begins - was) == pytest.approx(1, abs=1e-4)


def test_where_nothing_turns_there_is_no_dial_and_a_stranger_can_read_one(new_page, others):
    page = at_positions(new_page(), "greetings")
    assert page.locator(".rotary").count() == 0
    for theme in ("light", "dark"):
        page = new_page(host=others.url, color_scheme=theme, bypass_csp=True)
        at_positions(page, "reverse", text="a c b")
        assert page.locator(".dial [role=img]").first.get_attribute("aria-label").count("→") == 2
        assert serious(page) == []
    at_positions(page, "reverse", text="a c b", all=1)
    assert page.locator(".rotary").count() == 0
