"""Where the walk starts: at the largest score between content words, of all there is."""

import pytest
import torch

import limelight
from limelight.explain.render.terminal import plain_text
from limelight.explain.starting_point import (
    best_cell,
    content_words,
    first_focus,
    starting_point,
)
from limelight.explain.tokens import Words
from tests.explain.test_recurrent import KINDS as RECURRENT
from tests.explain.test_recurrent import traced as recurrent
from tests.explain.test_truth import traced

TEXTS = {
    "en-de": ("A man is sleeping in the park.", "Where did you find my keys?"),
    "writer": ("Once upon a time",),
    "fill": ("The cat ___ on the mat.",),
}


def words(*labels):
    return Words(labels=labels, special=tuple(label.startswith("<") for label in labels))


def test_content_words_are_the_long_ones_or_else_what_there_is():
    assert content_words(words("<de>", "The", "·castle", "·of", "·glass", ".", "<end>")) == [2, 4]
    assert content_words(words("c", "a", ".", "<end>")) == [0, 1]
    assert content_words(words("<start>", ".")) == [1]
    assert content_words(words("<start>")) == [0]


def test_the_best_cell_is_found_and_not_on_the_diagonal():
    scores = torch.full((2, 3, 4, 4), 0.1)
    scores[1, 2, 3, 1] = 0.7  # the answer
    scores[0, 1, 2, 2] = 0.9  # a word and itself
    scores[0, 0, 0, 1] = 0.8  # a row that is not asked for
    scores[0, 0, 3, 0] = 0.8  # nor this key
    assert best_cell(scores, [2, 3], [1, 2]) == (1, 2, 3, 1)
    assert best_cell(scores, [2], [2]) == (0, 1, 2, 2)  # where there is nothing else
    assert best_cell(scores[..., :3], [2, 3], [1, 2]) == (0, 1, 2, 2)  # another text's words


@pytest.mark.parametrize("kind", ["paper", "gpt", "bert"])
def test_no_other_head_is_sharper_there(kind):
    trace = traced(kind)
    found = starting_point(trace)
    side, use = {"paper": ("decoder", "cross"), "gpt": ("decoder", "self")}.get(
        kind, ("encoder", "self")
    )
    row = found.source if side == "encoder" else found.target
    weights = trace.tensor(f"{side}.{found.layer - 1}.{use}.weights")
    assert weights[found.head - 1, row, found.key].item() == pytest.approx(found.weight)
    if use == "cross":
        inner = trace.tensor(f"encoder.{found.layer - 1}.self.weights")[
            found.head - 1, found.source
        ]
        assert inner[found.encoder_key].item() == pytest.approx(found.encoder_weight)
        assert found.score == pytest.approx(found.weight * (0.25 + 0.75 * found.encoder_weight))
    else:
        assert found.score is found.encoder_weight is None
    if use == "self":  # alone: with two stacks both attentions count
        layers = range(trace.config.layers)
        all_heads = [trace.tensor(f"{side}.{n}.self.weights")[:, row, found.key] for n in layers]
        assert found.weight == pytest.approx(torch.stack(all_heads).max().item())


@pytest.mark.parametrize("name", TEXTS)
def test_bundled_models_start_at_words_that_mean_something(name):
    model = limelight.load(name)
    for text in TEXTS[name]:
        trace = model.explain(text)
        found = starting_point(trace)
        keys = trace.source if len(trace.source) else trace.target
        assert found.key in content_words(keys)
        assert found.weight > 0.5
        if name == "fill":  # the blank is what it is about
            assert trace.source.labels[found.source] == "⟨mask⟩"
        elif name == "writer":  # later words are hidden from it
            assert found.target in content_words(trace.target)
            assert 0 < found.key < found.target < len(trace.target) - 1
        else:
            assert found.target in content_words(trace.answers)
            assert found.source == found.key


def test_the_terminal_starts_there_too_unless_something_else_is_chosen():
    trace = limelight.load("en-de").explain(TEXTS["en-de"][0])
    start = starting_point(trace)
    focus = first_focus(trace, None, None, None)
    assert (focus.layer + 1, focus.head + 1) == (start.layer, start.head)
    assert (focus.source_word, focus.target_word) == (start.source, start.target)
    other = 1 if start.layer != 1 else 2
    chosen = first_focus(trace, other, None, None)
    assert (chosen.layer + 1, chosen.head + 1) == (other, start.head)
    assert first_focus(trace, None, None, "man").label("encoder") == "·man"
    (cross,) = [stage for stage in trace.walk() if stage.name == "cross"]
    assert f"layer {start.layer}, head {start.head}" in cross.location
    query, key = trace.answers.labels[start.target], trace.source.labels[start.key]
    said = f"layer {start.layer}, head {start.head}: to write {query} it attends to {key}"
    assert said in " ".join(plain_text(trace, [cross]).split())


def test_a_recurrent_model_has_no_heads_to_choose_from():
    assert starting_point(recurrent(next(iter(RECURRENT)))) is None
