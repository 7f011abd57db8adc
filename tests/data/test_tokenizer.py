"""Any text goes in and comes back; none becomes a special token; the work can be shown."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.data.tokenizer import (
    ALPHABET,
    AT_ONCE,
    BYTE_OF,
    LONG,
    SPECIAL,
    Tokenizer,
    in_parts,
    special,
    valid_unicode,
)
from limelight.errors import UserError

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps, the fox does not.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "it's 1984, isn't it? <pad> ⟨pad⟩ </s> [MASK] naïve café 東京 🍌🍌",
] * 5
KINDS = ("bpe", "word", "char", "uncased")
TOKENIZERS = {kind: Tokenizer.train(kind, CORPUS, 400, tags=["de", "fr"]) for kind in KINDS}
kinds = pytest.mark.parametrize("kind", KINDS)

# All planes, lone surrogates included, and what tends to go wrong: NUL, joiners, marks, Hebrew.
characters = st.characters() | st.sampled_from("\0\r\n\t  ‍َ́א🍌👩\ud800\udfff﻿�⟨⟩Ġ")
texts = st.text(characters, max_size=60) | st.lists(
    st.sampled_from([*CORPUS, "<pad>", *map(special, SPECIAL), " ", "\n\n", "👩‍👩‍👧"]), max_size=4
).map("".join)


def check_round_trip(text):
    for tokenizer in TOKENIZERS.values():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == tokenizer.normalize(text)
        assert tokenizer.uncased or tokenizer.normalize(text) == valid_unicode(text)
        assert all(tokenizer.first_text_id <= i < len(tokenizer) for i in ids)


@given(texts)
@settings(max_examples=500, deadline=None)
def test_text_comes_back_and_never_becomes_a_special_token(text):
    check_round_trip(text)


@pytest.mark.soak
@given(texts)
@settings(max_examples=100_000, deadline=None)
def test_a_hundred_thousand_texts_come_back(text):
    check_round_trip(text)


def test_the_rule_for_surrogates():
    """A lone one is no character and reads as U+FFFD; a pair is the character that it encodes."""
    assert valid_unicode("a\ud83cb") == "a�b"
    assert valid_unicode("\ud83c\udf4c") == "🍌"
    assert valid_unicode("﻿ start") == "﻿ start"


@given(texts)
@settings(max_examples=500, deadline=None)
def test_uncased_reads_small_letters_and_marks_apart(text):
    tokenizer = TOKENIZERS["uncased"]
    read = tokenizer.normalize(text)
    small = "".join(c.lower() for c in valid_unicode(text))
    assert "".join(read.split()) == "".join(small.split())  # only spaces are new, or gone
    assert tokenizer.normalize(read) == read
    assert tokenizer.encode(read) == tokenizer.encode(text)


def test_uncased_does_not_see_how_a_text_was_set():
    tokenizer = TOKENIZERS["uncased"]
    assert tokenizer.normalize("It's 3,5% of\nZÜRICH's!") == " it ' s 3 , 5 % of zürich ' s !"
    assert tokenizer.encode("The fox, isn't it?") == tokenizer.encode("the  FOX , isn ' t it ?")
    assert tokenizer.encode("The fox") != tokenizer.encode("The f ox")
    assert TOKENIZERS["bpe"].encode("The fox") != TOKENIZERS["bpe"].encode("the fox")


@kinds
def test_special_tokens_have_fixed_ids_and_no_text(kind):
    tokenizer = TOKENIZERS[kind]
    assert [tokenizer.special[name] for name in (*SPECIAL, "de", "fr")] == list(range(7))
    assert (tokenizer.pad, tokenizer.start, tokenizer.end) == (0, 1, 2)
    assert tokenizer.decode([1, *tokenizer.encode("so"), 2, 0, 0]) == tokenizer.normalize("so")
    assert tokenizer.pieces([0, 5]) == ["⟨pad⟩", "⟨de⟩"]
    assert set(BYTE_OF) == set(ALPHABET)
    assert sorted(BYTE_OF.values()) == list(range(256))


@kinds
def test_ids_beyond_the_vocabulary_are_shown_as_unused(kind):
    """A model may have more ids than its tokenizer, and write one."""
    tokenizer = TOKENIZERS[kind]
    beyond = len(tokenizer)
    ids = [*tokenizer.encode("the dog"), beyond, beyond + 9]
    assert tokenizer.pieces(ids)[-2:] == [f"⟨unused {beyond}⟩", f"⟨unused {beyond + 9}⟩"]
    assert tokenizer.token_bytes(beyond) == b""
    assert tokenizer.decode(ids) == tokenizer.decode(ids[:-2])


@kinds
def test_frequent_text_is_short_and_unknown_text_is_bytes(kind):
    tokenizer = TOKENIZERS[kind]
    assert len(tokenizer.encode(CORPUS[0])) <= len(CORPUS[0])
    assert tokenizer.pieces(tokenizer.encode("ж"))[-2:] == ["<D0>", "<B6>"]
    if kind == "char":
        assert tokenizer.pieces(tokenizer.encode("über 東")) == ["ü", "b", "e", "r", " ", "東"]
    if kind == "word":
        assert tokenizer.pieces(tokenizer.encode("The fox")) == ["The", " fox"]


@kinds
def test_many_equals_one_by_one(kind):
    tokenizer = TOKENIZERS[kind]
    rows = [*CORPUS, "", "\ud800", "ж", " ".join(CORPUS * 9)]
    rows += CORPUS * (2 * AT_ONCE // sum(map(len, CORPUS)))  # more than two calls
    assert tokenizer.encode_many(rows) == [tokenizer.encode(row) for row in rows]
    assert tokenizer.encode_many([]) == []


@kinds
@given(
    text=texts | st.text(st.sampled_from("aers1'. \n\u3000é🍌"), max_size=90),
    length=st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_the_parts_of_a_text_have_its_words(kind, text, length):
    tokenizer, text = TOKENIZERS[kind], valid_unicode(text)
    parts = in_parts(text, length)
    assert "".join(parts) == text
    assert all(len(part) >= length for part in parts[:-1])
    assert [word for part in parts for word in tokenizer.words(part)] == tokenizer.words(text)


def test_elsewhere_a_cut_would_change_the_words():
    words = TOKENIZERS["bpe"].words
    assert in_parts("it's  so", 1) == ["it", "'s", "  so", ""]
    for start, end in (("i", "t's  so"), ("it'", "s  so"), ("it's  ", "so")):
        assert words(start) + words(end) != words(start + end)


@kinds
def test_a_long_text_is_encoded_as_if_at_once(kind):
    tokenizer = TOKENIZERS[kind]
    text = "\n\n ".join(CORPUS * 40)
    assert len(in_parts(text)) > 5
    assert tokenizer.encode(text) == tokenizer.core.encode(text, add_special_tokens=False).ids


def test_pieces_are_spelled_once_and_only_those_of_the_vocabulary_are_kept(monkeypatch):
    tokenizer = Tokenizer.train("bpe", ["one two three"] * 9, 300)
    every = [*range(len(tokenizer)), len(tokenizer), 10**9, -1]
    fresh = [tokenizer._piece(i) for i in every]
    assert tokenizer.pieces(every) == fresh
    kept = len(tokenizer._pieces)
    monkeypatch.setattr(tokenizer, "_piece", lambda i: f"{i} anew")
    assert tokenizer.pieces(every) == fresh[:kept] + [f"{i} anew" for i in every[kept:]]
    assert kept == len(tokenizer._pieces) == len(tokenizer)


@kinds
@pytest.mark.parametrize("pattern", ["é", " ", "'", "7"])
def test_a_run_without_end_is_cut_and_comes_back(kind, pattern):
    """No word is longer than a part, and what `encode` cuts `show_work` cuts."""
    tokenizer, text = TOKENIZERS[kind], "so " + pattern * (2 * LONG)
    shown = tokenizer.show_work(text)
    assert max(len(steps[0]) for steps in shown) <= len(pattern.encode()) * (LONG + 100)
    pieces = [piece for steps in shown for piece in steps[-1]]
    ids = tokenizer.encode(text)
    assert [tokenizer.vocabulary[piece] for piece in pieces] == ids
    assert kind == "uncased" or tokenizer.decode(ids) == text


@kinds
@given(text=texts)
@settings(max_examples=200, deadline=None)
def test_the_work_shown_ends_with_what_encode_gives(kind, text):
    tokenizer = TOKENIZERS[kind]
    words = tokenizer.show_work(text)
    pieces = [piece for steps in words for piece in steps[-1]]
    assert [tokenizer.vocabulary[piece] for piece in pieces] == tokenizer.encode(text)
    for steps in words:
        assert all(len(piece) == 1 for piece in steps[0])
        assert len({"".join(step) for step in steps}) == 1  # nothing is lost on the way


@kinds
def test_saved_and_loaded_it_is_the_same(kind, tmp_path):
    tokenizer = TOKENIZERS[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.hash == tokenizer.hash
    assert again.encode(CORPUS[1]) == tokenizer.encode(CORPUS[1])
    assert again.special == tokenizer.special


@kinds
def test_training_is_deterministic(kind):
    assert Tokenizer.train(kind, CORPUS, 400, tags=["de", "fr"]).hash == TOKENIZERS[kind].hash
    assert Tokenizer.train(kind, CORPUS, 270, tags=["de", "fr"]).hash != TOKENIZERS[kind].hash


@kinds
def test_the_vocabulary_is_bounded(kind):
    for vocab in (261, 270, 300):
        assert len(Tokenizer.train(kind, CORPUS, vocab)) <= vocab
    with pytest.raises(UserError, match="vocab=260 is too small: 256 bytes and 5 special tokens"):
        Tokenizer.train(kind, CORPUS, 260)


@kinds
def test_what_would_not_be_read_again_is_not_learned(kind, monkeypatch, tmp_path):
    size = len(TOKENIZERS[kind].core.to_str().encode())
    monkeypatch.setattr("limelight.data.tokenizer.LARGEST", size)
    Tokenizer.train(kind, CORPUS, 400, tags=["de", "fr"]).save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").hash == TOKENIZERS[kind].hash
    monkeypatch.setattr("limelight.data.tokenizer.LARGEST", size - 1)
    with pytest.raises(UserError, match=f"vocab=400 is too large.*{size:,} bytes"):
        Tokenizer.train(kind, CORPUS, 400, tags=["de", "fr"])
    with pytest.raises(UserError, match="too large"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_what_is_no_tokenizer_is_refused(tmp_path):
    for name, content in (("a.json", "{}"), ("b.json", "nonsense"), ("c.json", "")):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match="is not a tokenizer"):
            Tokenizer.load(tmp_path / name)
    with pytest.raises(UserError, match=r"cannot read .*missing.json: No such file"):
        Tokenizer.load(tmp_path / "missing.json")


HOSTILE = ["a", " ", "\n", "\t", "'", "1", ".", "é", "́", "🍌", "\0", "﻿", "‍", "東", "א", "'s", "ab"]
HOSTILE += [
    "a ",
    " \n",
    "<pad>",
    "⟨pad⟩",
    "the",
    " the",
    "a1",
    "1a.",
    "\r\n",
    "🍌a",
    "eé",
    "''''s",
    "_",
]


def seconds(tokenizer, text):
    """Of the processor, the fastest of five rounds."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        tokenizer.encode(text)
        rounds.append(time.process_time() - began)
    return min(rounds)


@pytest.mark.soak
@kinds
@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_text_takes_linear_time(kind, pattern):
    """A megabyte of each in two seconds; two megabytes in at most two and a half times as long."""
    assert len(HOSTILE) == 30
    megabyte = pattern * (1_000_000 // len(pattern.encode()))
    one, two = (seconds(TOKENIZERS[kind], n * megabyte) for n in (1, 2))
    assert one <= 2
    assert two <= 2.5 * one
