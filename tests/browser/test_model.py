"""The Model tab draws what the configuration says, and counts what the model has."""

import pytest
import torch

from limelight.explain.tokens import visible
from limelight.workflows.info import describe
from tests.browser.conftest import MODELS, visit
from tests.browser.page_reader import TIMES, number, read_table

pytestmark = pytest.mark.system


@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_those_of_limelight_info(page, known, model):
    visit(page, model=model, tab="model")
    facts = describe(known[model].recipe)
    _, names, cells = read_table(page.locator(".model-parts"))
    shown = {name: int(row[0].replace(",", "")) for name, row in zip(names, cells, strict=True)}
    assert shown == facts["parts"]
    total = page.locator(".model-parts tfoot td").first.inner_text()
    assert int(total.replace(",", "")) == facts["parameters"] == sum(shown.values())


BOXES = {
    "greetings": ["Masked self-attention", "Cross-attention", "Feed-forward", "Self-attention"],
    "writer": ["Masked self-attention", "Feed-forward"],
    "bert": ["Self-attention", "Feed-forward"],
    "classifier": ["Self-attention", "Feed-forward"],
}


@pytest.mark.parametrize("model", MODELS)
def test_the_drawing_has_the_parts_of_this_model_and_no_others(page, known, model):
    visit(page, model=model, tab="model")
    page.locator(".diagram").wait_for()
    titles = page.locator(".diagram-title").all_text_contents()
    parts = {"Masked self-attention", "Self-attention", "Cross-attention", "Feed-forward"}
    assert parts & set(titles) == set(BOXES[model])
    sides = 2 if model == "greetings" else 1
    times = page.locator(".diagram-times").all_text_contents()
    assert times == [f"{TIMES} {known[model].recipe.model.layers}"] * sides
    assert page.locator(".diagram-bridge").count() == sides - 1


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_norm_is_drawn_where_it_is(page, known, order):
    visit(page, tab="model")
    config = {**describe(known["greetings"].recipe)["model"], "norm_order": order}
    told = page.evaluate(IN_WORDS, {"config": config, "classes": []})
    attention = "Masked self-attention (4 heads of 8)"
    before = f"Layer norm, {attention}, plus the residual" in told
    after = f"{attention}, plus the residual, then Layer norm" in told
    assert (before, after) == (order == "pre", order == "post")


IN_WORDS = """async (model) => {
  const { architectureText, architectureOf } = await import("/page/js/charts/architecture.js");
  return architectureText(architectureOf(model));
}"""


@pytest.mark.parametrize(("model", "word"), [("greetings", "you"), ("writer", "c")])
def test_neighbours_are_those_of_the_embedding(page, known, model, word):
    visit(page, model=model, tab="model")
    page.get_by_label("A word").fill(word)
    page.get_by_role("button", name="Find neighbours").click()
    tokenizer, network = known[model].tokenizer, known[model].model
    token = min(tokenizer.encode(f" {word}"), tokenizer.encode(word), key=len)[0]
    page.get_by_role("heading", name=visible(tokenizer.pieces([token])[0]), exact=True).wait_for()
    side = network.source if model == "greetings" else network.target
    table = side.tokens.weight.detach()[: len(tokenizer)]
    cosines = torch.cosine_similarity(table, table[token][None])
    cosines[: tokenizer.first_text_id] = -1
    cosines[token] = -1
    best = cosines.topk(10)
    labels = page.locator(".bars-label").all_inner_texts()[:10]
    numbers = [number(text) for text in page.locator(".bars-value").all_inner_texts()[:10]]
    assert numbers == pytest.approx(best.values.tolist(), abs=6e-4)
    assert labels[0] == visible(tokenizer.pieces([best.indices[0].item()])[0])


@pytest.mark.parametrize("width", [360, 1280])
def test_the_drawing_fits_its_room(new_page, width):
    page = new_page(viewport={"width": width, "height": 900})
    visit(page, model="greetings", tab="model")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(".diagram").bounding_box()
    assert 250 < box["width"] <= width
    assert page.locator(".diagram-bridge").count() == (width > 700)
