"""What a first look may cost: bytes, nodes, and never two passes of the model at once."""

import random

import pytest
import torch

from limelight.data.config import DataConfig
from limelight.data.tokenizer import Tokenizer, TokenizerConfig
from limelight.model import build, model_config
from limelight.recipe import Recipe, write_recipe
from limelight.run.atomic import commit
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS, write_tensors
from tests.browser.conftest import ready, visit, wait_until
from tests.browser.test_accessibility_everywhere import TABS
from tests.serve.samples import Served

pytestmark = pytest.mark.system

FIRST_SCREEN = 300 * 1024  # bytes, as they travel
NODES = 3000
WORDS = 63  # and an end token: 64 tokens to read
COUNT = "() => document.querySelectorAll('*').length"
# Something is painted on every strip: an empty canvas is transparent.
DRAWN = """(seen) => {
  const all = [...document.querySelectorAll(".strip-canvas")];
  const drawn = (canvas) => canvas.height !== 150;  // which a canvas has of itself
  const area = document.querySelector(".explain-middle").getBoundingClientRect();
  const inSight = ({ top, bottom }) => bottom > area.top && top < area.bottom;
  const asked = seen ? all.filter((canvas) => inSight(canvas.getBoundingClientRect())) : all;
  return asked.length > 0 && asked.every(drawn);
}"""
# Everything that makes the model compute, from asking until the answer is there or given up.
FORWARDS = """() => {
  window.flying = 0; window.most = 0; window.forwards = 0;
  const heavy = /\\/api\\/(trace|translate|suggest|fill|classify|score|teacher|next)|\\/v1\\/(chat|completions)/;
  const real = window.fetch;
  window.fetch = async (path, options = {}) => {
    if (!heavy.test(String(path))) return real(path, options);
    let open = true;
    const done = () => { if (open) { open = false; window.flying -= 1; } };
    window.forwards += 1;
    window.most = Math.max(window.most, ++window.flying);
    options.signal?.addEventListener("abort", done);
    try {
      const response = await real(path, options);
      const body = await response.clone().arrayBuffer();
      return response;
    } finally { done(); }
  };
}"""  # noqa: E501


def base(folder):
    """The paper's base model as it is before it has learned anything, in a run folder."""
    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(2000)]
    tokenizer = Tokenizer.train("word", (" " + " ".join(words) for _ in range(2)), 2000)
    shape = {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "max_len": 256}
    config = model_config(family="encoder-decoder", vocab=len(tokenizer), **shape)
    torch.manual_seed(1)
    model = build(config)
    with torch.no_grad():
        model.classifier.bias[: len(tokenizer.special)] = -1e9  # it goes on as long as it may
    folder.mkdir()
    run = RunFolder(folder)
    recipe = Recipe("base", config, DataConfig(), TokenizerConfig(kind="word", vocab=2000))
    tokenizer.save(run.tokenizer)
    run.write_recipe(write_recipe(recipe))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    commit(run.finished / "step-000001", lambda to: write_tensors(to / WEIGHTS, weights))
    run.begin(recipe.name)
    return folder, " ".join(dice.sample(words, WORDS))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A service with the base model, and a text of 64 tokens for it."""
    folder, text = base(tmp_path_factory.mktemp("large") / "base")
    with Served(folder) as served:
        words = text.split()
        target = " ".join(reversed(words))  # what it would write takes it longer than we have
        yield served, text, target


def sizes_of(page):
    """Bytes of all answers as they travelled, the largest first."""
    ours = [request for request in page.watch.sent if request.url.startswith(page.watch.host)]
    sizes = [(r.sizes()["responseBodySize"], r.url[len(page.watch.host) :][-60:]) for r in ours]
    return sorted(sizes, reverse=True)


def test_the_first_screen_is_small(new_page, large):
    served, text, target = large
    page = new_page(host=served.url)
    visit(page, tab="explain", text=text, target=target)
    assert page.locator(".error").count() == 0
    sizes = sizes_of(page)
    total = sum(size for size, _ in sizes)
    assert 50_000 < total <= FIRST_SCREEN, (total, sizes[:8])


@pytest.mark.parametrize("tab", TABS["greetings"])
def test_no_tab_has_too_many_nodes(new_page, large, tab):
    served, text, target = large
    page = new_page(host=served.url)
    page.set_default_timeout(60_000)
    short = {"text": " ".join(text.split()[:20])} if tab == "translate" else {"text": text}
    visit(page, tab=tab, **short, **({"target": target} if tab != "translate" else {}))
    assert page.evaluate(COUNT) < NODES


def test_no_stop_has_too_many_nodes(new_page, large):
    served, text, target = large
    page = new_page(host=served.url)
    visit(page, tab="explain", text=text, target=target)
    counts = {}
    for stop in ("pieces", "embedding", "scores", "softmax", "heads", "stack", "cross", "loop"):
        page.evaluate(
            """(stop) => {
                const said = new URLSearchParams(location.hash.slice(1));
                said.set("stage", stop);
                history.pushState(null, "", "#" + said);
                dispatchEvent(new PopStateEvent("popstate"));
            }""",
            stop,
        )
        page.wait_for_selector(f".walk[data-stage={stop}]")
        ready(page)
        assert page.locator(".error").count() == 0
        counts[stop] = page.evaluate(COUNT)
    assert len(set(counts.values())) > 4  # other stops are other pictures
    assert max(counts.values()) < NODES, counts


@pytest.mark.parametrize("stop", ["scores", "sum"])
def test_many_strips_are_laid_out_together(new_page, large, stop):
    """A strip for each of 64 words: the page is laid out a few times, not once for each of them."""
    served, text, target = large
    page = new_page(host=served.url)
    visit(page, tab="explain", text=text, target=target, stage=stop)
    page.get_by_role("button", name="Back").click()
    ready(page)
    counted = page.context.new_cdp_session(page)
    counted.send("Performance.enable")
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector(f"[data-stage={stop}]")
    wait_until(page, DRAWN, arg=True)
    assert page.locator(".strip-canvas").count() >= 64
    metrics = {m["name"]: m["value"] for m in counted.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["LayoutCount"] < 20
    assert not page.evaluate(DRAWN, False)  # painting takes longest, so the rest waits
    page.locator(".strip-canvas").last.scroll_into_view_if_needed()
    wait_until(page, DRAWN, arg=True)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(DRAWN, False)


@pytest.mark.parametrize("model", TABS)
def test_two_passes_are_never_asked_for_at_once(page, model):
    """Whoever hurries through all tabs makes the model do one thing after the other."""
    page.add_init_script(f"({FORWARDS})()")
    visit(page, model=model)
    for tab in (*TABS[model], *TABS[model][::-1]):
        page.locator(f"#tab-{tab}").click()
        page.wait_for_timeout(60)
    ready(page)
    for tab in TABS[model]:
        page.locator(f"#tab-{tab}").click()
        ready(page)
    assert page.evaluate("window.forwards") >= 2
    assert page.evaluate("window.most") == 1
    assert page.evaluate("window.flying") == 0
