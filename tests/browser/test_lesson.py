"""The lesson and its languages, learning on the drawing, the map of tokens, other families."""

import re
from itertools import pairwise

import numpy as np
import pytest
import torch

import limelight
from limelight.explain.render import serialize
from limelight.explain.starting_point import first_focus
from limelight.explain.tokens import visible
from limelight.serve.worker.trace_cache import example_for
from tests.browser.conftest import ready, serious, visit, wait_until
from tests.explain.by_hand import ByHand
from tests.serve.samples import Served
from tests.tasks.conftest import model  # noqa: F401  (a fixture)

pytestmark = pytest.mark.system

TEXT = "Hi how are you"


@pytest.fixture(scope="module")
def others(run):
    with Served(*map(run, ("lstm", "draw")), "helper") as served:
        yield served


def at(page, stage, name="greetings", text=TEXT, **more):
    return visit(page, model=name, tab="explain", text=text, stage=stage, **more)


def task(page):
    return page.get_by_role("region", name="Your turn")


def answered(page, value):
    task(page).get_by_role("textbox").fill(value)
    page.keyboard.press("Enter")
    return task(page).get_by_role("status").inner_text()


def test_a_task_knows_its_answer_from_the_numbers_of_the_place(page, known):
    trace = known["greetings"].explain(TEXT)
    for layer, head, row in ((1, 2, 0), (2, 1, 2)):
        at(page, "softmax", layer=layer, head=head, query=row)
        weights = trace.tensor(f"encoder.{layer - 1}.self.weights")[head - 1, row]
        share = weights.sort(descending=True).values[:2].sum().item()
        assert "Look again" in answered(page, f"{share / 2:.3f}")
        assert answered(page, f"{share:.3f}").startswith("✓")
    at(page, "classifier", step=1)
    first, second = trace.logits[1].double().sort(descending=True).values[:2].tolist()
    assert answered(page, f"{(first - second) / np.log(2):.3f}".replace(".", ",")).startswith("✓")
    assert task(page).locator(".lesson-progress").inner_text().startswith("2 of ")
    page.reload()
    ready(page)
    assert task(page).locator(".lesson-progress").inner_text().startswith("2 of ")
    page.get_by_text("All stages").click()
    assert page.locator(".stage-list").inner_text().count("✓") == 2
    task(page).get_by_role("button", name="Start over").click()
    assert task(page).locator(".lesson-progress").inner_text().startswith("0 of ")


def test_what_leaks_without_the_mask_is_seen_by_switching_it_off(page, known):
    text = "the cat sleeps here."
    at(page, "mask", "writer", text, layer=1, head=1, query=4)
    task(page).get_by_role("button", name="Switch the mask off").click()
    ready(page)
    assert "change=decoder.*.self.masked%3Doff" in page.url
    trace = known["writer"].explain(text, change=["decoder.*.self.masked=off"])
    weights = trace.tensor("decoder.0.self.weights")[0, 4]
    best = 5 + int(weights[5:].argmax())
    chips = task(page).locator(".lesson-options .chip")
    chips.filter(has_text=re.compile(f"^{re.escape(trace.target.labels[best])}$")).first.click()
    assert task(page).get_by_role("status").inner_text().startswith("✓")
    task(page).get_by_role("button", name="Switch the mask on again").click()
    ready(page)
    assert "change" not in page.url
    assert task(page).get_by_role("button", name="Switch the mask off").count() == 1


def answers_by_hand(trace):
    """What is right at each stop of the bundled `helper`, from its weights: a label or a number."""
    given, focus = trace.traced_text, first_focus(trace, None, None, None)
    hand = ByHand(trace.trained.model, given.source, given.target)
    v, config = hand.values, hand.c
    layer, head, row, step = focus.layer, focus.head, focus.source_word, focus.target_word
    labels, written = trace.source.labels, trace.target.labels
    own, across = f"encoder.{layer}.self", f"decoder.{layer}.cross"
    weights = v[f"{own}.weights"][head, row]
    lengths = weights * np.linalg.norm(v[f"{own}.v"][head], axis=-1)
    states = [v["encoder.input"], *(v[f"encoder.{n}.feed_forward.add"] for n in range(3))]
    came = states[layer][row]
    ways = [x[row] / np.linalg.norm(x[row]) for x in states]
    table = hand.w["source.tokens.weight"]
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = unit @ unit[given.source[row]]
    cosines[[given.source[row], *trace.trained.tokenizer.special_ids]] = -1
    pieces = trace.trained.tokenizer.pieces
    logits = v["logits"]
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    rows = [one.row for one in trace.steps]
    chosen = [chances[one.row, one.chosen.token] for one in trace.steps]
    entropies = [-(chances[r] * np.log(chances[r])).sum() for r in rows]
    surprise = [-np.log(chances[r, token]) for r, token in enumerate(trace.answers.ids)]
    top = np.sort(logits[step])[::-1]
    name = trace.answers.labels
    return {
        "pieces": len(given.source),
        "embedding": visible(pieces([int(cosines.argmax())])[0]),
        "positions": "nothing",
        "queries": config.d_head,
        "scores": labels[v[f"{own}.scores"][head, row].argmax()],
        "scaling": config.d_head**0.5,
        "mask": 0,
        "softmax": np.sort(weights)[-2:].sum(),
        "sum": labels[lengths.argmax()],
        "heads": f"head {v[f'{own}.weights'][:, row].max(axis=-1).argmax() + 1}",
        "add-norm": ("x, the input", "attention output")[
            int(np.linalg.norm(v[f"{own}.output"][row]) > np.linalg.norm(came))
        ],
        "feed-forward": int((v[f"encoder.{layer}.feed_forward.active"][row] == 0).sum()),
        "stack": f"layer {np.argmin([a @ b for a, b in pairwise(ways)]) + 1}",
        "start": written[0],
        "cross": labels[v[f"{across}.weights"][head, step].argmax()],
        "classifier": (top[0] - top[1]) / np.log(2),
        "loop": name[rows[int(np.argmin(chosen))]],
        "follow": name[rows[int(np.argmax(entropies))]],
        "teacher": name[int(np.argmax(surprise))],
        "loss": name[int(np.argmax(surprise))],
    }


def test_what_the_lesson_calls_right_is_so_by_the_bundled_models_own_numbers(new_page, others):
    helper = limelight.load("helper")
    page = visit(new_page(host=others.url), model="helper", tab="explain")
    trace = helper.explain(example_for(helper)["text"], tag="ask")
    expected = answers_by_hand(trace)
    answered_by, wrong = set(), 0
    for stage, right in expected.items():
        page.eval_on_selector(f".stage-list [data-stage='{stage}']", "one => one.click()")
        page.wait_for_timeout(30)
        ready(page)
        chips = task(page).locator(".lesson-options .chip")
        if isinstance(right, str):
            for chip in chips.all():
                chip.click()
                said = task(page).get_by_role("status").inner_text()
                assert said.startswith("✓") == (chip.inner_text() == right), (stage, said)
                wrong += not said.startswith("✓")
            assert right in chips.all_inner_texts(), stage
        else:
            assert "Look again" in answered(page, f"{right + 1.5:.3f}"), stage
            assert answered(page, f"{right:.3f}").startswith("✓"), stage
        answered_by.add(type(right))
    assert len(answered_by) > 1
    assert wrong > len(expected)  # wrong answers were refused
    assert task(page).locator(".lesson-progress").inner_text().startswith(f"{len(expected)} of ")


def test_every_stop_of_the_walk_has_a_task(page):
    at(page, "pieces")
    for _ in range(page.locator(".stage-list li").count() - 1):
        assert task(page).count() == 1, page.locator("#stage-title").inner_text()
        page.keyboard.press("ArrowRight")
        ready(page)
    assert task(page).count() == 1


def test_the_page_speaks_other_languages_and_leaves_tokens_alone(page):
    page.goto(f"{page.watch.host}/?lang=de#model=greetings&tab=explain&stage=softmax&text=add+mask")
    ready(page)
    assert page.locator("html").get_attribute("lang") == "de"
    assert page.get_by_role("tab", name="Erklären").get_attribute("aria-selected") == "true"
    assert "Softmax macht aus" in page.locator("#stage-title").inner_text()
    assert "zwischen 0 und 1" in page.locator(".what").inner_text()
    reads = page.locator(".sentence-row .chip").all_inner_texts()
    page.get_by_label("Sprache").select_option("zh")
    wait_until(page, "() => document.documentElement.lang === 'zh'")
    ready(page)
    assert "讲解" in page.get_by_role("tablist").inner_text()
    assert page.locator(".sentence-row .chip").all_inner_texts() == reads
    assert "stage=softmax" in page.url
    page.goto(f"{page.watch.host}/#model=greetings&tab=explain")  # what was chosen is kept
    ready(page)
    assert page.locator("html").get_attribute("lang") == "zh"
    page.route("**/texts/*.json", lambda route: route.fulfill(json={}))
    page.reload()
    ready(page)
    assert page.get_by_role("tab", name="Explain").count() == 1  # what is missing is English


def test_the_map_of_tokens_can_be_flown_through(page, known):
    at(page, "embedding")
    trace = known["greetings"].explain(TEXT)
    found = serialize.token_map(trace, "encoder")
    canvas, near = page.locator(".token-map-canvas"), page.locator(".token-map-near")

    def image():
        drawn = "canvas => new Promise(requestAnimationFrame).then(() => canvas.toDataURL())"
        return canvas.evaluate(drawn)

    seen = {image()}
    page.get_by_label("Find a token").fill("hello")
    chosen = [label.strip("·").lower().startswith("hello") for label in found["labels"]].index(True)
    assert near.locator("strong").inner_text() == found["labels"][chosen]
    wanted = [found["labels"][i] for i in found["near"][chosen]]
    assert near.locator(".chip").all_inner_texts() == wanted
    seen.add(image())
    near.locator(".chip").first.click()
    assert near.locator("strong").inner_text() == wanted[0]
    canvas.focus()
    for key in ("+", "ArrowLeft", "ArrowDown", "-", "0", "+"):
        page.keyboard.press(key)
        seen.add(image())
    assert "stage=embedding" in page.url  # the arrows moved the map, not the walk
    page.keyboard.press("Enter")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 90, box["y"] + 70)
    page.mouse.wheel(0, -300)
    seen.add(image())
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 110, steps=3)
    page.mouse.up()
    seen.add(image())
    before = image()
    canvas.evaluate("""canvas => {
      const { left, top } = canvas.getBoundingClientRect();
      canvas.setPointerCapture = () => {};
      const at = (x) => ({ pointerType: "touch", clientX: left + x, clientY: top + 80 });
      const touch = (type, pointerId, x) =>
        canvas.dispatchEvent(new PointerEvent(type, { pointerId, ...at(x) }));
      touch("pointerdown", 7, 80); touch("pointerdown", 8, 120);
      touch("pointermove", 7, 40); touch("pointermove", 8, 180);
      touch("pointerup", 7, 40); touch("pointerup", 8, 180);
    }""")
    assert image() != before
    assert len(seen) >= 8


def test_learning_is_drawn_on_the_model(page, known):
    at(page, "learning")
    trace = known["greetings"].explain(TEXT)
    stage = next(one for one in trace.walk() if one.name == "learning")
    gradients = next(figure for figure in stage.figures if figure.names == ("gradients",))
    part = page.locator(".gradient-part[data-weights^='encoder.layers.1.feed_forward']")
    own = [row for row in gradients.rows if row[4].startswith("encoder.layers.1.feed_forward.")]
    share = sum(row[2] for row in own)
    assert part.get_attribute("title").startswith(f"{100 * share:.{0 if share >= 0.1 else 1}f}%")
    assert page.locator(".map .heated").count() > 4
    page.locator(".map [data-stage=loss]").click()
    ready(page)
    assert page.locator(".map .heated").count() == 0
    stage = next(one for one in trace.walk() if one.name == "loss")
    losses = [row[4] for row in stage.figures[0].rows]
    shown = page.locator(".loss-column .number:first-child").all_inner_texts()
    assert [float(x) for x in shown] == pytest.approx(losses, abs=0.006)
    at(page, "scaling", layer=1, head=1, query=0)
    scores = trace.tensor("encoder.0.self.scores")[0, 0].double()
    width = known["greetings"].model.config.d_head
    both = torch.stack([(scores / width**0.5).softmax(-1), scores.softmax(-1)], dim=1)
    cells = page.locator(".weights-table tbody .share-cell .number").all_inner_texts()
    assert [float(x) for x in cells] == pytest.approx(both.flatten().tolist(), abs=0.0006)
    at(page, "stack", step=1)
    figures = (figure for stage in trace.walk() for figure in stage.figures)
    lens = next(figure for figure in figures if "lens" in figure.names)
    assert page.locator(".lens-ladder tbody tr").count() == len(lens.rows) == 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_new_pictures_keep_nobody_out(new_page, theme, others):
    page = new_page(color_scheme=theme, bypass_csp=True)
    for stage in ("embedding", "positions", "scaling", "stack", "loss", "learning"):
        at(page, stage)
        assert serious(page) == [], stage
    page = new_page(host=others.url, color_scheme=theme, bypass_csp=True)
    for name, stage in (("lstm", "recurrence"), ("draw", "candidates"), ("draw", "words")):
        visit(page, model=name, tab="explain", stage=stage)
        assert serious(page) == [], (name, stage)


def test_a_recurrent_model_has_a_walk_of_its_own(new_page, others, model):  # noqa: F811
    page = visit(new_page(host=others.url), model="lstm", tab="explain", text="c a b")
    trace, titles = model("lstm").explain("c a b"), []
    for _ in trace.walk():
        titles.append(page.locator("#stage-title").inner_text())
        assert page.locator(".explain-picture *").count() > 3
        assert page.locator("#choose-head").count() == 0
        page.keyboard.press(" ")
        ready(page)
    assert titles == [stage.title for stage in trace.walk()]
    visit(page, model="lstm", tab="explain", text="c a b", stage="attention")
    page.locator(".matrix").get_by_role("button", name="Show as table").click()
    weights = trace.tensor("decoder.cross.weights")
    shown = page.locator(".matrix tbody td").all_inner_texts()
    numbers = [float(x.strip("= ")) for x in shown if re.fullmatch(r"[=\s]*\d\.\d+", x)]
    assert numbers[: weights.size(1)] == pytest.approx(weights[0].tolist(), abs=0.0006)


def test_a_question_is_answered_and_the_walk_is_about_it(new_page, others):
    helper = limelight.load("helper")
    page = visit(new_page(host=others.url), model="helper")
    assert page.locator(".intro h1").inner_text().startswith("A Transformer, answering.")
    page.get_by_role("button", name="A thing").click()
    page.wait_for_timeout(30)
    ready(page)
    question, _, context = example_for(helper)["more"][1]["text"].partition("? ")
    fields = [page.locator(field).input_value() for field in ("#question", "#context")]
    assert fields == [f"{question}?", context]
    answer = page.locator(".ask-answer p").first.inner_text()
    assert answer.startswith(helper.ask(f"{question}?", context).text)
    page.get_by_role("region", name="Question").get_by_role("button", name="Explain this").click()
    page.wait_for_timeout(30)
    ready(page)
    trace = helper.explain(f"{question}? {context}", tag="ask")
    chips = page.locator(".sentence-row").first.locator(".chip").all_inner_texts()
    assert chips == list(trace.source.labels)


def test_a_model_without_summaries_says_which_model_would_bring_them(new_page, others):
    page = visit(new_page(host=others.url), model="helper", tab="ask")
    card = page.get_by_role("region", name="Summary")
    assert card.get_by_role("textbox").count() == 0
    told = card.inner_text()
    assert "did not learn to summarise, and no bundled model did" in told
    assert "limelight import google/pegasus-xsum" in told
    assert "limelight train text-to-text --data.tag summarise" in told
    assert card.get_by_role("button").count() == 0  # none of the others can, either


def test_a_drawing_is_explained_patch_by_patch(new_page, others):
    page = visit(new_page(host=others.url), model="draw", tab="explain", text="a small red circle")
    titles = set()
    for _ in range(5):
        titles.add(page.locator("#stage-title").inner_text())
        page.get_by_role("button", name="Next").click() if len(titles) < 5 else None
        ready(page)
    assert len(titles) == 5
    assert page.locator(".draw-maps figure").count() == 4  # one for each word
    page.get_by_role("button", name="candidates").click()
    page.locator(".draw-cell").nth(10).click()
    ready(page)
    assert "step=10" in page.url
    assert page.locator(".draw-cell.blank").count() == 54
    page.keyboard.press(".")
    ready(page)
    assert page.locator(".draw-cell.blank").count() == 53
    shares = [float(x.strip("<% ")) for x in page.locator(".bars-value").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
