"""A text before and after a change: whose words, whose probabilities, whose attention."""

import copy

import pytest
import torch
from matplotlib.figure import Figure

from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.explain.comparison import rank_heads
from limelight.explain.explanation import explain
from tests.explain.samples import tokenizer, trained
from tests.explain.test_interventions import attention_at

TEXT = {"bert": "how are ___", "bert-classifies": "who are you"}
FAMILIES = ["paper", "rotary", "gpt-answers", "llama", "bert", "bert-classifies"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_own_values_change_nothing(kind):
    """Bit for bit: every value, at every tap, one head or all.

    Greedily, as with a beam other beginnings would read this one's values as well.
    """
    model, text = trained(kind, beam=1), TEXT.get(kind, "Hi how are you")
    before = explain(model, text)
    heads = [f"{name}@1=from:{text}" for name in before.names if name.endswith(".weights")]
    for changes in ([f"*=from:{text}"], heads):
        after = explain(model, text, change=changes)
        assert after.answers.ids == before.answers.ids
        assert all(torch.equal(after.tensor(name), before.tensor(name)) for name in before.names)
        assert all(head.effect == 0 for head in after.comparison.attention)
        assert all(token.before == token.after for token in after.comparison.tokens)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_value_is_copied_from_another_text(kind):
    """All of a stack's output: then the model answers what it answers there."""
    model, text = trained(kind), TEXT.get(kind, "who are you")
    other = "what is ___" if kind == "bert" else "what is that"
    tap = "decoder.output" if model.family == "decoder-only" else "encoder.output"
    target = None if model.family == "encoder-only" else "I am fine"
    there = explain(model, other, target)
    after = explain(model, text, target, change=[f"{tap}=from:{other}"])
    assert torch.equal(after.tensor(tap), there.tensor(tap))
    assert torch.equal(after.logits, there.logits)
    assert not torch.equal(after.logits, explain(model, text, target).logits)


@pytest.mark.parametrize("mode", [{"beam": 1}, {"beam": 3}, {"temperature": 1.5, "seed": 4}])
@pytest.mark.parametrize("kind", ["paper", "llama"])
def test_the_text_is_generated_by_the_changed_model(kind, mode):
    config = DecodeConfig(**mode, max_extra_tokens=3)
    after = explain(trained(kind), "Hi how are you", config=config, change=["*.self.weights@2=off"])
    assert after.checks.same_words
    assert after.checks.fast_difference < 1e-4
    assert after.checks.traced_difference == 0
    assert torch.equal(
        explain(
            trained(kind), "Hi how are you", config=config, change=["*.self.weights@2=off"]
        ).logits,
        after.logits,
    )


@pytest.mark.parametrize("kind", ["paper", "gpt-answers", "llama"])
@pytest.mark.parametrize(("target", "at"), [(None, 1), ("I am fine I am", 2)])
def test_a_forced_word_is_read_and_judged_by_the_model(kind, target, at):
    model = trained(kind)
    before = explain(model, "who are you", target)
    after = explain(model, "who are you", target, change=[f"target:{at}=dog"])
    first = after.traced_text.given + at - 1
    word = tokenizer().encode(" dog" if at > 1 or kind == "llama" else "dog")
    assert list(after.answers.ids[first : first + len(word)]) == word
    assert after.target.ids[1:] == after.answers.ids[:-1]
    assert after.answers.ids[:first] == before.answers.ids[:first]
    step = after.steps[at - 1]  # its probability is the model's own, not 1
    assert step.chosen.token == word[0]
    assert torch.allclose(after.logits[step.row], before.logits[step.row], atol=1e-5)
    assert step.chosen.probability < 0.9
    tokens = after.comparison.tokens
    assert all(token.before == pytest.approx(token.after) for token in tokens[:at])
    if target is not None:
        assert any(token.before != pytest.approx(token.after) for token in tokens[at:])


def test_both_models_are_compared_on_the_same_tokens():
    model = trained("paper")
    before = explain(model, "who are you")
    after = explain(model, "who are you", change=["decoder.0=off"])
    again = explain(model, "who are you", after.comparison.before, change=["decoder.0=off"])
    probabilities = [step.chosen.probability for step in again.steps]
    found = [token.after for token in after.comparison.tokens]
    assert found == pytest.approx(probabilities)
    assert [t.before for t in after.comparison.tokens] == [
        step.chosen.probability for step in before.steps
    ]
    name, head, share = after.comparison.attention[0]
    moved = (again.tensor(name) - before.tensor(name)).abs().sum(dim=-1).mean(dim=-1) / 2
    assert share == pytest.approx(moved[head - 1].item())
    assert 0 < share <= 1


@pytest.mark.parametrize("kind", FAMILIES)
def test_heads_are_ranked_by_what_they_are_worth(kind):
    trace = explain(trained(kind), TEXT.get(kind, "who are you"))
    counted = []
    ranked = rank_heads(trace, counted.append)
    blocks = 3 if trace.trained.family == "encoder-decoder" else 1
    assert len({head[:2] for head in ranked}) == sum(counted) == 2 * blocks * 4
    assert [head.effect for head in ranked] == sorted((h.effect for h in ranked), reverse=True)
    for name, head, effect in (ranked[0], ranked[-1]):
        without, d_head = copy.deepcopy(trace.model), trace.config.d_head
        output = attention_at(without, name.removesuffix(".weights")).output
        with torch.no_grad():
            output.weight[:, (head - 1) * d_head : head * d_head] = 0
            logits = without(*trace.inputs)[0]
        difference = logprob_of_answer(trace, trace.logits) - logprob_of_answer(trace, logits)
        assert effect == pytest.approx(difference, abs=1e-5)
    assert kind.startswith("bert") or ranked[0].effect - ranked[-1].effect > 1e-3


def logprob_of_answer(trace, logits):
    if trace.config.classes:
        return logits.log_softmax(dim=-1)[trace.logits.argmax()].item()
    chosen = [(step.row, step.chosen.token) for step in trace.steps]
    return sum(logits.log_softmax(dim=-1)[row, token].item() for row, token in chosen)


REFUSED = {
    "encoder.output=from:Hi": "choose a text with as many tokens",
    "source:9=hide": "there is no source token 9: .* 4",
    "target:30=dog": "out of reach: the target has",
    "decoder.0.cross.weights=scale:1e38": "change it less",
}


@pytest.mark.parametrize("spelling", REFUSED)
@pytest.mark.parametrize("target", [None, "I am fine"])
def test_a_change_that_does_not_fit_the_text_is_explained(spelling, target):
    with pytest.raises(UserError, match=REFUSED[spelling]):
        explain(trained("paper"), "who are you", target, change=[spelling])


def test_more_changes_that_do_not_fit():
    everything = [f"source:{i}=hide" for i in range(1, 5)]
    for kind in ("paper", "bert"):
        with pytest.raises(UserError, match=r"hidden|change it less"):
            explain(trained(kind), "who are", change=everything[: 3 if kind == "paper" else 4])
    with pytest.raises(UserError, match="models that write"):
        explain(trained("bert"), "who ___ you", change=["target:1=dog"])
    with pytest.raises(UserError, match="another change takes its position"):
        explain(trained("paper"), "who are you", change=["target:1=I", "target:1=a"])
    with pytest.raises(UserError, match="there is no source token 7"):  # a token of the target
        explain(trained("gpt-answers"), "who are you", "I am fine", change=["source:7=hide"])


@pytest.mark.parametrize("tap", ["decoder.1.self.mixed", "decoder.0.self.weights", "logits"])
def test_a_decoder_copies_as_far_as_both_texts_go(tap):
    """What it computes at a token does not depend on later ones."""
    model = trained("paper", beam=1)
    answers = {text: explain(model, text) for text in ("Hi", "who are you")}
    (short, one), (long, two) = sorted(answers.items(), key=lambda each: len(each[1].target))
    assert len(one.target) < len(two.target)
    for text, other in ((short, two), (long, one)):
        after = explain(model, text, change=[f"{tap}=from:{long if other is two else short}"])
        both = slice(min(len(after.target), len(other.target)))
        columns = both if tap.endswith("weights") else slice(None)
        copied, own = after.tensor(tap)[..., both, columns], other.tensor(tap)[..., both, columns]
        assert torch.equal(copied, own)


def test_no_picture_hides_that_the_model_was_changed():
    after = explain(trained("paper"), "who are you", change=["decoder.0.cross@2=off"])
    assert "<p>Changed: decoder.0.cross@2=off</p>" in after.html()
    assert '"changes":["decoder.0.cross@2=off"]' in after.html()
    with pytest.MonkeyPatch.context() as patch:
        titles = []
        patch.setattr(Figure, "suptitle", lambda _, text, **__: titles.append(text))
        after._repr_png_()
    assert "changed: decoder.0.cross@2=off" in titles[0]
    assert "changed" in repr(after)
