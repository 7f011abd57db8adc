"""A text in parts: each fits, nothing is lost, and sentences stay whole where they can."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limelight.tasks.sentence_split import in_parts

ALPHABET = "ab é😀.!?…。！ \n\t\"')"  # noqa: RUF001


def without_space(text):
    return "".join(text.split())


@given(st.text(ALPHABET, max_size=80), st.integers(4, 40))
@example("a" * 8 + "😀" * 8, 30)  # halves of very different lengths stay one word
def test_parts_fit_and_are_the_text(text, longest):
    def bytes_of(part):
        return len(part.encode())

    parts = in_parts(text, bytes_of, longest)
    assert all(bytes_of(part) <= longest for part in parts)
    assert without_space("".join(parts)) == without_space(text)
    if bytes_of(text) > longest:
        left = text  # every part stands in the text as it is, one behind the other
        for part in parts:
            before, found, left = left.partition(part)
            assert found
            assert not before.strip()
        assert not left.strip()


@given(st.lists(st.text("abcd", min_size=1, max_size=6), min_size=1, max_size=30))
def test_no_word_is_cut_that_fits(words):
    parts = in_parts(" ".join(words), len, 6)
    assert [word for part in parts for word in part.split()] == words


def test_no_part_could_take_the_next_ones_first_sentence():
    text = "One is here. Two! Is this three? Four … five. 'Six.' Seven."
    assert in_parts(text, len, 18) == [
        "One is here. Two!",
        "Is this three?",
        "Four … five.",
        "'Six.' Seven.",
    ]


def test_sentences_without_spaces_between_them():
    assert in_parts("我们回家。你好！他睡了。", len, 6) == ["我们回家。", "你好！", "他睡了。"]  # noqa: RUF001


@pytest.mark.parametrize("text", ["", " ", "short", " kept as it is \n"])
def test_a_text_that_fits_stays_as_it_is(text):
    assert in_parts(text, len, 20) == [text]


def test_a_character_that_is_longer_than_a_part_is_a_part():
    assert in_parts("a😀b", lambda part: len(part.encode()), 2) == ["a", "😀", "b"]
