"""Tokens as text as they come: joined it is the whole, and no piece shows half a character."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.decode.detokenizer import IncrementalDetokenizer
from tests.decode.samples import learned_tokenizer

TOKENIZER = learned_tokenizer()


def streamed(ids, stops=()):
    stream = IncrementalDetokenizer(TOKENIZER, stops)
    return [*map(stream.feed, ids), stream.finish()]


@pytest.mark.parametrize("seed", range(10))
def test_pieces_joined_are_the_whole(seed):
    """10,000 random sequences: most of their bytes are no characters."""
    dice = random.Random(seed)
    for _ in range(1000):
        ids = [dice.randrange(len(TOKENIZER)) for _ in range(dice.randint(0, 20))]
        assert "".join(streamed(ids)) == TOKENIZER.decode(ids)


@given(st.text())
def test_no_piece_shows_half_a_character(text):
    pieces = streamed(TOKENIZER.encode(text))
    assert "".join(pieces) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_a_character_comes_when_its_last_byte_has_come():
    ids = TOKENIZER.encode("中")
    assert len(ids) == 3
    assert streamed(ids) == ["", "", "中", ""]


@given(
    text=st.text("abc\n", max_size=30),
    stops=st.lists(st.text("abc\n", min_size=1, max_size=4), max_size=3),
)
def test_what_follows_a_stop_is_never_shown(text, stops):
    shown = "".join(streamed(TOKENIZER.encode(text), stops))
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        assert shown == text
        return
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert len(shown) <= max(found)


def test_the_beginning_of_a_stop_is_held_back():
    stream = IncrementalDetokenizer(TOKENIZER, ["###"])
    shown = [stream.feed(i) for text in ("a", "#", "#", "b") for i in TOKENIZER.encode(text)]
    assert shown == ["a", "", "", "##b"]
    assert not stream.stopped
    assert [stream.feed(i) for text in ("#", "##") for i in TOKENIZER.encode(text)][-1] == ""
    assert stream.stopped
    assert stream.finish() == ""
