"""The Attention tab shows this model's own weights, to the last printed digit."""

import re

import pytest

from tests.browser.conftest import ready, visit, wait_until
from tests.browser.page_reader import MINUS, alike, matrix_of

pytestmark = pytest.mark.system

TEXTS = {
    "greetings": "Hi how are you",
    "writer": "the cat sits",
    "bert": "the cat ___ here.",
    "classifier": "the dog walks here.",
}
CASES = [  # model, side, and the name of its attention in layer n
    ("greetings", "encoder", "encoder.{}.self"),
    ("greetings", "decoder", "decoder.{}.self"),
    ("greetings", "cross", "decoder.{}.cross"),
    ("writer", "decoder", "decoder.{}.self"),
    ("bert", "encoder", "encoder.{}.self"),
    ("classifier", "encoder", "encoder.{}.self"),
]


@pytest.fixture(scope="module")
def traces(known):
    """The same texts through the same models, in this process."""
    return {name: known[name].explain(text) for name, text in TEXTS.items()}


def look(page, model, **selection):
    return visit(page, tab="attention", model=model, text=TEXTS[model], **selection)


@pytest.mark.parametrize(("model", "side", "at"), CASES)
def test_every_head_is_the_models_own(page, traces, model, side, at):
    trace = traces[model]
    found = {}
    for layer in range(1, trace.config.layers + 1):
        for head in range(1, trace.config.heads + 1):
            look(page, model, side=side, layer=layer, head=head)
            columns, names, numbers = matrix_of(page)
            weights = trace.tensor(f"{at.format(layer - 1)}.weights", head)
            assert columns[-1] == "sum"
            assert alike([row[:-1] for row in numbers], weights.tolist()), (layer, head)
            assert all(row[-1] == 1.0 for row in numbers)
            assert len(names) == len(weights)
            found[layer, head] = numbers
    one, other = found[1, 1], found[1, 2]  # the comparison itself can fail
    assert not alike(one, other)


def test_cross_attention_has_written_rows_and_read_columns(page, traces):
    look(page, "greetings", side="cross", layer=1, head=1)
    columns, names, _ = matrix_of(page)
    trace = traces["greetings"]
    assert columns[:-1] == list(trace.source.labels)
    steps = zip(trace.target.labels, trace.answers.labels, strict=True)
    assert names == [f"at {read} → predicts {written}" for read, written in steps]


def test_the_future_is_hidden(page, traces):
    look(page, "greetings", side="decoder", layer=1, head=1)
    _, _, numbers = matrix_of(page)
    assert all(x == 0 for r, row in enumerate(numbers) for x in row[r + 1 : -1])
    page.locator(".matrix-view").focus()
    page.keyboard.press("Control+Home")
    page.keyboard.press("ArrowRight")
    assert "weight 0.000 (masked)" in page.locator(".matrix-readout").inner_text()


def test_which_scale_the_colours_have_is_chosen_and_said(page, traces):
    look(page, "greetings", side="decoder", layer=1, head=1)
    trace = traces["greetings"]
    own = trace.tensor("decoder.0.self.weights", 1).max()
    every = max(trace.tensor(f"decoder.{n}.self.weights").max() for n in range(2))
    legend, note = page.locator(".legend"), page.locator(".attention-note")
    for wish, largest, said in [
        ("per head", f"{own:.3f}", "this head"),
        ("per row", "row maximum", "each row"),
        ("all heads", f"{every:.3f}", "all heads of this kind"),
    ]:
        page.get_by_role("radio", name=wish, exact=True).check()
        assert largest in legend.inner_text()
        assert said in note.inner_text()


def test_a_thumbnail_shows_and_opens_its_head(page, traces):
    look(page, "greetings", side="encoder", layer=1, head=1)
    trace = traces["greetings"]
    for layer, head in [(1, 2), (2, 1), (2, 4)]:
        cell = page.get_by_role("gridcell", name=f"layer {layer}, head {head}")
        weights = trace.tensor(f"encoder.{layer - 1}.self.weights", head)
        darkest = cell.locator("canvas").evaluate(DARKEST)
        assert weights.flatten()[darkest] >= weights.max() - 1 / 255
        cell.click()
        ready(page)
        assert f"layer={layer}&head={head}" in page.url
        assert cell.get_attribute("aria-selected") == "true"
        assert f"layer {layer}, head {head}" in page.locator(".matrix-title").inner_text()
        _, _, numbers = matrix_of(page)
        assert alike([row[:-1] for row in numbers], weights.tolist())


DARKEST = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const light = Array.from({ length: data.length / 4 }, (_, i) => data[4 * i] + data[4 * i + 1]);
  return light.indexOf(Math.min(...light));
}"""


def test_by_keyboard_to_a_weight(page, traces):
    """From the thumbnails into the matrix, to a cell, and back; all that is said is true."""
    look(page, "greetings", side="cross", layer=2, head=3)
    trace = traces["greetings"]
    weights = trace.tensor("decoder.1.cross.weights", 3)
    scores = trace.tensor("decoder.1.cross.scores", 3)
    rows, columns = weights.shape

    page.get_by_role("gridcell", name="layer 2, head 3").focus()
    for _ in range(15):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('matrix-view')"):
            break
    assert page.evaluate("document.activeElement.getAttribute('role')") == "grid"

    def said(r, c):
        read, written = trace.target.labels[r], trace.answers.labels[r]
        numbers = f"score {scores[r, c]:.3f}, weight {weights[r, c]:.3f}".replace("-", MINUS)
        expected = f"at {read} → predicts {written}, key {trace.source.labels[c]}: {numbers}"
        assert page.locator(".matrix-readout").inner_text() == expected

    said(0, 0)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    said(1, 1)
    page.keyboard.press("End")
    said(1, columns - 1)
    page.keyboard.press("Control+End")
    said(rows - 1, columns - 1)
    page.keyboard.press("ArrowDown")  # there is nothing below
    said(rows - 1, columns - 1)
    page.keyboard.press("Enter")
    assert f"query={rows - 1}&key={columns - 1}" in page.url
    page.keyboard.press("Control+Home")
    said(0, 0)
    page.keyboard.press("Escape")
    assert "query=" not in page.url


def test_keys_go_from_layer_to_layer_and_from_head_to_head(page):
    look(page, "greetings", side="encoder", layer=1, head=1)
    page.locator("h1").first.evaluate("h1 => h1.ownerDocument.activeElement.blur()")
    for key, place in [
        ("]", "layer=2&head=1"),
        ("]", "layer=2&head=1"),  # there is none after the last
        ("}", "layer=2&head=2"),
        ("[", "layer=1&head=2"),
        ("{", "layer=1&head=1"),
    ]:
        page.keyboard.press(key)
        ready(page)
        assert place in page.url
    page.get_by_label("Text to inspect").focus()
    page.keyboard.press("]")  # who types, types
    assert "layer=1" in page.url


def test_special_tokens_hide_and_rows_stay(page, traces):
    look(page, "greetings", side="cross", layer=1, head=2)
    trace = traces["greetings"]
    page.get_by_label("hide special tokens").check()
    columns, _, numbers = matrix_of(page)
    kept = [i for i, special in enumerate(trace.source.special) if not special]
    assert 0 < len(kept) < len(trace.source.labels)
    weights = trace.tensor("decoder.0.cross.weights", 2)[:, kept]
    assert columns[:-1] == [trace.source.labels[i] for i in kept]
    assert alike([row[:-1] for row in numbers], weights.tolist())
    assert alike([[row[-1]] for row in numbers], weights.sum(1, keepdim=True).tolist(), 1e-3)
    assert "rows do not sum to 1" in page.locator(".attention-note").inner_text()


def test_only_the_strongest_lines_are_drawn(page, traces):
    look(page, "greetings", side="cross", layer=1, head=1)
    page.get_by_role("radio", name="Lines").check()
    weights = traces["greetings"].tensor("decoder.0.cross.weights", 1)
    strongest = weights.topk(min(3, weights.shape[1]), dim=1).values
    lines = page.locator(".lines-line")
    assert lines.count() == (strongest > 0).sum()
    page.get_by_role("button", name=re.compile("^query")).nth(1).hover()
    told = page.locator(".lines .matrix-readout").inner_text()
    best = weights[1].argmax()
    assert f"{traces['greetings'].source.labels[best]} {weights[1, best]:.3f}" in told
    page.mouse.move(0, 0)
    page.get_by_label(re.compile("Minimum weight")).fill("0.3")
    assert lines.count() == (strongest >= 0.3).sum()


def test_entropy_of_all_heads(page, traces):
    look(page, "greetings", side="encoder", layer=2, head=1)
    weights = traces["greetings"].tensor("encoder.1.self.weights").double()
    entropies = -(weights * weights.clamp_min(1e-300).log()).sum(-1).mean(-1)
    assert f"{entropies[0]:.2f} nats" in page.locator(".attention-entropy").inner_text()
    page.get_by_role("button", name="All heads of layer 2").click()
    shown = page.locator(".attention-facts tbody tr td:nth-child(2)")
    shown.first.wait_for()
    found = [float(text) for text in shown.all_inner_texts()]
    assert found == pytest.approx(entropies.tolist(), abs=0.011)


def test_a_typed_text_takes_the_place_of_the_old_one(page, known):
    look(page, "greetings", side="encoder", layer=1, head=1)
    page.get_by_label("Text to inspect").fill("who are you")
    page.keyboard.press("Enter")
    wait_until(page, "location.hash.includes('who')")
    ready(page)
    columns, _, numbers = matrix_of(page)
    trace = known["greetings"].explain("who are you")
    assert columns[:-1] == list(trace.source.labels)
    wanted = trace.tensor("encoder.0.self.weights", 1).tolist()
    assert alike([row[:-1] for row in numbers], wanted)


def test_a_saved_picture_says_what_it_shows(page):
    look(page, "greetings", side="cross", layer=2, head=2)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save PNG").click()
    assert saved.value.suggested_filename == "cross-attention-layer-2-head-2.png"
    data = saved.value.path().read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert width > 300
    assert height > 200


LARGE = """async (n) => {
  const { matrix } = await import("/page/js/charts/matrix.js");
  const { attentionLines } = await import("/page/js/attention/attentionLines.js");
  const words = Array.from({ length: n }, (_, i) => `w${i}`);
  const values = Float32Array.from({ length: n * n }, (_, i) => ((i * 7919) % 1000) / 1000);
  const part = matrix({ rows: words, columns: words, values, title: "large", scale: "share" });
  const lines = attentionLines({ rows: words, columns: words, values, title: "lines" });
  const place = document.querySelector("main");
  place.replaceChildren(part.element);
  const count = (element) => element.querySelectorAll("*").length;
  return [count(part.element), count(lines.element)];
}"""


def test_256_words_need_no_more_nodes(page):
    """Cells are painted, not made: a large matrix scrolls, and is walked, heard and read too."""
    visit(page, tab="attention", model="greetings")
    few, _ = page.evaluate(LARGE, 4)
    many, lines = page.evaluate(LARGE, 256)
    assert few == many < 60
    assert lines < 900  # two columns of words, and 300 lines at most
    page.locator(".matrix-view").focus()
    page.keyboard.press("Control+End")
    value = ((256 * 256 - 1) * 7919) % 1000 / 1000
    readout = page.locator(".matrix-readout").inner_text()
    assert readout == f"query w255, key w255: weight {value:.3f}"
    wait_until(page, "document.querySelector('.matrix-view').scrollTop > 500")
    page.get_by_role("button", name="Show as table").click()
    assert page.locator(".matrix td").count() <= 2000
    assert page.locator(".matrix tbody th").last.inner_text() == "w255"  # the page of the cursor


def test_the_bars_beside_are_the_row_that_is_pointed_at(page, traces):
    look(page, "greetings", side="cross", layer=1, head=4, query=1)
    weights = traces["greetings"].tensor("decoder.0.cross.weights", 4)

    def shows(row):
        order = weights[row].argsort(descending=True).tolist()
        labels = page.locator(".top-attention .bars-label").all_inner_texts()
        assert labels == [traces["greetings"].source.labels[i] for i in order]
        values = page.locator(".top-attention .bars-value").all_inner_texts()
        shares = [share_of(text) for text in values]
        assert shares == pytest.approx([weights[row, i].item() for i in order], abs=0.0051)

    shows(1)
    page.locator(".matrix-view").focus()
    page.keyboard.press("Control+Home")
    shows(0)


def share_of(text):
    """A share as the page writes it: 12%, 0.3%, < 0.1%."""
    return 0.0 if text.startswith("<") else float(text.rstrip("%")) / 100
