"""Labels of tokens: characters where there are any, whatever bytes the tokens hold."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limelight
from limelight.data.tokenizer import BYTE_OF, Tokenizer, readable
from limelight.explain.tokens import joined, label_at, labels_of, visible, words_of

TEXTS = ("Übung macht", "مرحبا 😀", "👩‍👩‍👧 é", "naïve—日本\n", "plain")
SYMBOL = {byte: symbol for symbol, byte in BYTE_OF.items()}
SHARE = re.compile("[¹²³⁴]/[₂₃₄]")
RAW = re.compile("<[0-9A-F]{2}>")


def piece_of(raw):
    """As a tokenizer shows a token of these bytes."""
    return readable("".join(SYMBOL[byte] for byte in raw))


@given(st.sampled_from(TEXTS), st.data())
def test_however_a_text_is_cut_its_characters_are_read(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1))))
    ends = [0, *cuts, len(raw)]
    pieces = [piece_of(raw[a:b]) for a, b in pairwise(ends)]
    labels = labels_of(pieces)
    assert joined(pieces) == visible(text)
    assert not any(RAW.search(label) for label in labels)
    for piece, label in zip(pieces, labels, strict=True):
        assert label
        assert bool(RAW.search(piece)) == bool(SHARE.search(label))  # only what is cut is marked
    later = r"(<U\+[0-9A-F]+>|.)[²³⁴]/[₂₃₄]"  # a character again, behind its first piece
    assert re.sub("¹/[₂₃₄]", "", re.sub(later, "", "".join(labels))) == visible(text)


def test_bytes_that_spell_nothing_stay_bytes():
    assert labels_of(["a", "<C3>", "b"]) == ["a", "<C3>", "b"]
    assert labels_of(["<20><C3>"]) == ["·<C3>"]
    assert labels_of(["<9F>", "<C3>", "<9C>"]) == ["<9F>", "Ü¹/₂", "Ü²/₂"]
    assert labels_of(["<", "C3", ">", "⟨end⟩"]) == ["<", "C3", ">", "⟨end⟩"]  # of a text like this


@pytest.mark.parametrize("text", TEXTS[:4])
def test_words_of_a_text_have_readable_labels(text):
    tokenizer = Tokenizer.train("bpe", ["nothing of this"], 300)
    ids = [tokenizer.start, *tokenizer.encode(text), tokenizer.end]
    words = words_of(tokenizer, ids, text)
    assert (words.labels[0], words.labels[-1]) == ("⟨start⟩", "⟨end⟩")
    assert any(RAW.search(piece) for piece in words.pieces)
    assert not any(RAW.search(label) for label in words.labels)


def test_a_candidate_is_read_after_what_was_written():
    written = ["Eine", "<20><C3>", "<9C>", "b"]
    assert label_at(written, 1, "<20><C3>") == "·Ü¹/₂"  # as what follows is known
    assert label_at(written, 2, "<9C>") == "Ü²/₂"
    assert label_at(written, 2, "<A4>") == "ä²/₂"
    assert label_at(written, 1, "<C4>") == "<C4>"  # and of another it is not
    assert label_at(written, 9, " x") == "·x"
    assert label_at([], 3, " x") == "·x"


def test_a_translation_and_its_explanation_are_read_alike():
    model = limelight.load("en-de", device="cpu")
    trace = model.explain("Practice makes perfect.")
    assert trace.answers.pieces[:2] == ("<C3>", "<9C>")  # or else this shows nothing
    assert trace.answers.labels[:3] == ("Ü¹/₂", "Ü²/₂", "b")
    assert [step.reads for step in trace.steps][1:3] == ["Ü¹/₂", "Ü²/₂"]
