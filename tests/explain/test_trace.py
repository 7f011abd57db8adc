"""What a trace promises: the replay is the writing, and nothing odd goes unnoticed."""

import math
from dataclasses import replace

import pytest
import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.errors import UserError
from limelight.explain.explanation import explain
from limelight.explain.tokens import visible, words_of
from limelight.model import build
from limelight.model.taps import dataflow, taps
from limelight.tasks.translate import translate
from limelight.tasks.write import write
from tests.explain.samples import KINDS, trained

WRITERS = ["paper", "pre-norm", "rotary", "gpt-answers", "gpt", "llama"]
WAYS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "drawn": {"temperature": 1.5, "seed": 5},
    "drawn from few": {"temperature": 2.0, "top_k": 4, "seed": 9},
    "without repeating": {"beam": 1, "no_repeat_ngram": 1},
    "with a penalty": {"beam": 1, "repetition_penalty": 1.7},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRITERS)
def test_the_replay_is_the_writing(kind, way):
    model = trained(kind)
    trace = explain(model, "Hi how are you", config=DecodeConfig(**WAYS[way], max_extra_tokens=3))
    assert trace.checks.same_words
    assert trace.checks.fast_difference < 1e-4
    assert trace.checks.traced_difference < 1e-4
    assert trace.checks.row_error < 1e-6
    assert trace.checks.max_future_weight == 0
    assert len(trace.steps) == len(trace.answers) - trace.traced_text.given


@pytest.mark.parametrize("kind", ["paper", "gpt-answers"])
def test_it_explains_what_translate_says(kind):
    model = trained(kind)
    for text in ("Hi how are you", "who are you", "Hi"):
        trace = explain(model, text)
        said = next(translate(model, [text])).outputs[0]
        pieces = trace.trained.tokenizer.pieces([s.chosen.token for s in trace.steps if not s.end])
        assert tuple(pieces) == said.tokens


def test_it_explains_what_write_says():
    model, told = trained("gpt"), 0
    for seed in range(5):
        config = DecodeConfig(temperature=1.0, seed=seed)
        trace = explain(model, "Hi how", config=config)
        said = "".join(write(model, "Hi how", config))
        own = trace.trained.tokenizer.decode([step.chosen.token for step in trace.steps])
        assert said.startswith(own)
        told += len(own)
    assert told > 20


def test_a_replay_that_chose_other_words_is_told():
    """The negative control: another model's writing."""
    model, other = trained("paper"), trained("paper", steps=1)
    honest = explain(model, "Hi how are you", config=DecodeConfig(beam=1))
    forged_text = replace(honest.traced_text, logprobs=[x - 1 for x in honest.traced_text.logprobs])
    forged = type(honest)(other, honest.text, forged_text, honest.decode)
    assert not forged.checks.same_words
    assert forged.checks.fast_difference > 0.1
    assert not all(c.passed for stop in forged.stops for c in stop.checks if stop.name == "loop")


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_has_an_origin_that_is_there(kind):
    config = trained(kind).model.config
    known, made = taps(trained(kind).model), dataflow(config)
    assert list(made) == list(known) or set(made) == set(known)
    order = list(known)
    for name, origin in made.items():
        for source in origin.sources:
            assert order.index(source) < order.index(name), (name, source)


@pytest.mark.parametrize("kind", ["paper", "gpt", "bert"])
def test_what_is_not_kept_is_computed_again_and_the_same(kind):
    text = "Hi how are you"
    whole = explain(trained(kind), text)
    small = explain(trained(kind), text, names=["logits"])
    assert set(small.values) == {"logits"}
    assert small.summaries == whole.summaries
    for name in whole.names:
        assert torch.equal(small.tensor(name), whole.tensor(name))


def test_a_slice_holds_no_more_memory_than_it_needs():
    trace = explain(trained("paper"), "Hi how are you", names=["logits"])
    part = trace.tensor("encoder.1.self.weights", head=2, rows=slice(0, 2))
    assert part.shape == (2, 5)
    assert part.untyped_storage().nbytes() == part.numel() * 4
    assert torch.equal(part, trace.tensor("encoder.1.self.weights")[1, :2])


@pytest.mark.parametrize("kind", ["paper", "gpt", "bert"])
def test_attention_counts_from_one_and_its_rows_sum_to_one(kind):
    trace = explain(trained(kind), "Hi how are you")
    for layer in (1, 2):
        for head in (1, 2, 3, 4):
            weights = trace.attention(layer, head)
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(weights)))
    first = trace.tensor(f"{'decoder' if kind == 'gpt' else 'encoder'}.0.self.weights")[0]
    assert torch.equal(trace.attention(1, 1), first)


def test_what_comes_later_is_minus_infinity_then_nothing():
    trace = explain(trained("paper"), "Hi how are you", target="I am fine")
    for layer in (0, 1):
        masked = trace.tensor(f"decoder.{layer}.self.masked")
        weights = trace.tensor(f"decoder.{layer}.self.weights")
        later = torch.ones_like(masked, dtype=torch.bool).triu(diagonal=1)
        assert (masked[later] == -math.inf).all()
        assert (weights[later] == 0).all()
        assert torch.isfinite(masked[~later]).all()


def test_the_decoder_asks_and_the_encoder_answers():
    trace = explain(trained("paper"), "Hi how are you", target="Hello")
    rows, columns = len(trace.target), len(trace.source)
    assert (rows, columns) != (columns, rows)
    assert trace.attention(1, 1, "cross").shape == (rows, columns)
    assert trace.tensor("decoder.0.cross.q").shape[1] == rows
    assert trace.tensor("decoder.0.cross.k").shape[1] == columns


def test_a_shown_question_times_a_shown_label_is_the_shown_score():
    trace = explain(trained("paper"), "Hi how are you")
    stops = {stop.name: stop for stop in trace.walk(layer=2, head=2)}
    q = stops["queries"].figures[0].values[0].tolist()
    k = trace.tensor("encoder.1.self.k", head=2)
    scores = stops["scores"].figures[0]
    at = scores.focus[0]
    for j, key in enumerate(k.tolist()):
        by_hand = sum(a * b for a, b in zip(q, key, strict=True))
        assert by_hand == pytest.approx(scores.values[at, j].item(), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_is_enough(kind):
    model = trained(kind)
    text = "" if kind in ("gpt", "llama", "qwen") else "Hi"
    trace = explain(model, text)
    assert all(check.passed for stop in trace.walk() for check in stop.checks)
    if kind == "gpt":
        assert trace.traced_text.given == 0


@pytest.mark.parametrize("kind", KINDS)
def test_as_long_as_the_model_can_read_and_no_longer(kind):
    model = trained(kind)
    longest = model.max_len
    if model.family == "decoder-only":
        longest -= 1  # one more is to be written
    added = {"encoder-decoder": 1, "encoder-only": 2, "decoder-only": 1}[model.family]
    room = longest - added - (1 if kind == "gpt-answers" else 0)
    trace = explain(model, "e" * room)
    assert len(trace.source or trace.target) == longest
    assert all(check.passed for stop in trace.walk() for check in stop.checks)
    if kind != "bert-classifies":  # which reads the beginning of a longer text
        with pytest.raises(UserError, match=f"the model has room for {model.max_len}: shorten it"):
            explain(model, "e" * (room + 1))


def test_a_target_that_is_too_long_is_refused():
    with pytest.raises(UserError, match="the model has room for 48"):
        explain(trained("paper"), "Hi", target="e" * 60)


@pytest.mark.parametrize(
    ("kind", "text", "settings", "sentence"),
    [
        ("paper", "  ", {}, "nothing to explain in an empty text"),
        (
            "bert",
            "Hi",
            {"target": "Hello"},
            "one word of one token for each ___ of the text, which",
        ),
        ("bert", "___ ___", {"target": "Hi"}, "of the text, which has 2"),
        ("bert-classifies", "Hi", {"target": "questoin"}, "did you mean 'question'"),
        ("paper", "Hi", {"names": "encoder.9.*"}, "there is no tap"),
        ("gpt", "Hi", {"tag": "fr"}, "this model learned no tags, so there is no 'fr'"),
        ("bert", "Hi ___", {"tag": "fr"}, "this model learned no tags, so there is no 'fr'"),
    ],
)
def test_what_cannot_be_explained_is_refused(kind, text, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        explain(trained(kind), text, **settings)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda t: t.attention(3, 1), "there is no layer 3: this model has 1 to 2"),
        (lambda t: t.attention(1, 0), "there is no head 0: this model has 1 to 4"),
        (lambda t: t.attention(1, 1, "nowhere"), "has no nowhere attention"),
        (lambda t: t.tensor("encoder.0.self.skores"), "did you mean 'encoder.0.self.scores'"),
        (lambda t: t.tensor("encoder.0.self.output", head=1), "has no heads"),
        (lambda t: t.walk(word="giraffe"), "there is no word 'giraffe' here, but: Hi"),
    ],
)
def test_a_wrong_question_gets_a_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask(explain(trained("paper"), "Hi how are you"))


def test_ensembles_are_refused():
    model = trained("paper")
    with pytest.raises(UserError, match="an ensemble is several models"):
        explain(replace(model, ensemble=[model.model]), "Hi")


def test_the_model_is_left_as_it_was():
    model = trained("paper", steps=3).model
    model.train()
    try:
        explain(trained("paper", steps=3), "Hi how are you")
        assert model.training
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    finally:
        model.eval()


def test_dropout_changes_nothing():
    model = trained("paper")
    dropping = replace(model, model=build(replace(model.model.config, dropout=0.5)))
    dropping.model.load_state_dict(model.model.state_dict())
    dropping.model.train()
    trace = explain(dropping, "Hi how are you", target="I am fine")
    same = explain(model, "Hi how are you", target="I am fine")
    assert torch.equal(trace.logits, same.logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    model = trained("paper")
    other = replace(model, model=build(model.model.config).to(dtype))
    other.model.load_state_dict(model.model.state_dict())
    trace = explain(other, "Hi how are you", config=DecodeConfig(beam=1))
    assert all(check.passed for stop in trace.walk() for check in stop.checks)


HOSTILE = {
    "special": "<s> </s> ⟨end⟩ ⟨start⟩",
    "html": "<img src=x onerror=alert(1)>",
    "markup": "[bold]you[/bold] [/] [link=x]",
    "lines": "how\nare\tyou\r",
    "right to left": "שלום \u202eabc",
    "half a character": "🍌",
    "control": "\x1b[31mred\x07",
    "surrogate": "a\ud800b",
    "dollar": "$x^2$ {y}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("kind", ["paper", "gpt", "bert"])
def test_hostile_text_is_shown_as_text(kind, text):
    trace = explain(
        trained(kind), text, config=DecodeConfig(beam=1, max_extra_tokens=0, max_tokens=2)
    )
    given = trace.source or trace.target
    for label in (*trace.source.labels, *trace.target.labels, *trace.answers.labels):
        assert label
        assert label.isprintable()
        assert " " not in label
    spelled = [i for i in given.ids if i >= trace.trained.tokenizer.first_text_id]
    assert len(spelled) >= len(trace.trained.tokenizer.encode(text))
    assert all(check.passed for stop in trace.walk() for check in stop.checks)


def test_marks_for_what_cannot_be_seen():
    assert visible(" a\n\t") == "·a⏎⇥"
    assert visible("\x1b\u202e") == "<1B><U+202E>"


def test_spans_lead_back_to_the_typed_text():
    text = "Hi how 🍌 are שלום you"
    trace = explain(trained("paper"), text)
    tokens = trace.trained.tokenizer
    covered = set()
    for token, span in zip(trace.source.ids, trace.source.spans, strict=True):
        if token == tokens.end:
            assert span is None
            continue
        piece = tokens.token_bytes(token)
        assert piece in text[slice(*span)].encode()
        covered |= set(range(*span))
    assert covered == set(range(len(text)))


def test_spans_of_small_letters_lead_back_to_the_typed_text():
    words = Tokenizer.train("uncased", ["is it so, or is it not?"] * 9, 300)
    text = "Is İT so ,___isn't IT?"
    ids = [words.start]
    for part in text.split("___"):
        ids += [*words.encode(part), words.mask]
    spans = words_of(words, ids[:-1], text).spans
    covered = {i for span in spans if span for i in range(*span)}
    assert covered == {i for i, c in enumerate(text) if c != " "}
    found = [text[slice(*span)] for span in spans if span]
    assert found[:1] + found[-3:] == ["Is", "t", "IT", "?"]


def test_damaged_weights_are_reported():
    model = trained("paper")
    broken = replace(model, model=build(model.model.config))
    broken.model.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        broken.model.encoder.layers[1].feed_forward.inner.weight[0, 0] = math.nan
    trace = explain(broken, "Hi how are you")
    assert next(iter(trace.checks.broken)) == "encoder.1.feed_forward.inner"
    assert trace.traced_text.mode == "damaged"
    assert trace.steps == []
    failed = {stop.name for stop in trace.walk(layer=2) for c in stop.checks if not c.passed}
    assert "feed-forward" in failed
    assert "queries" not in failed  # up to there the numbers are numbers
    assert "NaN" in repr(trace)


@pytest.mark.parametrize("kind", ["paper", "gpt"])
def test_a_model_that_looks_ahead_is_told(kind, monkeypatch):
    """The negative control: a mask that is off by one, and rows that do not sum to 1."""
    monkeypatch.setattr(
        "limelight.model.attention.causal_mask",
        lambda length, device: torch.ones(length, length, dtype=torch.bool).tril(1),
    )
    trace = explain(trained(kind), "Hi how are you", target="I am fine")
    assert trace.checks.max_future_weight > 0
    stop = {stop.name: stop for stop in trace.walk()}["masked" if kind == "paper" else "softmax"]
    assert not all(check.passed for check in stop.checks)
    trace._observe("encoder.0.self.weights", torch.full((1, 2, 2), 0.6))
    assert trace.checks.row_error == pytest.approx(0.2)


def test_a_layer_that_one_side_lacks_is_its_last_one():
    trace = explain(trained("uneven"), "Hi how are you")
    places = [stop.location for stop in trace.walk(3, None, None) if "layer" in stop.location]
    assert any("encoder, layer 2" in place for place in places)
    assert any("decoder, layer 3" in place for place in places)
    assert all(check.passed for stop in trace.walk(3, None, None) for check in stop.checks)
    with pytest.raises(UserError, match="no layer 4"):
        trace.walk(4, None, None)
