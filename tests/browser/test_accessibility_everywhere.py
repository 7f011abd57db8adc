"""For everybody: nothing that keeps a person out, light or dark, on a phone, or magnified."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import MODELS, visit

pytestmark = pytest.mark.system

ALWAYS = ("explain", "what-if", "compare", "attention", "search", "training", "model")
TABS = {
    "greetings": ("translate", "chat", *ALWAYS),
    "writer": ("write", *ALWAYS),
    "bert": ("fill", *ALWAYS),
    "classifier": ("classify", *ALWAYS),
}
SERIOUS = ("serious", "critical")
LOST = """() => {
  const wide = document.documentElement.clientWidth + 1;
  const scrolls = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const how = getComputedStyle(at);
      if (/auto|scroll/.test(how.overflowX) && at !== document.documentElement && at !== document.body) return true;
      if (how.clipPath !== "none" || how.visibility === "hidden") return true;  // for listeners only
    }
    return false;
  };
  const lost = [...document.body.querySelectorAll("*")].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && (box.right > wide || box.left < -1) && !scrolls(node);
  });
  return lost.map((node) => `${node.tagName} .${node.className.baseVal ?? node.className} ${node.textContent.slice(0, 40)}`);
}"""  # noqa: E501


def test_the_tabs_are_those_that_the_model_can(page):
    for model in MODELS:
        visit(page, model=model)
        shown = [tab.get_attribute("id") for tab in page.get_by_role("tab").all()]
        assert shown == [f"tab-{tab}" for tab in TABS[model]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("model", MODELS)
def test_nothing_keeps_anybody_out(new_page, model, scheme):
    page = new_page(color_scheme=scheme)
    found = []
    for tab in TABS[model]:
        visit(page, model=model, tab=tab)
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in SERIOUS:
                where = [node["html"][:160] for node in violation["nodes"][:3]]
                found.append((tab, violation["id"], violation["help"], where))
    assert not found


@pytest.mark.parametrize(
    "stop", ["pieces", "scores", "mask", "softmax", "add-norm", "cross", "loop"]
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nor_at_any_stop_of_the_walk(new_page, stop, scheme):
    page = new_page(color_scheme=scheme)
    visit(page, model="greetings", tab="explain", stage=stop)
    violations = Axe().run(page).response["violations"]
    assert not [
        (each["id"], [node["html"][:160] for node in each["nodes"][:3]])
        for each in violations
        if each["impact"] in SERIOUS
    ]


WINDOWS = {
    "a phone": {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 3},
    "magnified to 200%": {"viewport": {"width": 640, "height": 450}, "device_scale_factor": 2},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_lost_at_the_side(new_page, model, window):
    page = new_page(**WINDOWS[window])
    found = {}
    for tab in TABS[model]:
        visit(page, model=model, tab=tab)
        if lost := page.evaluate(LOST):
            found[tab] = lost[:5]
        wide, room = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        if wide > room:
            found[f"{tab} scrolls"] = (wide, room)
    assert not found


def test_the_model_and_the_chosen_tab_can_be_read_on_a_phone(new_page):
    page = new_page(**WINDOWS["a phone"])
    visit(page, model="greetings", tab="model")
    page.locator(".model-choice option").first.evaluate(
        "option => { option.textContent = 'a-model-with-a-rather-long-name'; }"
    )
    cut = "node => node.scrollWidth > node.clientWidth"
    for shown in (".model-facts", ".model-choice", ".model-card"):
        assert not page.locator(shown).evaluate(cut)
    box = page.locator("#tab-model").bounding_box()  # the last of them
    assert 0 <= box["x"] <= 360 - box["width"]


def test_what_keeps_somebody_out_or_is_lost_would_be_noticed(page):
    visit(page, model="greetings")
    assert not page.evaluate(LOST)
    page.evaluate("""() => {
        const wide = document.createElement("p");
        wide.textContent = "too wide";
        wide.style.minWidth = "5000px";
        document.body.append(wide, document.createElement("button"));
    }""")
    assert any("too wide" in lost for lost in page.evaluate(LOST))
    found = Axe().run(page).response["violations"]
    assert "button-name" in [each["id"] for each in found if each["impact"] in SERIOUS]
