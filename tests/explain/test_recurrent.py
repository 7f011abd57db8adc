"""Recurrent models explained: every number against NumPy, which knows only the weights."""

import json
from functools import cache
from html import escape

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.explain.comparison import rank_heads
from limelight.explain.explanation import explain
from limelight.explain.gradient import gradient_step
from limelight.explain.render import figures, serialize
from limelight.explain.render.terminal import plain_text
from limelight.explain.stage import Heatmap
from limelight.explain.stages import extra_stages, main_stages
from limelight.model import build, model_config
from limelight.tasks.text_model import TextModel, unchanged_since
from tests.explain.by_hand import softmax
from tests.explain.samples import tokenizer
from tests.explain.test_learning import loss_of, same, slope, state_of

PAIRS, TEXTS = "recurrent-encoder-decoder", "recurrent-decoder-only"
KINDS = {
    "lstm": {"family": PAIRS, "cell": "lstm"},
    "gru": {"family": PAIRS, "cell": "gru", "layers": 1},
    "rnn": {"family": PAIRS, "cell": "rnn", "attention": False, "tied": False},
    "lstm-lm": {"family": TEXTS, "cell": "lstm"},
    "gru-lm": {"family": TEXTS, "cell": "gru"},
}
WHERE = [(None, None), (2, "how")]  # layer, word


@cache
def traced(kind, dtype=torch.float32, smoothing=0.0, target=None):
    torch.manual_seed(5)
    sizes = {"vocab": len(tokenizer()), "layers": 2, "d_model": 12, "max_len": 48}
    model = build(model_config(**{**sizes, **KINDS[kind]})).to(dtype).eval()
    with torch.no_grad():  # nothing is small or zero, so that every term counts
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    known = "texts" if kind.endswith("lm") else "pairs"
    trained = TextModel(model, tokenizer(), DecodeConfig(beam=2, max_tokens=4), known)
    trained.label_smoothing = smoothing
    return explain(trained, "Hi how are you", target)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def steps_by_hand(cell, w, suffix, inputs, h, c):
    """One direction of one layer, in NumPy: everything that happens at each token."""
    found = []
    n = len(h)
    for x in inputs:
        a = w[f"weight_ih_{suffix}"] @ x + w[f"bias_ih_{suffix}"]
        b = w[f"weight_hh_{suffix}"] @ h + w[f"bias_hh_{suffix}"]
        if cell == "lstm":
            parts = np.split(a + b, 4)
            i, f, o, g = *(sigmoid(parts[k]) for k in (0, 1, 3)), np.tanh(parts[2])
            c = f * c + i * g
            h = o * np.tanh(c)
            found.append({"input gate": i, "forget gate": f, "output gate": o, "candidate": g})
            found[-1] |= {"cell": c, "state": h}
        elif cell == "gru":
            r, z = sigmoid((a + b)[:n]), sigmoid((a + b)[n : 2 * n])
            g = np.tanh(a[2 * n :] + r * b[2 * n :])
            h = (1 - z) * g + z * h
            found.append({"reset gate": r, "update gate": z, "candidate": g, "state": h})
        else:
            h = np.tanh(a + b)
            found.append({"state": h})
    return found


class ByHand:
    """All of a recurrent model's pass over one text."""

    def __init__(self, trace):
        self.w = {k: v.double().numpy() for k, v in trace.model.state_dict().items()}
        self.c, self.layers, self.values = trace.config, {}, {}
        start = [(np.zeros(self.c.d_model),) * 2] * self.c.layers
        if trace.source.ids:
            memory, start = self.side("encoder", "source", trace.source.ids, None)
            self.values["encoder.output"] = memory
        top, _ = self.side("decoder", "target", trace.target.ids, start)
        self.values["decoder.states"] = top
        if trace.source.ids and self.c.attention:
            top = self.attend(top, memory)
        self.values["logits"] = top @ self.w["classifier.weight"].T + self.w["classifier.bias"]

    def side(self, side, table, ids, start):
        x = self.w[f"{table}.weight"][list(ids)]
        self.values[f"{side}.embedding"] = x
        x = x * np.sqrt(self.c.d_model)
        w = {k: v for k, v in self.w.items() if k.startswith(f"{side}.cell.")}
        w = {k.rsplit(".", 1)[1]: v for k, v in w.items()}
        ends = []
        for layer in range(self.c.layers):
            half = np.zeros(self.c.d_model // 2)
            begin = start[layer] if start else (half, half)
            runs = {"": steps_by_hand(self.c.cell, w, f"l{layer}", x, *begin)}
            if start is None:
                back = steps_by_hand(self.c.cell, w, f"l{layer}_reverse", x[::-1], half, half)
                runs["back"] = back[::-1]
            self.layers[side, layer] = runs
            last = [run[0 if way else -1] for way, run in runs.items()]
            ends.append(
                tuple(
                    np.concatenate([one.get(name, one["state"]) for one in last])
                    for name in ("state", "cell")
                )
            )
            x = np.concatenate([[s["state"] for s in run] for run in runs.values()], axis=1)
        return x, ends

    def attend(self, states, memory):
        w = {k.removeprefix("attention."): v for k, v in self.w.items() if "attention." in k}
        q, k = states @ w["query.weight"].T + w["query.bias"], memory @ w["key.weight"].T
        scores = np.tanh(q[:, None] + k[None]) @ w["score.weight"][0]
        weights = softmax(scores)
        both = np.concatenate([states, weights @ memory], axis=1)
        output = np.tanh(both @ w["output.weight"].T + w["output.bias"])
        self.values["decoder.cross.masked"], self.values["decoder.cross.weights"] = scores, weights
        self.values["decoder.cross.output"] = output
        return output


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_the_one_computed_by_hand(kind):
    trace = traced(kind)
    hand = ByHand(trace)
    assert set(trace.names) == hand.values.keys()
    for name in trace.names:
        np.testing.assert_allclose(trace.tensor(name), hand.values[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_gates_states_and_weights_are_those_computed_by_hand(kind, where):
    trace = traced(kind)
    layer, word = (where[0], where[1]) if trace.config.layers > 1 else (None, where[1])
    hand, seen = ByHand(trace), []
    for stage in trace.walk(layer, None, word):
        assert all(check.passed for check in stage.checks), stage.name
        for grid in [f for f in stage.figures if isinstance(f, Heatmap)]:
            if grid.names != ("cell",):
                expected = hand.values[grid.names[0]]
            else:
                side = stage.location.split(",")[0]
                runs = hand.layers[side, (layer or 1) - 1].values()
                expected = [value for run in runs for value in run[grid.at].values()]
                check_formula(stage, next(iter(runs))[grid.at])
                check_gates(stage.figures[1], list(runs))
            np.testing.assert_allclose(grid.values, expected, atol=1e-5)
            seen.append(stage.name)
    wanted = {"embedding", "recurrence"}
    if kind in ("lstm", "gru"):
        wanted |= {"decoder-recurrence", "attention"}
    assert wanted <= set(seen)


def check_formula(stage, step):
    numbers = stage.formulas[0].numbers
    for name, value in step.items():
        assert numbers[name] == pytest.approx(value[0], abs=1e-5)
    if "cell" in step:
        kept = numbers["forget gate"] * numbers["cell before"]
        again = kept + numbers["input gate"] * numbers["candidate"]
        assert numbers["cell"] == pytest.approx(again)
    elif "update gate" in step:
        kept = numbers["update gate"] * numbers["state before"]
        new = (1 - numbers["update gate"]) * numbers["candidate"]
        assert numbers["state"] == pytest.approx(kept + new)


def check_gates(table, runs):
    for t, (_, *means, norm) in enumerate(table.rows):
        now = [run[t] for run in runs]
        for name, mean in zip(table.heads[1:], means, strict=False):
            expected = np.concatenate([step[name] for step in now]).mean()
            assert mean == pytest.approx(expected, abs=1e-5)
        whole = np.concatenate([step["state"] for step in now])
        assert norm == pytest.approx(np.linalg.norm(whole), abs=1e-5)


def test_the_walk_of_a_recurrent_model_is_short():
    common = ["pieces", "embedding", "recurrence"]
    assert main_stages(traced("lstm")) == [
        *common, "decoder-recurrence", "attention", "classifier", "loop",
    ]  # fmt: skip
    assert "attention" not in main_stages(traced("rnn"))  # it has none
    assert main_stages(traced("gru-lm")) == [*common, "classifier", "loop"]
    assert extra_stages(traced("lstm")) == ["teacher", "beam", "loss", "learning"]


def test_a_wrong_recurrence_fails_its_check():
    """The check compares with torch's own cell: gates in another order do not pass."""
    torch.manual_seed(5)
    trace = traced.__wrapped__("lstm")
    trace.tensor("decoder.states")
    weight = trace.model.decoder.cell.weight_hh_l1
    with torch.no_grad():
        weight.copy_(weight.roll(12, dims=0))
    stage = next(s for s in trace.walk() if s.name == "decoder-recurrence")
    assert not all(check.passed for check in stage.checks)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "lstm-lm"])
def test_gradients_are_the_slopes_of_the_loss(kind):
    trace = traced(kind, torch.float64, 0.1, "I am fine")
    before = state_of(trace.model)
    step = gradient_step(trace, 0.01)
    assert same(state_of(trace.model), before)
    assert step.loss_after < step.loss == pytest.approx(loss_of(trace), abs=1e-12)
    draw = torch.Generator().manual_seed(1)
    for name, weight in trace.model.named_parameters():
        way = torch.randn(weight.shape, generator=draw, dtype=torch.float64)

        def change(h, weight=weight, way=way):
            weight.data += h * way

        expected = (step.gradients[name] * way).sum().item()
        assert slope(trace, change) == pytest.approx(expected, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("kind", ["lstm", "rnn", "gru-lm"])
def test_terminal_json_and_html_show_the_walk(kind):
    trace = traced(kind)
    stages = trace.walk()
    printed, page = plain_text(trace, stages), trace.html()
    assert max(map(len, printed.splitlines())) <= 80
    facts = json.loads(serialize.as_json(serialize.manifest(trace)))
    assert facts["stops"] == [stage.name for stage in stages]
    assert facts["model"]["cell"] == trace.config.cell
    for stage in stages:
        assert stage.title in printed
        assert escape(stage.what) in page
        json.loads(serialize.as_json(serialize.stage_data(stage)))
    assert "<script" not in page
    assert "✗" not in page
    assert "recurrence" in repr(trace)
    assert (trace._repr_png_() is None) == (kind != "lstm")  # there is nothing to draw


def test_odd_text_is_escaped_in_the_page():
    trained = traced("lstm").trained
    page = explain(trained, "<script>alert(1)</script>", target="<b>").html()
    assert "<script" not in page
    assert "<b>&lt;b&gt;" not in page
    assert "&lt;script&gt;" in page


def test_its_attention_is_drawn_and_mistakes_are_sentences(tmp_path):
    figures.save(traced("lstm"), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000
    for kind, ask, sentence in (
        ("rnn", lambda t: figures.save(t, tmp_path / "b.svg"), "has no cross attention"),
        ("lstm-lm", lambda t: figures.save(t, tmp_path / "b.svg"), "has no cross attention"),
        ("lstm", lambda t: t.walk(layer=3), "there is no layer 3: this model has 1 to 2"),
        ("lstm", lambda t: t.walk(head=2), "there is no head 2: this model has only 1"),
        ("lstm", lambda t: t.walk(word="giraffe"), "there is no word 'giraffe' here"),
        ("lstm", lambda t: t.attention(1, 1), "has no encoder attention"),
    ):
        with pytest.raises(UserError, match=sentence):
            ask(traced(kind))


def test_a_changed_recurrent_model_is_compared_and_named_everywhere(monkeypatch):
    trained, titles = traced("lstm").trained, []
    after = explain(trained, "Hi how are you", change=["decoder.cross.weights=uniform"])
    (moved,) = after.comparison.attention  # all of it counts as one head
    before, now = (t.tensor("decoder.cross.weights") for t in (traced("lstm"), after))
    assert moved.tap == "decoder.cross.weights"
    assert torch.allclose(now, torch.full_like(now, 1 / now.size(1)))
    expected = (before - 1 / now.size(1)).abs().sum(dim=-1).mean() / 2
    assert moved.effect == pytest.approx(expected.item(), abs=1e-6)
    assert "<p>Changed: decoder.cross.weights=uniform</p>" in after.html()
    monkeypatch.setattr(Figure, "suptitle", lambda _, text, **__: titles.append(text))
    after._repr_png_()
    assert titles == ["changed: decoder.cross.weights=uniform"]
    with pytest.raises(UserError, match="has no heads to switch off"):
        rank_heads(traced("lstm"))


@pytest.mark.parametrize("kind", KINDS)
def test_explaining_leaves_no_change_that_a_cache_of_traces_would_notice(kind):
    """A pass with other weights in their place writes into torch's RNN modules."""
    trace = traced(kind)
    unchanged = unchanged_since(trace.trained)
    assert "learning" in [stage.name for stage in trace.walk()]
    assert unchanged()
    weight = next(trace.model.parameters())
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1)
        changed = not unchanged()
        weight.copy_(before)
    assert changed
