"""What travels to a page: strict JSON, small, and bytes that are the model's numbers."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from limelight.errors import UserError
from limelight.explain.explanation import explain
from limelight.explain.focus import focus_on
from limelight.explain.render import serialize
from limelight.explain.stage import Heatmap
from limelight.model import build
from tests.explain.samples import KINDS, trained
from tests.explain.test_trace import HOSTILE
from tests.explain.test_truth import by_hand, traced


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_is_json_and_says_what_the_trace_says(kind):
    trace = traced(kind)
    told = strict(serialize.as_json(serialize.manifest(trace)))
    assert set(told["tensors"]) == set(trace.names)
    hand = by_hand(trace)
    for name, facts in told["tensors"].items():
        value = hand.values[name]
        assert tuple(facts["shape"]) == value.shape
        assert len(facts["axes"]) == value.ndim
        finite = value[np.isfinite(value)]
        for key, of in {"min": np.min, "max": np.max, "mean": np.mean, "std": np.std}.items():
            assert facts[key] == pytest.approx(of(finite), rel=1e-3, abs=1e-4)
        assert facts.get("hidden", 0) == (value == -np.inf).sum()
        assert set(facts["from"]) <= set(trace.names)
    assert len(told["steps"]) == len(trace.steps)
    assert told["checks"]["softmax_row_max_err"] < 1e-6
    assert told["checks"]["broken"] == {}
    side = "encoder" if len(trace.source) else "decoder"
    np.testing.assert_allclose(told["norms"][side], hand.lengths(side)[:3], rtol=1e-3)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_travels_as_it_is(text):
    trace = explain(trained("paper"), text)
    told = strict(serialize.as_json(serialize.manifest(trace)).encode())
    assert told["source"]["ids"] == list(trace.source.ids)


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["paper", "gpt", "bert", "bert-classifies"])
def test_damaged_weights_are_null_and_flagged(kind, damage):
    model = trained(kind)
    broken = replace(model, model=build(model.model.config))
    broken.model.load_state_dict(model.model.state_dict())
    side = broken.model.decoder if kind == "gpt" else broken.model.encoder
    with torch.no_grad():
        side.layers[0].self_attention.value.weight.fill_(damage)
    trace = explain(broken, "Hi how are you")
    text = serialize.as_json(serialize.manifest(trace))
    told = strict(text)
    name = f"{'decoder' if kind == 'gpt' else 'encoder'}.0.self.value"
    if math.isnan(damage):
        assert told["tensors"][name]["max"] is None
        assert told["tensors"][name]["broken"] == math.prod(told["tensors"][name]["shape"])
    assert name in told["checks"]["broken"]
    assert "logits" in told["checks"]["broken"]
    assert told["steps"] == []
    assert "damaged" in repr(trace)


def decoded(blob):
    """The bytes as a page would read them."""
    kind = {"f32": "<f4", "f16": "<f2", "u8": "u1"}[blob.kind]
    numbers, found = np.frombuffer(blob.blob, kind), {}
    for name, shape in blob.parts:
        found[name], numbers = (
            numbers[: math.prod(shape)].reshape(shape),
            numbers[math.prod(shape) :],
        )
    assert not len(numbers)
    return found


@pytest.mark.parametrize("kind", ["paper", "rotary", "llama", "bert"])
def test_a_focused_head_can_be_recomputed_from_what_is_sent(kind):
    trace = traced(kind)
    for at in serialize.attentions(trace):
        sent = decoded(serialize.attention_head(trace, at, head=3))
        hand = by_hand(trace)
        scores = sent["q"] @ sent["k"].T
        np.testing.assert_allclose(scores, hand.values[f"{at}.scores"][2], atol=1e-4)
        exp = np.exp(sent["masked"])
        np.testing.assert_allclose(exp / exp.sum(1, keepdims=True), sent["weights"], atol=1e-5)
        np.testing.assert_allclose(sent["weights"] @ sent["v"], sent["mixed"], atol=1e-5)


def test_tensors_in_all_precisions():
    trace = traced("paper")
    exact = trace.tensor("encoder.0.self.weights").numpy()
    for kind, error in {"f32": 0, "f16": 1e-3, "u8": 0.5}.items():
        found = decoded(serialize.tensor(trace, "encoder.0.self.weights", kind=kind))
        value = found["encoder.0.self.weights"] / (255 if kind == "u8" else 1)
        assert np.abs(value - exact).max() <= (1 / 255 if kind == "u8" else error)
    part = serialize.tensor(trace, "encoder.0.self.q", head=2, rows=slice(1, 3))
    assert part.parts == (("encoder.0.self.q", (2, 4)),)


def test_small_pictures_of_all_heads():
    trace = traced("paper")
    small = decoded(serialize.thumbnails(trace))
    assert list(small) == serialize.attentions(trace)
    weights = trace.tensor("decoder.1.cross.weights").numpy()
    assert np.abs(small["decoder.1.cross"] / 255 - weights).max() < 1 / 255


def test_one_words_way_and_all_scores():
    trace = traced("paper")
    hand = by_hand(trace)
    way = decoded(serialize.token(trace, "decoder", 2))
    for name, value in way.items():
        np.testing.assert_allclose(value, hand.values[name][2], atol=1e-4)
    assert "decoder.1.feed_forward.active" in way
    scores = decoded(serialize.logits(trace, 1))["logits"]
    np.testing.assert_allclose(scores, hand.values["logits"][1], atol=1e-4)


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: serialize.attention_head(t, "encoder.7.self", 1),
        lambda t: serialize.attention_head(t, "encoder.0.self", 9),
        lambda t: serialize.logits(t, 999),
        lambda t: serialize.token(t, "decoder", -1),
        lambda t: serialize.token(t, "middle", 0),
        lambda t: serialize.tensor(t, "nothing"),
    ],
)
def test_wrong_questions_are_refused(ask):
    with pytest.raises(UserError):
        ask(traced("paper"))


@pytest.mark.parametrize("kind", KINDS)
def test_stops_travel_as_data(kind):
    trace = traced(kind)
    for stop in trace.walk():
        told = strict(serialize.as_json(serialize.stage_data(stop)))
        assert all(check["passed"] for check in told["checks"])
        assert told["section"][0] in "3456"
        for exhibit in told["exhibits"]:
            assert exhibit["title"]


@pytest.mark.parametrize("kind", ["paper", "gpt", "bert", "bert-classifies"])
def test_tables_travel_with_all_their_rows(kind):
    trace = traced(kind)
    for stop in trace.walk():
        told = strict(serialize.as_json(serialize.stage_data(stop)))
        for exhibit, facts in zip(stop.figures, told["exhibits"], strict=True):
            if isinstance(exhibit, Heatmap):
                assert "rows" not in facts
                continue
            assert facts["heads"] == list(exhibit.heads)
            for row, cells in zip(exhibit.rows, facts["rows"], strict=True):
                for cell, shown in zip(row, cells, strict=True):
                    near = pytest.approx(cell, rel=1e-5) if isinstance(cell, float) else cell
                    assert shown == (list(cell) if isinstance(cell, tuple) else near)


def test_a_word_can_be_pointed_at_by_its_place():
    trace = traced("paper")
    first = serialize.manifest(trace)["first_look"]
    view = focus_on(trace, first["layer"], first["head"], None, (first["source"], first["target"]))
    weights = view.block("decoder", "cross").get("weights")
    assert weights[first["target"], first["key"]].item() == pytest.approx(first["weight"], rel=1e-4)
    own = view.block("encoder", "self").get("weights")[first["source"], first["encoder_key"]]
    assert own.item() == pytest.approx(first["encoder_weight"], rel=1e-4)
    there = focus_on(trace, 2, 3, None, (1, 0))
    assert (there.source_word, there.target_word, there.layer, there.head) == (1, 0, 1, 2)
    for rows in [(99, None), (None, 99), (-1, None)]:
        with pytest.raises(UserError, match="there is no word"):
            focus_on(trace, None, None, None, rows)
