"""Every stop of every family, on screens of four sizes, light and dark: minutes for each family.

A stop shows its picture without scrolling, for one word and for all, and axe finds nothing serious.
"""

from itertools import product
from urllib.parse import urlencode

import pytest

from limelight.data.config import DataConfig
from limelight.run.bundled_models import model_names
from limelight.web.bundle import catalogues
from tests.browser.conftest import greeter, ready, serious, visit
from tests.browser.test_film import EXTRAS, SIZES
from tests.serve.samples import Served
from tests.tasks.conftest import TALK, file_of, small
from tests.training.samples import train_in

pytestmark = pytest.mark.soak

# What no bundled model is: recurrent, with a cell in its decoder, other positions, tags.
OTHERS = ("lstm", "rnn", "gpt", "placed", "tagged", "classifier", "cell", "greetings")
SHORT = {"placed": {"text": "the cat", "target": " sits."}}  # every letter is a token
DRAW_STOPS = ("caption", "patches", "candidates", "attention", "words")
# How much of a stop's first picture is out of sight, and how much in it only scrolls into sight.
HIDDEN = """async (scrolls) => {
  for (let i = 0; i < 4; i += 1) await new Promise(requestAnimationFrame);
  const at = (selector) => document.querySelector(selector);
  const kinds = "figure, .scroller, .pieces, .bars, .turns, .loop";
  const hero = at(`.explain-picture :is(${kinds}), .draw-stage`);
  const box = hero.getBoundingClientRect();
  const middle = at(".explain-middle");
  const fixed = middle && getComputedStyle(middle).overflowY === "auto";
  const end = Math.min(at(".explain-foot").getBoundingClientRect().top,
                       fixed ? middle.getBoundingClientRect().bottom : Infinity);
  const map = at(".map, .draw-stops").getBoundingClientRect();
  const inside = [hero, ...hero.querySelectorAll("*")].filter((one) => {
    const { overflowX, overflowY } = getComputedStyle(one);
    return /auto|scroll/.test(overflowX + overflowY);
  });
  const more = (of) => Math.max(0, ...inside.map(of));
  const found = {
    below: Math.round(box.bottom - end), above: Math.round(-box.top),
    wide: Math.round(box.right - innerWidth), small: Math.round(20 - box.height),
    rows: scrolls ? 0 : more((one) => one.scrollHeight - one.clientHeight - 2),
    columns: scrolls ? 0 : more((one) => one.scrollWidth - one.clientWidth - 2),
    map: map.top >= 0 && map.bottom <= innerHeight && map.height > 20 ? 0 : 1,
  };
  return Object.fromEntries(Object.entries(found).filter(([, by]) => by > 0));
}"""


@pytest.fixture(scope="module")
def families(run, tmp_path_factory):
    """One service with the bundled models, and with small ones of all other families."""
    folder = tmp_path_factory.mktemp("families")
    train_in(folder / "greetings", greeter(folder))
    files = file_of(folder, "talk.txt", [" __eou__ ".join(TALK)])
    data = DataConfig(kind="dialogues", context_turns=3, **files)
    shape = {"layers": 2, "decoder_cell": "ssru"}
    train_in(folder / "cell", small("cell", data, "encoder-decoder", "bpe", model=shape))
    own = {name: folder / name for name in ("greetings", "cell")}
    with Served(*model_names(), *(own.get(name) or run(name) for name in OTHERS)) as served:
        yield served


def screens_of(page, here):
    """Every stop, for one word and where there is one, the picture of all words, at every size."""
    stops = page.eval_on_selector_all(".stage-list button", "all => all.map(b => b.dataset.stage)")
    for stop, every in product(stops or DRAW_STOPS, (False, True)):
        place = urlencode({**here, "stage": stop, "all": int(every)})
        page.evaluate("place => { location.hash = place; }", place)
        page.wait_for_timeout(40)
        ready(page)
        if every and not page.locator(".choice-option input[value=all]").count():
            continue
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            yield (stop, every, width), page.evaluate(HIDDEN, stop in EXTRAS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("model", [*model_names(), *OTHERS])
def test_every_stop_is_seen_without_scrolling_and_keeps_nobody_out(
    new_page, families, model, scheme
):
    page = new_page(families.url, color_scheme=scheme, bypass_csp=True)
    here = {"model": model, "tab": "explain", **SHORT.get(model, {})}
    visit(page, **here)
    failed = {}
    for screen, hidden in screens_of(page, here):
        if hidden or (worst := serious(page)):
            failed[screen] = hidden or worst
    assert not failed
    # The measure itself: a picture that is too high would be noticed.
    lower = "one => { one.style.marginTop = '2000px'; }"
    page.locator(".explain-picture > *, .draw-stage").first.evaluate(lower)
    assert page.evaluate(HIDDEN, False)["below"] > 0


@pytest.mark.parametrize("language", catalogues())
@pytest.mark.parametrize("model", model_names())
def test_longer_words_of_other_languages_fit_too(new_page, families, model, language):
    page, here = new_page(families.url), {"model": model, "tab": "explain"}
    page.goto(f"{families.url}/?lang={language}#{urlencode(here)}")
    ready(page)
    assert page.locator("html").get_attribute("lang") == language
    failed = {screen: hidden for screen, hidden in screens_of(page, here) if hidden}
    assert not failed
