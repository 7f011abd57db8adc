"""Bits per byte and accuracy, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import UserError
from limelight.evaluate.metrics import (
    accuracy,
    bits_per_byte,
    count_bytes,
)


def test_who_guesses_bytes_needs_eight_bits_for_each():
    assert bits_per_byte(12 * math.log(256), 12) == pytest.approx(8)


def test_bytes_are_those_of_utf_8():
    assert count_bytes(["ab", "ü", "🙂"]) == 2 + 2 + 4


@given(st.floats(0, 1e6), st.integers(1, 10**6))
def test_bounds(surprise, text_bytes):
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
