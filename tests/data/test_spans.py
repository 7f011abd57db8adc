"""Spans lead from tokens back to the text, as the library's own offsets do, whatever changed it."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from limelight.data.spans import spans_of
from limelight.data.tokenizer import Tokenizer
from limelight.interop.coders import JsonCoder
from limelight.interop.tokenizers import ImportedTokenizer, SpecialTokens

CORPUS = ["the cat and the dog sat.", "a cafe, au lait: the naive cat"] * 5
TEXTS = [
    "The cat and The dog",
    "the  cat\tand, the dog.",
    "Café, AU lait: Maué au",  # "au" also ends a word without its accent
    "naïve\u200bcat 🍌 the dog",
    "\x07the cat",
    "cat; dog!the",
    "",
]


def wordpiece(lowercase):
    """BERT's: small letters without accents, no spaces."""
    core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    alphabet = [*"abcdefghijklmnopqrstuvwxyzTCAUMé.,:"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[UNK]"], initial_alphabet=alphabet, show_progress=False
    )
    return trained(core, trainer)


def unigram():
    """SentencePiece's: a space in front of the text, NFKC."""
    core = tokenizers.Tokenizer(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["[UNK]"], unk_token="[UNK]", show_progress=False
    )
    return trained(core, trainer)


def trained(core, trainer):
    core.train_from_iterator(CORPUS, trainer)
    coder = JsonCoder({"tokenizer.json": core.to_str().encode()})
    return ImportedTokenizer(coder, SpecialTokens(pad=0, start=0, end=0)), coder.core


def own(kind):
    tokenizer = Tokenizer.train(kind, CORPUS, 300)
    return tokenizer, tokenizer.core


MADE = {
    **{kind: (lambda kind=kind: own(kind)) for kind in ("bpe", "word", "char", "uncased")},
    "bert": lambda: wordpiece(lowercase=True),
    "cased bert": lambda: wordpiece(lowercase=False),
    "unigram": unigram,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", MADE)
def test_spans_are_the_offsets_that_the_library_knows(kind, text):
    tokenizer, core = MADE[kind]()
    encoded = core.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == encoded.ids
    spans = spans_of(tokenizer, encoded.ids, text)
    found = 0
    for span, offsets, token in zip(spans, encoded.offsets, encoded.ids, strict=True):
        if not tokenizer.token_bytes(token).strip():
            continue  # what is not known, or a space
        assert span is not None
        assert text[slice(*span)].strip() == text[slice(*offsets)].strip()
        assert span[0] <= offsets[0] + 1
        found += 1
    assert found or not text


@given(st.text(max_size=30))
def test_every_character_of_any_text_belongs_to_a_token(text):
    for kind in ("bpe", "char"):
        tokenizer = MADE_ONCE[kind]
        ids = tokenizer.encode(text)
        spans = spans_of(tokenizer, [tokenizer.start, *ids, tokenizer.end], text)
        assert (spans[0], spans[-1]) == (None, None)
        assert {i for span in spans[1:-1] for i in range(*span)} == set(range(len(text)))
        assert spans[1:-1] == sorted(spans[1:-1])
        for token, span in zip(ids, spans[1:-1], strict=True):
            assert tokenizer.token_bytes(token) in text[slice(*span)].encode()


MADE_ONCE = {kind: own(kind)[0] for kind in ("bpe", "char")}


def test_what_is_spelled_otherwise_has_no_span_and_the_rest_has_its_own():
    tokenizer, _ = unigram()
    text = "the ﬁt cat sat, the ﬁt dog ﬁ"  # the ligature is two letters to the tokenizer
    ids = tokenizer.encode(text)
    spans = spans_of(tokenizer, ids, text)
    assert [span for span in spans if span] == sorted(span for span in spans if span)
    covered = {i for span in spans if span for i in range(*span)}
    assert {text[i] for i in set(range(len(text))) - covered} <= {"ﬁ", " "}


def test_a_blank_is_where_the_mask_is():
    tokenizer, _ = own("bpe")
    ids = [*tokenizer.encode("the "), tokenizer.mask, *tokenizer.encode(" sat")]
    text = "the ___ sat"
    spans = spans_of(tokenizer, ids, text, "___")
    assert text[slice(*spans[ids.index(tokenizer.mask)])] == "___"
    assert spans_of(tokenizer, [tokenizer.mask], text) == [None]
