"""BERT's masking: the paper's shares, never special tokens or padding, whole words by choice."""

import pytest
import torch

from limelight.data.masking import mask_tokens, word_starts
from limelight.data.tokenizer import Tokenizer

CORPUS = ["the quick brown fox jumps over the lazy dog"] * 3
TOKENIZER = Tokenizer.train("bpe", CORPUS, 300)


def masked(seed=0, rows=400, rate=0.15, words=None):
    torch.manual_seed(3)
    tokens = torch.randint(TOKENIZER.first_text_id, len(TOKENIZER), (rows, 50))
    tokens[:, 0], tokens[:, 30] = TOKENIZER.start, TOKENIZER.separator
    real = torch.arange(50) < torch.randint(31, 51, (rows, 1))
    draw = torch.Generator().manual_seed(seed)
    hidden, asked = mask_tokens(tokens, real, TOKENIZER, draw, rate, words)
    return tokens, real, hidden, asked


def share(part, whole):
    return (part.sum() / whole.sum()).item()


def test_the_papers_shares():
    tokens, real, hidden, asked = masked()
    may = real & (tokens >= TOKENIZER.first_text_id)
    assert share(asked, may) == pytest.approx(0.15, abs=0.01)
    assert share(asked & (hidden == TOKENIZER.mask), asked) == pytest.approx(0.8, abs=0.02)
    kept = asked & (hidden == tokens)
    assert share(kept, asked) == pytest.approx(0.1, abs=0.02)
    other = asked & (hidden != tokens) & (hidden != TOKENIZER.mask)
    assert share(other, asked) == pytest.approx(0.1, abs=0.02)
    assert (hidden[other] >= TOKENIZER.first_text_id).all()


def test_only_what_is_asked_for_changes():
    tokens, real, hidden, asked = masked()
    assert torch.equal(hidden[~asked], tokens[~asked])
    assert not asked[~real].any()
    assert not asked[tokens < TOKENIZER.first_text_id].any()


def test_it_is_drawn_anew_and_repeatable():
    first, again, other = masked(0), masked(0), masked(1)
    assert torch.equal(first[2], again[2])
    assert not torch.equal(first[3], other[3])


def test_rates_at_the_edges():
    tokens, _, hidden, asked = masked(rate=0.0)
    assert torch.equal(hidden, tokens)
    assert not asked.any()
    tokens, real, _, asked = masked(rate=1.0)
    assert torch.equal(asked, real & (tokens >= TOKENIZER.first_text_id))


def test_where_words_begin():
    """Stated by hand: after every space, umlauts and half characters included."""
    tokenizer = Tokenizer.train("bpe", [" über öl ärger übel"] * 9, 265)
    starts = word_starts(tokenizer)
    ids = tokenizer.encode(" über öl x")
    raw = [tokenizer.token_bytes(i) for i in ids]
    assert any(len(piece) > 1 and piece[:1] == b" " for piece in raw)  # a space and half an umlaut
    assert starts[ids].tolist() == [piece[:1] == b" " for piece in raw]
    assert starts[: tokenizer.first_text_id].all()


def test_whole_words_are_hidden_together():
    starts = word_starts(TOKENIZER)
    words = [
        TOKENIZER.encode(word) for word in (" the", " quick", " unquickly", " lazydog", " over")
    ]
    assert any(len(word) > 1 for word in words)  # some have several pieces, or this tests nothing
    text = TOKENIZER.encode(" the quick unquickly lazydog over")
    assert text == [i for word in words for i in word]
    tokens = torch.tensor([text]).repeat(300, 1)
    draw = torch.Generator().manual_seed(0)
    everything = torch.ones_like(tokens, dtype=torch.bool)
    _, asked = mask_tokens(tokens, everything, TOKENIZER, draw, 0.3, starts)
    for together in asked.split([len(word) for word in words], dim=1):
        assert (together.all(dim=1) | ~together.any(dim=1)).all()
    assert 0.2 < share(asked, everything) < 0.4
