"""Every number of every stop is the model's: compared with the pass by hand, from the weights."""

import copy
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from limelight.errors import UserError
from limelight.explain.explanation import explain
from limelight.explain.gradient import labels_of
from limelight.explain.render.terminal import plain_text
from limelight.explain.stage import Heatmap
from limelight.explain.starting_point import first_focus
from limelight.model import ModelConfig, build
from limelight.model.attention import explicit_attention
from limelight.model.taps import taps
from limelight.tasks.text_model import TextModel
from tests.explain.by_hand import ByHand, softmax
from tests.explain.samples import KINDS, tokenizer, trained

TEXTS = {"bert": "Hi how ___ you", "bert-classifies": "Hi how are you"}
WHERE = [(None, None, None), (2, 3, "how")]  # layer, head, word


@cache
def traced(kind):
    return explain(trained(kind), TEXTS.get(kind, "Hi how are you"))


@cache
def by_hand(trace):
    return ByHand(trace.trained.model, trace.traced_text.source, trace.traced_text.target)


@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_value_is_the_one_computed_by_hand(kind):
    trace = traced(kind)
    hand = by_hand(trace)
    assert set(trace.names) == set(taps(trace.trained.model))
    for name in trace.names:
        np.testing.assert_allclose(trace.tensor(name).numpy(), hand.values[name], atol=1e-4)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_of_every_picture_is_the_one_computed_by_hand(kind, where):
    trace = traced(kind)
    hand = by_hand(trace)
    for stop in trace.walk(*where):
        for grid in [exhibit for exhibit in stop.figures if isinstance(exhibit, Heatmap)]:
            expected = picture(trace, hand, stop, grid)
            assert grid.values.shape == expected.shape == (len(grid.rows), len(grid.columns))
            where_ = f"{stop.name}: {grid.title}"
            np.testing.assert_allclose(grid.values.numpy(), expected, atol=1e-4, err_msg=where_)


def one_head(change):
    """A change of the second head only."""

    def changed(value):
        return np.concatenate([value[:1], change(value)[1:2], value[2:]])

    return changed


def equal_weights(weights):
    return (weights > 0) / (weights > 0).sum(axis=-1, keepdims=True)


def hidden(causal):
    """The second token, which a decoder's own row still reads."""

    def changed(masked):
        rows = [row for row in range(masked.shape[1]) if not (causal and row == 1)]
        masked[:, rows, 1] = -np.inf
        return masked

    return changed


def changes_by_hand(trace):
    """Spellings, and for each what it does to the values by name, in NumPy."""
    attentions = [name.removesuffix(".weights") for name in trace.weight_names]
    last, off = attentions[-1], one_head(np.zeros_like)
    yield f"{last}@2=off", {f"{last}.weights": off}
    yield f"{attentions[0]}@2=uniform", {f"{attentions[0]}.weights": one_head(equal_weights)}
    yield f"{last}=off", {f"{last}.output": np.zeros_like}
    yield f"{last}.norm=scale:0.5", {f"{last}.norm": lambda value: value / 2}
    own = [at for at in attentions if at.startswith("decoder") and at.endswith("self")]
    read = [at for at in attentions if at not in own] if trace.source.ids else own
    yield "source:2=hide", {f"{at}.masked": hidden(at in own) for at in read}


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("kind", ["paper", "pre-norm", "llama", "gpt-answers", "bert", "ssru"])
def test_every_value_and_picture_after_a_change_is_the_one_computed_by_hand(kind, which):
    before = traced(kind)
    spelling, change = list(changes_by_hand(before))[which]
    after = explain(trained(kind), before.text, change=[spelling])
    tokens = after.traced_text.source, after.traced_text.target
    hand, unchanged = (ByHand(after.model, *tokens, change=x) for x in (change, None))
    for name in after.names:
        np.testing.assert_allclose(after.tensor(name).numpy(), hand.values[name], atol=1e-4)
    both = [(hand.values[name], unchanged.values[name]) for name in change]
    assert not any(np.allclose(*pair, atol=1e-3) for pair in both)
    for stop in after.walk(2, 3, "how"):
        for grid in [exhibit for exhibit in stop.figures if isinstance(exhibit, Heatmap)]:
            expected = picture(after, hand, stop, grid)
            np.testing.assert_allclose(grid.values.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["paper", "gpt-answers", "llama"])
def test_without_its_mask_a_decoder_reads_the_tokens_it_should_predict(kind):
    before = traced(kind)
    after = explain(trained(kind), before.text, change=["decoder.*.self.masked=off"])
    tokens = after.traced_text.source, after.traced_text.target
    hand = ByHand(after.model, *tokens, mask=False)
    for name in after.names:
        np.testing.assert_allclose(after.tensor(name).numpy(), hand.values[name], atol=1e-4)
    assert before.checks.max_future_weight == 0 < after.checks.max_future_weight


def picture(trace, hand, stop, grid):
    """What a grid should hold, by the names it gives."""
    side = "encoder" if len(trace.source) else "decoder"
    if grid.names in (("lengths",), ("turns",)):
        return getattr(hand, grid.names[0])(side)
    if len(grid.names) > 1:
        return np.stack([row_of(trace, hand, name, grid) for name in grid.names])
    value = hand.values[grid.names[0]]
    if grid.head is not None:
        value = value[grid.head]
        return value[grid.at] if grid.at is not None else value
    return value[:, grid.at] if grid.at is not None else value


def row_of(trace, hand, name, grid):
    value, config = hand.values[name], trace.trained.model.config
    if name.endswith((".q", ".k", ".v")):
        shared = 1 if name.endswith(".q") else config.heads // (config.kv_heads or config.heads)
        value = value[grid.head // shared]
    return value[grid.at]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_check_passes(kind, where):
    for stop in traced(kind).walk(*where):
        for check in stop.checks:
            assert check.passed, (stop.name, check)


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_fails_where_the_model_does_something_else(kind):
    """The negative control: other weights than those that made the values."""
    trace = traced(kind)
    model = trace.trained.model
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        failed = {stop.name for stop in trace.walk() for check in stop.checks if not check.passed}
    finally:
        model.load_state_dict(kept)
    assert {"embedding", "queries", "heads", "feed-forward", "classifier"} <= failed


@pytest.mark.parametrize("kind", ["rotary", "llama", "qwen"])
def test_the_angles_of_rotary_positions_are_those_by_hand(kind):
    trace = traced(kind)
    config, focus = trace.config, first_focus(trace, None, None, None)
    (formula,) = next(stop for stop in trace.walk() if stop.name == "positions").formulas
    position = focus.word(focus.side)
    assert f"pos = {position}," in formula.filled
    assert len(formula.numbers) >= 2
    for name, angle in formula.numbers.items():
        first = int(name.split(" ")[1]) - 1
        assert angle == pytest.approx(position / config.rotary_base ** (first / config.d_head))
    assert [*formula.numbers.values()] == sorted(formula.numbers.values(), reverse=True)
    assert f"{config.rotary_base:g}" in formula.letters


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", ["paper", "pre-norm", "rotary"])
def test_formulas_have_the_numbers_of_the_pass_by_hand(kind, where):
    trace = traced(kind)
    hand = by_hand(trace)
    stops = {stop.name: stop for stop in trace.walk(*where)}
    focus = first_focus(trace, *where)
    layer, head = focus.layer, focus.head
    for name, place in [
        ("scores", "encoder.{}.self"),
        ("masked", "decoder.{}.self"),
        ("cross", "decoder.{}.cross"),
    ]:
        at, block = grid_of(stops[name]).focus, place.format(layer)
        formulas = {f.letters.split(" ")[0]: f for f in stops[name].formulas}
        dot = next(f for f in stops[name].formulas if f.letters.endswith("q . k"))
        assert dot.numbers["total"] == pytest.approx(
            hand.values[f"{block}.scores"][(head, *at)], abs=1e-4
        )
        others = [stops["scaling"], stops["softmax"]] if name == "scores" else [stops[name]]
        formulas = [f for stop in others for f in stop.formulas]
        scaled = next(f for f in formulas if f.letters.startswith("scaled"))
        weight = next(f for f in formulas if f.letters.startswith("weight"))
        assert scaled.numbers["scaled"] == pytest.approx(
            hand.values[f"{block}.scaled"][(head, *at)], abs=1e-4
        )
        assert weight.numbers["weight"] == pytest.approx(
            hand.values[f"{block}.weights"][(head, *at)], abs=1e-4
        )
        assert weight.numbers["above"] / weight.numbers["below"] == pytest.approx(
            weight.numbers["weight"], abs=1e-4
        )


def grid_of(stop):
    return next(e for e in stop.figures if isinstance(e, Heatmap))


@pytest.mark.parametrize("kind", ["paper", "gpt", "llama", "gpt-answers", "bert"])
def test_probabilities_are_the_softmax_of_the_whole_vocabulary(kind):
    trace = traced(kind)
    chances = softmax(by_hand(trace).values["logits"])
    assert trace.steps
    for step in trace.steps:
        row = chances[step.row]
        assert [c.token for c in step.top][:3] == np.argsort(-row)[:3].tolist()
        for candidate in (*step.top, step.chosen):
            assert candidate.probability == pytest.approx(row[candidate.token], abs=1e-5)
        assert step.entropy == pytest.approx(-(row * np.log(row)).sum(), abs=1e-3)


def test_teacher_forcing_shows_the_loss_of_every_position():
    smoothed = replace(trained("paper"), label_smoothing=0.1)
    trace = explain(smoothed, "who are you", target="I am a dog")
    chances = softmax(by_hand(trace).values["logits"])
    stop = {s.name: s for s in trace.walk()}["teacher"]
    tokenizer = trace.trained.tokenizer
    wanted = [*tokenizer.encode("I am a dog"), tokenizer.end]
    losses = [-math.log(chances[i, token]) for i, token in enumerate(wanted)]
    (listing,) = stop.figures
    assert [row[4] for row in listing.rows] == pytest.approx(losses, abs=1e-4)
    assert [row[1] for row in listing.rows] == ["⟨start⟩", *trace.answers.labels[:-1]]
    assert stop.formulas[0].numbers["mean"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    smooth = torch.nn.functional.cross_entropy(
        trace.logits, torch.tensor(wanted), label_smoothing=0.1
    ).item()
    assert stop.formulas[1].numbers["smoothed"] == pytest.approx(smooth, abs=1e-4)


def test_the_toy_of_two_by_two():
    """Q = K = [[1,0],[0,1]], V = [[10,0],[0,10]]: 0.6698 and 0.3302, 6.698 and 3.302."""
    eye = torch.eye(2)[None, None]
    seen = {}
    out = explicit_attention(eye, eye, 10 * eye, watch=seen.setdefault)
    assert seen["weights"][0, 0].flatten().tolist() == pytest.approx(
        [0.6698, 0.3302, 0.3302, 0.6698], abs=5e-5
    )
    assert out[0, 0].flatten().tolist() == pytest.approx([6.698, 3.302, 3.302, 6.698], abs=5e-4)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_formula_of_the_first_half_is_the_one_computed_by_hand(kind, where):
    trace = traced(kind)
    hand, config = by_hand(trace), trace.trained.model.config
    side = "encoder" if len(trace.source) else "decoder"
    stops = {stop.name: stop for stop in trace.walk(*where)}
    focus = first_focus(trace, *where)
    layer, head = focus.layer, focus.head
    i = grid_of(stops["embedding"]).focus[0]
    v, name = hand.values, f"{side}.{layer}.self"

    def told(stop, which=0):
        return stops[stop].formulas[which].numbers

    assert told("embedding")["first"] == pytest.approx(v[f"{side}.embedding"][i, 0], abs=1e-4)
    if config.positions in ("sinusoidal", "learned"):
        assert told("positions", 1)["input"] == pytest.approx(v[f"{side}.input"][i, 0], abs=1e-4)
        assert told("positions", 1)["place"] == pytest.approx(
            v[f"{side}.positions"][i, 0], abs=1e-4
        )
    if config.positions == "sinusoidal":
        assert told("positions")["sin"] == pytest.approx(math.sin(told("positions")["angle"]))
        assert told("positions")["sin"] == pytest.approx(v[f"{side}.positions"][i, 4], abs=1e-5)
    flat = v[f"{name}.query"].reshape(-1, config.heads, config.d_head)
    assert told("queries")["total"] == pytest.approx(flat[i, head, 0], abs=1e-4)
    assert told("sum")["total"] == pytest.approx(v[f"{name}.mixed"][head, i, 0], abs=1e-4)
    if config.norm != "none":
        assert told("add-norm", 1)["result"] == pytest.approx(v[f"{name}.norm"][i, 0], abs=1e-4)
    quiet = (np.abs(v[f"{side}.{layer}.feed_forward.active"][i]) == 0).sum()
    assert told("feed-forward")["quiet"] == pytest.approx(quiet)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_has_the_numbers_computed_by_hand(kind, where):
    trace = traced(kind)
    hand = by_hand(trace)
    seen = set()
    for stop in trace.walk(*where):
        for listing in [e for e in stop.figures if not isinstance(e, Heatmap)]:
            for name in listing.names:
                TABLES[name](trace, hand, where, stop, listing)
                seen.add(name)
    assert {"merges", "neighbours", "neurons"} <= seen
    assert "classes" in seen if kind == "bert-classifies" else {"top", "lens"} <= seen


def focused(trace, stop_name, where):
    stops = {stop.name: stop for stop in trace.walk(*where)}
    return grid_of(stops[stop_name]).focus[0]


def final(trace, where):
    """The side that the classifier reads, and its chosen row."""
    if not len(trace.target):
        return "encoder", focused(trace, "embedding", where)
    first = "start" if len(trace.source) else "embedding"
    return "decoder", focused(trace, first, where)


def near(shown, expected):
    assert shown == pytest.approx(expected, abs=1e-4)


def check_merges(trace, hand, where, stop, listing):
    """The last line of the work is what the tokenizer really does, byte for byte at the start."""
    words, kind = trace.trained.tokenizer, trace.trained.family
    for word, steps in listing.rows:
        first, last = (step.split(" ") for step in (steps[0], steps[-1]))
        assert "".join(first) == "".join(last) == word
        plain = word.replace("·", " ")
        assert [piece.replace("·", " ") for piece in last] == words.pieces(words.encode(plain))
    shown = "".join(word for word, _ in listing.rows)
    hidden = trace.text.replace("___", "") if kind == "encoder-only" else trace.text
    assert shown == hidden.replace(" ", "·")


def check_neighbours(trace, hand, where, stop, listing):
    side = "source" if len(trace.source) else "target"
    table = hand.w[f"{side}.tokens.weight"]
    ids = trace.traced_text.source or trace.traced_text.target
    own = table[ids[focused(trace, "embedding", where)]]
    cosine = table @ own / np.linalg.norm(table, axis=1) / np.linalg.norm(own)
    near([row[2] for row in listing.rows], [cosine[int(row[1])] for row in listing.rows])
    near(listing.rows[0][2], np.sort(cosine)[-2])


def check_neurons(trace, hand, where, stop, listing):
    side = "encoder" if len(trace.source) else "decoder"
    name, i = (
        f"{side}.{first_focus(trace, *where).layer}.feed_forward",
        focused(trace, "embedding", where),
    )
    for neuron, before, after in listing.rows:
        n = int(neuron.split()[1]) - 1
        near(before, hand.values[f"{name}.inner"][i, n])
        near(after, hand.values[f"{name}.active"][i, n])
    near(abs(listing.rows[0][2]), np.abs(hand.values[f"{name}.active"][i]).max())


def check_lens(trace, hand, where, stop, listing):
    side, row = final(trace, where)
    best = hand.values["logits"][row].argmax()
    states = [s for s in hand.states(side) if not s.endswith(".output")]
    for name, (_, *top, last) in zip(states, listing.rows, strict=True):
        state = hand.values[name]
        if hand.c.norm_order == "pre":
            state = hand.norm(state, f"{side}.norm")
        chances = softmax(hand.classify(state)[row])
        near(top[1::2], np.sort(chances)[::-1][: len(top) // 2].tolist())
        near(last, chances[best])


def check_top(trace, hand, where, stop, listing):
    _, row = final(trace, where)
    logits = hand.values["logits"][row]
    near([r[2] for r in listing.rows], np.sort(logits)[::-1][:20].tolist())
    near([r[3] for r in listing.rows], [softmax(logits)[int(r[1])] for r in listing.rows])


def check_classes(trace, hand, where, stop, listing):
    logits = hand.values["logits"]
    near([row[1] for row in listing.rows], logits.tolist())
    near([row[2] for row in listing.rows], softmax(logits).tolist())


def check_steps(trace, hand, where, stop, listing):
    chances = softmax(hand.values["logits"])
    rows = range(trace.traced_text.given, len(trace.traced_text.answers))
    chosen = [chances[row, trace.traced_text.answers[row]] for row in rows]
    near([row[3] for row in listing.rows], chosen)


def check_teacher(trace, hand, where, stop, listing):
    chances = softmax(hand.values["logits"])
    rows = range(trace.traced_text.given, len(trace.traced_text.answers))
    wanted = [chances[row, trace.traced_text.answers[row]] for row in rows]
    near([row[3] for row in listing.rows], wanted)
    near([row[4] for row in listing.rows], [-math.log(p) for p in wanted])


def check_loss(trace, hand, where, stop, listing):
    rows, labels = labels_of(trace)
    chances = softmax(hand.values["logits"].reshape(-1, hand.values["logits"].shape[-1]))
    wanted = [chances[row, label] for row, label in zip(rows, labels, strict=True)]
    near([row[3] for row in listing.rows], wanted)
    near([row[4] for row in listing.rows], [-math.log(p) for p in wanted])


@cache
def after_a_step(trace):
    """A copy of the model after a step of torch's own SGD, and its gradients."""
    model = copy.deepcopy(trace.trained.model)
    rows, labels = labels_of(trace)
    logits = model(*trace.inputs)
    logits = logits if model.config.classes else logits[0, rows]
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    torch.optim.SGD(model.parameters(), lr=trace.trained.learning_rate).step()
    return model, {name: weight.grad for name, weight in model.named_parameters()}


def check_step(trace, hand, where, stop, listing):
    check_loss(trace, hand, where, stop, replace(listing, rows=with_loss(listing.rows)))
    after = ByHand(after_a_step(trace)[0], trace.traced_text.source, trace.traced_text.target)
    moved = [[*row[:3], row[5]] for row in listing.rows]
    check_loss(trace, after, where, stop, replace(listing, rows=with_loss(moved)))
    near([row[3] + row[4] for row in listing.rows], [row[5] for row in listing.rows])


def with_loss(rows):
    return [[*row[:4], -math.log(row[3])] for row in rows]


def check_gradients(trace, hand, where, stop, listing):
    _, gradients = after_a_step(trace)
    norms = {name: g.norm().item() for name, g in gradients.items() if g.dim() > 1}
    shown = {row[4]: row[0] for row in listing.rows}
    rest = math.hypot(*(g.norm().item() for g in gradients.values() if g.dim() < 2))
    assert shown == pytest.approx(norms | {"all biases and norms": rest}, abs=1e-4)
    assert sum(row[2] for row in listing.rows) == pytest.approx(1)


def check_token_gradients(trace, hand, where, stop, listing):
    """With finite differences in tests/explain/test_learning.py; here, the shares."""
    assert len(listing.rows) == len(trace.source if "encoder" in listing.title else trace.target)
    assert sum(row[3] for row in listing.rows) == pytest.approx(1)
    near(
        [row[2] / listing.rows[0][2] for row in listing.rows if row[3]],
        [row[3] / listing.rows[0][3] for row in listing.rows if row[3]],
    )


def check_beam(trace, hand, where, stop, listing):
    """Each place of the beam is a text: what follows its beginning, by hand."""
    prompt = list(trace.traced_text.target[: trace.traced_text.given + 1])
    texts, model = {}, trace.trained.model
    rows = iter(listing.rows)
    for n, nodes in enumerate(trace.traced_text.tree):
        for node in nodes:
            before = texts.get((n - 1, node.parent), [])
            own = ByHand(model, trace.traced_text.source, [*prompt, *before])
            logprobs = np.log(softmax(own.values["logits"][-1]))
            total = texts.get((n - 1, node.parent, "sum"), 0.0) + logprobs[node.token]
            row = next(rows)
            near(row[3], logprobs[node.token])
            near(row[4], total / ((5 + n + 1) / 6) ** trace.decode.length_penalty)
            texts[n, node.place] = [*before, node.token]
            texts[n, node.place, "sum"] = total
    marked = [row[5] for row in listing.rows if row[5].endswith("*")]
    assert len(marked) == len(trace.steps)
    assert marked[-1] == "".join(trace.answers.labels[trace.traced_text.given :]) + "  *"


def check_follow(trace, hand, where, stop, listing):
    uses = ["cross", "self"] if len(trace.source) else ["self"]
    uses = [use for use in uses if f"decoder.0.{use}.weights" in hand.values]
    layers = range(hand.layers("decoder")) if where[0] is None else [where[0] - 1]
    heads = range(4) if where[1] is None else [where[1] - 1]
    rows = iter(listing.rows)
    for step in trace.steps:
        chances = np.sort(softmax(hand.values["logits"][step.row]))[::-1][:5]
        shown = [float(item.rsplit(" ", 1)[1]) for item in next(rows)[2]]
        assert shown == pytest.approx(chances.tolist(), abs=6e-4)
        for use in uses:
            weights = np.mean(
                [
                    hand.values[f"decoder.{n}.{use}.weights"][h, step.row]
                    for n in layers
                    for h in heads
                ],
                axis=0,
            )
            items = next(rows)[2]
            shown = [float(item.rsplit(" ", 1)[1]) for item in items]
            assert shown == pytest.approx(np.sort(weights)[::-1][: len(items)].tolist(), abs=6e-4)
            words = (trace.source if use == "cross" else trace.target).labels
            assert items[0].rsplit(" ", 1)[0] == words[int(weights.argmax())]


TABLES = {
    "merges": check_merges,
    "neighbours": check_neighbours,
    "neurons": check_neurons,
    "lens": check_lens,
    "top": check_top,
    "classes": check_classes,
    "steps": check_steps,
    "teacher": check_teacher,
    "beam": check_beam,
    "follow": check_follow,
    "loss": check_loss,
    "step": check_step,
    "gradients": check_gradients,
    "encoder tokens": check_token_gradients,
    "decoder tokens": check_token_gradients,
}


def test_the_toy_of_two_by_two_as_a_model_that_is_explained():
    """The same numbers at the stops: two tokens, one head of two numbers, V ten times as large."""
    words = tokenizer()
    sizes = {"vocab": len(words), "layers": 1, "d_model": 2, "heads": 1, "d_ff": 2, "max_len": 8}
    model = build(ModelConfig(**sizes, positions="learned", dropout=0.0, tied=False)).eval()
    attention = model.encoder.layers[0].self_attention
    with torch.no_grad():
        model.source.positions.weight.zero_()
        for token, row in zip([*words.encode("a"), words.end], torch.eye(2), strict=True):
            model.source.tokens.weight[token] = row / math.sqrt(2)
        for part, size in {"query": 1, "key": 1, "value": 10}.items():
            getattr(attention, part).weight.copy_(size * torch.eye(2))
    trace = explain(TextModel(model, words), "a", target="a")
    stops = {stop.name: stop for stop in trace.walk(word="a")}
    rows = {name: grid_of(stops[name]).values.tolist() for name in ("scores", "softmax", "sum")}
    assert np.ravel(rows["scores"]).tolist() == pytest.approx([1, 0, 0, 1], abs=1e-6)
    assert np.ravel(rows["softmax"]).tolist() == pytest.approx(
        [0.6698, 0.3302, 0.3302, 0.6698], abs=5e-5
    )
    assert rows["sum"][-1] == pytest.approx([6.698, 3.302], abs=5e-4)
    printed = plain_text(trace, [stops["softmax"], stops["sum"]])
    assert re.search(r"> a +0\.670 0\.330 +1\.000", printed)
    assert re.search(r"> sum +6\.698 3\.302", printed)


def places_of(trace, where):
    """For each stop with attention in it: the block it looks at, and the row and column."""
    stops = {stop.name: stop for stop in trace.walk(*where)}
    layer, side = first_focus(trace, *where).layer, "encoder" if len(trace.source) else "decoder"
    blocks = {
        **dict.fromkeys(("scores", "scaling", "mask", "softmax", "sum"), f"{side}.{layer}.self"),
        "masked": f"decoder.{layer}.self",
        "cross": f"decoder.{layer}.cross",
    }
    for name, block in blocks.items():
        if name in stops and f"{block}.weights" in trace.names:
            own = stops["scores"] if name == "sum" else stops[name]
            yield stops[name], block, grid_of(own).focus


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_inside_a_formula_of_attention_is_the_one_computed_by_hand(kind, where):
    trace = traced(kind)
    hand, config = by_hand(trace), trace.trained.model.config
    head = first_focus(trace, *where).head
    group = head * config.num_kv_heads // config.heads
    seen = 0
    for stop, block, (i, j) in places_of(trace, where):
        own = {part: hand.values[f"{block}.{part}"] for part in ("q", "k", "v", "weights")}
        scaled = hand.values[f"{block}.scaled"][head]
        rows = {"q": own["q"][head, i], "k": own["k"][group, j], "v": own["v"][group, :, 0]}
        rows |= {"weight": own["weights"][head, i]}
        for formula in stop.formulas:
            numbers = formula.numbers
            for name, told in numbers.items():
                part, place = re.fullmatch(r"([a-z]+)(\d*)", name).groups()
                if place and part in rows:
                    assert told == pytest.approx(rows[part][int(place) - 1], abs=1e-4)
                    seen += 1
            if "others" in numbers:
                pairs = ("q", "k") if "q" in "".join(numbers) else ("weight", "v")
                places = [
                    name.removeprefix(pairs[0]) for name in numbers if name[:1] == pairs[0][0]
                ]
                shown = sum(
                    numbers[pairs[0] + n] * numbers[pairs[1] + n] for n in places if n.isdigit()
                )
                assert numbers["others"] == pytest.approx(numbers["total"] - shown, abs=1e-3)
            if "masked" in numbers:
                assert numbers["scaled"] == pytest.approx(scaled[i, j], abs=1e-4)
                assert numbers["masked"] == pytest.approx(numbers["scaled"])
            if "later" in numbers:
                assert any(
                    numbers["later"] == pytest.approx(x, abs=1e-4) for x in scaled[i, i + 1 :]
                )
    assert seen >= 12


@pytest.mark.parametrize("where", WHERE)
def test_a_recurrent_cell_shows_its_gate_and_its_state(where):
    trace = traced("ssru")
    stop = {stop.name: stop for stop in trace.walk(*where)}["masked"]
    name, row = f"decoder.{first_focus(trace, *where).layer}.self", grid_of(stop).at
    v, told = by_hand(trace).values, stop.formulas[0].numbers
    for part in ("gate", "value", "state"):
        assert told[part] == pytest.approx(v[f"{name}.{part}"][row, 0], abs=1e-4)
    assert told["before"] == pytest.approx(v[f"{name}.state"][row - 1, 0], abs=1e-4)
    assert row > 0
    with pytest.raises(UserError, match="no self-attention but a recurrent cell"):
        trace.attention(layer=1, head=1, which="decoder")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_inside_the_other_formulas_is_the_one_computed_by_hand(kind, where):
    trace = traced(kind)
    hand, config = by_hand(trace), trace.trained.model.config
    stops = {stop.name: stop for stop in trace.walk(*where)}
    side = "encoder" if len(trace.source) else "decoder"
    focus = first_focus(trace, *where)
    layer, head = focus.layer, focus.head
    i, attention = grid_of(stops["embedding"]).focus[0], f"{side}.layers.{layer}.self_attention"

    before, block = f"{side}.{layer - 1}.feed_forward", f"{side}.{layer}.self"
    pre = config.norm_order == "pre"
    running = hand.values[f"{before}.{'add' if pre else 'norm'}" if layer else f"{side}.input"][i]
    asks = hand.values[f"{block}.norm"][i] if pre else running  # what the queries are made of
    query = stops["queries"].formulas[0].numbers
    weights = hand.w[f"{attention}.query.weight"][head * config.d_head]
    for name in query:
        if name[0] == "w":
            assert query[name] == pytest.approx(weights[int(name[1:]) - 1], abs=1e-5)
            assert query["x" + name[1:]] == pytest.approx(asks[int(name[1:]) - 1], abs=1e-4)
    shown = sum(query[n] * query["x" + n[1:]] for n in query if n[0] == "w")
    rest = query["total"] - query.get("bias", 0.0) - shown
    assert query["others"] == pytest.approx(rest, abs=1e-3)

    if config.norm != "none":
        check_norm(hand, config, stops, side, layer, running, i)
    if stops.get("classifier") and stops["classifier"].formulas:
        told = stops["classifier"].formulas[0].numbers
        logits = hand.values["logits"].reshape(-1, hand.values["logits"].shape[-1])
        totals = [row.max() + math.log(np.exp(row - row.max()).sum()) for row in logits]
        rows = [r for r, t in enumerate(totals) if abs(t - told["total"]) < 1e-3]
        assert any(np.abs(logits[r] - told["score"]).min() < 1e-4 for r in rows)
        assert told["probability"] == pytest.approx(
            math.exp(told["score"] - told["total"]), abs=1e-4
        )


def check_norm(hand, config, stops, side, layer, running, i):
    norm = next(f.numbers for f in stops["add-norm"].formulas if "result" in f.numbers)
    path = f"{side}.layers.{layer}.self_residual.norm"
    assert norm["gain"] == pytest.approx(hand.w[f"{path}.weight"][0], abs=1e-5)
    divided = norm.get("spread", norm.get("size"))  # RMS norm has no mean, and divides by the size
    straight = (norm["x"] - norm.get("mean", 0.0)) / divided * norm["gain"]
    assert norm["result"] == pytest.approx(straight + norm.get("shift", 0.0), abs=1e-4)
    pre = config.norm_order == "pre"
    normed = running if pre else hand.values[f"{side}.{layer}.self.add"][i]
    assert norm["x"] == pytest.approx(normed[0], abs=1e-4)
    if config.norm == "layer":
        assert norm["mean"] == pytest.approx(normed.mean(), abs=1e-4)
        assert norm["spread"] == pytest.approx(math.sqrt(normed.var() + config.norm_eps), abs=1e-4)
    else:
        assert norm["size"] == pytest.approx(math.sqrt((normed**2).mean()), abs=1e-3)
