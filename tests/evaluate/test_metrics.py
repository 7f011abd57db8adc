"""Bits per byte, accuracy and F1 (as scikit-learn defines it), on cases worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import UserError
from limelight.evaluate.metrics import (
    accuracy,
    bits_per_byte,
    count_bytes,
    score_labels,
    scores_by_class,
)

LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1)


def test_who_guesses_bytes_needs_eight_bits_for_each():
    assert bits_per_byte(12 * math.log(256), 12) == pytest.approx(8)


def test_bytes_are_those_of_utf_8():
    assert count_bytes(["ab", "ü", "🙂"]) == 2 + 2 + 4


@given(st.floats(0, 1e6), st.integers(1, 10**6))
def test_bits_per_byte_is_never_negative(surprise, text_bytes):
    assert bits_per_byte(surprise, text_bytes) >= 0


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_accuracy_is_a_share(right, wrong):
    assert 0 <= accuracy(right, right + wrong) < 1


def test_nothing_has_no_average():
    for call in (lambda: bits_per_byte(1.0, 0), lambda: accuracy(0, 0)):
        with pytest.raises(UserError, match="nothing to score: 0"):
            call()
    with pytest.raises(UserError, match="3 of 2"):
        accuracy(3, 2)


def scores(outputs, references, **options):
    return {score.name: score.score for score in score_labels(outputs, references, **options)}


def f1_of(outputs, references):
    return {name: own["f1"] for name, own in scores_by_class(outputs, references).items()}


def test_three_classes_by_hand():
    # The example of scikit-learn's f1_score: y_true = 0 1 2 0 1 2, y_pred = 0 2 1 0 0 1,
    # for which it gives 0.8, 0, 0 and a macro mean of 0.266...
    assert scores(list("021001"), list("012012")) == pytest.approx(
        {"accuracy": 2 / 6, "macro F1": 0.8 / 3, "F1 of 0": 0.8, "F1 of 1": 0, "F1 of 2": 0}
    )


def test_two_classes_by_hand():
    # Given 1: 4 times, 3 of them right (precision 3/4); wanted 1: 5 times (recall 3/5).
    outputs, references = list("11110000"), list("11101100")
    both = scores(outputs, references)
    assert both["F1"] == pytest.approx(2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5))
    assert both["F1"] == both["F1 of 1"]
    assert both["F1 of 0"] == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert both["macro F1"] == pytest.approx((both["F1 of 0"] + both["F1 of 1"]) / 2)
    assert scores(outputs, references, positive="0")["F1"] == both["F1 of 0"]


def test_the_positive_class_is_told():
    told = {score.name: score.signature for score in score_labels(["neg"], ["pos"])}
    assert told["F1"] == "positive:pos"


def test_a_class_never_given_or_never_wanted_has_f1_zero():
    assert f1_of(["a", "a"], ["a", "b"]) == pytest.approx({"a": 2 / 3, "b": 0})
    assert f1_of(["a", "b"], ["a", "a"]) == pytest.approx({"a": 2 / 3, "b": 0})


def test_always_the_same_answer_is_accurate_and_worthless():
    told = scores(["no"] * 100, ["no"] * 95 + ["yes"] * 5)
    assert told["accuracy"] == 0.95
    assert told["macro F1"] < 0.5
    assert told["F1"] == 0


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(UserError, match="1 outputs and 2 labels"):
        score_labels(["a"], ["a", "b"])
    with pytest.raises(UserError, match="nothing to score"):
        score_labels([], [])
    with pytest.raises(UserError, match="did you mean 'good'"):
        score_labels(["good"], ["bad"], positive="goood")
    with pytest.raises(UserError, match="there are 3"):
        score_labels(["a", "b", "c"], ["a", "b", "c"], positive="a")


@given(LABELS)
def test_f1_is_between_0_and_1(pairs):
    told = scores(*(list(side) for side in zip(*pairs, strict=True)))
    assert all(0 <= value <= 1 for value in told.values())
    each = [value for name, value in told.items() if name.startswith("F1 of")]
    assert min(each) - 1e-12 <= told["macro F1"] <= max(each) + 1e-12
    perfect = scores([a for a, _ in pairs], [a for a, _ in pairs])
    assert set(perfect.values()) == {1.0}
