"""Loss and learning: gradients against finite differences, and a model that stays as it was."""

import copy
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from limelight.explain import gradient
from limelight.explain.explanation import explain
from limelight.explain.gradient import gradient_step, labels_of
from limelight.explain.stages import extra_stages
from limelight.model.taps import taps
from tests.explain.samples import KINDS, tokenizer, trained

TEXTS = {
    "bert": ("___ how ___ you", "Hi are"),
    "bert-classifies": ("Hi how are you", "answer"),
}
SMOOTHING = 0.1


def traced(kind, **changes):
    """The right answer is given, in double precision, with label smoothing."""
    model = trained(kind)
    exact = replace(model, model=copy.deepcopy(model.model).double().eval(), **changes)
    exact.label_smoothing = SMOOTHING
    text, target = TEXTS.get(kind, ("Hi how are you", "that is a dog"))
    return explain(exact, text, target)


def loss_of(trace):
    """The smoothed loss, from the logits of the model as it is now."""
    rows, labels = labels_of(trace)
    with torch.no_grad():
        logits = trace.model(*trace.inputs).numpy()
    logits = logits if trace.trained.classes else logits[0, rows]
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    nll = -logprobs[range(len(labels)), labels]
    return float(((1 - SMOOTHING) * nll - SMOOTHING * logprobs.mean(axis=-1)).mean())


def slope(trace, change, h=1e-5):
    """The central difference of the loss; `change(h)` moves something, and back again."""
    change(h)
    above = loss_of(trace)
    change(-2 * h)
    below = loss_of(trace)
    change(h)
    return (above - below) / (2 * h)


@pytest.mark.parametrize("kind", KINDS)
def test_every_gradient_is_the_slope_of_the_loss(kind):
    trace = traced(kind)
    step = gradient_step(trace, 0.01)
    draw = torch.Generator().manual_seed(1)
    assert step.loss == pytest.approx(loss_of(trace), abs=1e-12)
    parameters = dict(trace.model.named_parameters())
    assert step.gradients.keys() == parameters.keys()
    for name, weight in parameters.items():
        way = torch.randn(weight.shape, generator=draw, dtype=torch.float64)

        def change(h, weight=weight, way=way):
            weight.data += h * way

        expected = (step.gradients[name] * way).sum().item()
        assert slope(trace, change) == pytest.approx(expected, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_at_a_token_is_the_slope_along_its_embedding(kind):
    trace = traced(kind)
    step = gradient_step(trace, 0.01)
    for side, gradients in step.token_gradients.items():
        module = trace.model.get_submodule(taps(trace.model)[f"{side}.embedding"].module)
        for i in range(0, len(gradients), 2):
            moved = torch.zeros(1, *gradients.shape, dtype=torch.float64)
            way = torch.linspace(-1, 1, gradients.size(1), dtype=torch.float64)
            hook = module.register_forward_hook(lambda _, __, out, moved=moved: out + moved)

            def change(h, moved=moved, way=way, i=i):
                moved[0, i] += h * way

            found = slope(trace, change)
            hook.remove()
            expected = (gradients[i] * way).sum().item()
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-8)
    assert set(step.token_gradients) == {
        *(["encoder"] if len(trace.source) else []),
        *(["decoder"] if len(trace.target) else []),
    }


@pytest.mark.parametrize("kind", ["paper", "bert", "bert-classifies", "llama"])
def test_a_small_step_lowers_the_loss_by_its_first_order(kind):
    trace = traced(kind)
    for rate in (1e-5, -1e-5):  # the other way it rises
        step = gradient_step(trace, rate)
        ratio = (step.loss - step.loss_after) / (rate * step.squared_norm)
        assert ratio == pytest.approx(1, abs=0.02)
    still = gradient_step(trace, 0.0)
    assert still.loss_after == pytest.approx(still.loss, abs=1e-14)
    assert torch.equal(still.logits, still.logits_after)


def state_of(model):
    """All that a step could leave behind."""
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    own = {name: (id(w), w.grad, w.requires_grad) for name, w in model.named_parameters()}
    values = {name: w.detach().clone() for name, w in model.state_dict().items()}
    return (hooks, own, model.training), values


def same(one, other):
    return one[0] == other[0] and all(torch.equal(x, other[1][n]) for n, x in one[1].items())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind(kind):
    trace = traced(kind)
    before, answers = state_of(trace.model), trace.model(*trace.inputs)
    for stage in trace.walk():
        assert all(check.passed for check in stage.checks), stage.name
    with torch.inference_mode():  # as a server computes
        inside = gradient_step(trace, 0.5)
    assert same(state_of(trace.model), before)
    assert torch.equal(trace.model(*trace.inputs), answers)
    outside = gradient_step(trace, 0.5)
    for name, found in outside.gradients.items():
        assert torch.equal(inside.gradients[name], found)
    assert not torch.equal(outside.logits, outside.logits_after)


@pytest.mark.parametrize("fails", ["forward", "loss", "second forward"])
def test_nothing_is_left_behind_after_an_exception(fails, monkeypatch):
    trace = traced("paper")
    before, calls, real = state_of(trace.model), [], type(trace.model).forward

    def broken(self, *inputs):
        calls.append(1)
        if fails == "forward" or len(calls) > 1:
            raise RuntimeError("broken")
        return real(self, *inputs)

    if fails == "loss":
        monkeypatch.setattr(gradient, "_loss", lambda *_: 1 / 0)
    else:
        monkeypatch.setattr(type(trace.model), "forward", broken)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        gradient_step(trace, 0.5)
    monkeypatch.undo()
    assert same(state_of(trace.model), before)


def test_what_counts_in_the_loss_of_each_family():
    words = tokenizer()
    answers = words.encode("that is a dog")
    assert labels_of(traced("paper")) == (
        [0, 1, 2, 3, 4][: len(answers) + 1],
        [*answers, words.end],
    )
    rows, labels = labels_of(traced("gpt-answers"))  # the question does not count
    assert labels == [*answers, words.end]
    assert rows[0] == len(words.encode("Hi how are you")) + 1
    rows, labels = labels_of(traced("gpt"))  # all of a text does
    assert rows == list(range(len(labels)))
    assert labels[: len(words.encode("Hi"))] == words.encode("Hi")
    blanks = traced("bert")
    rows, labels = labels_of(blanks)
    assert [blanks.source.ids[row] for row in rows] == [words.mask, words.mask]
    assert labels == [*words.encode("Hi"), *words.encode(" are")]
    assert labels_of(traced("bert-classifies")) == ([0], [1])


def test_without_a_target_the_models_own_answer_is_taken_and_said():
    for kind, text in (("paper", "Hi"), ("bert", "Hi ___ you"), ("bert-classifies", "Hi")):
        own, given = explain(trained(kind), text), traced(kind)
        notes = {s.name: s.notes for s in own.walk()}, {s.name: s.notes for s in given.walk()}
        for stage in ("loss", "learning"):
            assert any("what the model itself would write" in note for note in notes[0][stage])
            assert not any("would write" in note for note in notes[1][stage])
    rows, labels = labels_of(explain(trained("bert-classifies"), "Hi"))
    assert labels == [int(explain(trained("bert-classifies"), "Hi").logits.argmax())]
    open_text = explain(trained("bert"), "Hi how")  # nothing hidden: the text itself
    rows, labels = labels_of(open_text)
    assert labels == [open_text.source.ids[row] for row in rows] == tokenizer().encode("Hi how")
    assert "Nothing is masked" in open_text.walk()[-1].notes[0]


def test_label_smoothing_is_said_only_where_training_used_it():
    smooth = next(s for s in traced("paper").walk() if s.name == "loss")
    plain = explain(trained("paper"), "Hi how are you", "that is a dog")
    sharp = next(s for s in plain.walk() if s.name == "loss")
    assert "with label smoothing e = 0.1" in smooth.formulas[1].letters
    assert smooth.figures[0].heads[-1] == "with smoothing"
    mean = np.mean([row[5] for row in smooth.figures[0].rows])
    assert smooth.formulas[1].numbers["smoothed"] == pytest.approx(mean)
    assert len(sharp.formulas) == 1
    assert sharp.figures[0].heads[-1] == "-log p"


def test_a_step_too_small_for_three_digits_is_still_seen():
    trace = traced("paper", learning_rate=1e-6)
    weight, _, loss = next(s for s in trace.walk() if s.name == "learning").formulas
    for formula, start, end in ((weight, "weight", "new"), (loss, "loss", "expected")):
        (before, after) = re.findall(r"(-?\d\.\d+) - .* = (-?\d\.\d+)", formula.filled)[0]
        assert before != after
        assert float(before) == pytest.approx(formula.numbers[start], abs=1e-5)
        assert float(after) == pytest.approx(formula.numbers[end], abs=1e-5)


def test_damaged_weights_have_no_loss_to_learn_from():
    model = trained("paper")
    damaged = replace(model, model=copy.deepcopy(model.model))
    damaged.model.classifier.bias.data[0] = math.nan
    assert extra_stages(explain(damaged, "Hi how are you", "I am fine")) == []


def test_a_changed_model_learns_as_changed():
    """Its loss and gradient are those of the forward pass under the change, not of the model's."""
    model = trained("paper")
    plain = explain(model, "Hi how are you", "that is a dog")
    changed = explain(model, "Hi how are you", "that is a dog", change=["encoder.0.self@1=off"])
    rows, _ = labels_of(changed)
    step = gradient_step(changed, 0.01)
    torch.testing.assert_close(step.logits, changed.logits[rows])
    assert step.loss != gradient_step(plain, 0.01).loss
    value = "encoder.layers.0.self_attention.value.weight"
    first_head = step.gradients[value][: model.model.config.d_head]
    assert not first_head.any()  # nothing passes through a head that is off
    assert step.gradients[value].any()


def test_a_gradient_that_overflows_is_shown_as_it_is():
    """Weights near the end of the range have such gradients, and people look at such models."""
    trace = traced("paper", learning_rate=1e308)
    stage = next(s for s in trace.walk() if s.name == "learning")
    assert "inf" in stage.formulas[2].filled
