"""Examples: what a model reads and what it is asked for, kind by kind."""

import numpy as np
import pytest
import torch

from limelight.data.batching import BatchPlan
from limelight.data.config import DataConfig
from limelight.data.datasets import (
    CausalLMDataset,
    ClassificationDataset,
    MaskedLMDataset,
    PackedBlocks,
    PromptDataset,
    Seq2SeqDataset,
)
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError

TOKENIZER = Tokenizer.train("char", ["a b c"], 300)


def store_of(tmp_path, text, name="t.txt", **settings):
    (tmp_path / name).write_text(text)
    data = DataConfig(train=(str(tmp_path / name),), **settings)
    return open_or_build(data, "train", TOKENIZER, tmp_path / "stores")


@pytest.fixture
def texts(tmp_path):
    return store_of(tmp_path, "abc\na\nbcabca\n" * 9, kind="texts")


def stream_of(store):
    return [i for n in range(len(store)) for i in [*store.columns[0][n].tolist(), TOKENIZER.end]]


@pytest.mark.parametrize("length", [1, 3, 8, 64])
def test_packed_blocks_are_the_texts_end_to_end(texts, length):
    stream = stream_of(texts)
    blocks = PackedBlocks(texts, TOKENIZER.end, length, seed=3)
    assert len(blocks) == (len(stream) - 1) // length
    made = blocks.gather(0, np.arange(len(blocks)))
    for i in range(len(blocks)):
        assert made[i].tolist() == stream[i * length : i * length + length + 1]
    assert len(stream) - 1 - len(blocks) * length < length  # less than a block is left over


@pytest.mark.parametrize("length", [3, 8, 64])
def test_later_epochs_cut_the_same_ring_elsewhere(texts, length):
    stream = stream_of(texts)
    blocks = PackedBlocks(texts, TOKENIZER.end, length, seed=3)
    rows = np.arange(len(blocks))
    begins = {blocks.begin(epoch) for epoch in range(20)}
    assert len(begins) > 10
    for epoch in (1, 2):
        made = blocks.gather(epoch, rows)
        ring = stream[blocks.begin(epoch) :] + stream[: blocks.begin(epoch)]
        assert np.concatenate([made[:, :-1].ravel()]).tolist() == ring[: len(rows) * length]


def test_the_end_of_a_text_is_looked_up_where_it_stands(texts):
    """A billion texts would not fit in memory: no array has an entry for each."""
    dataset = CausalLMDataset(texts, TOKENIZER, length=5, seed=1)
    batches = BatchPlan(dataset, 10, seed=1)
    assert len(list(batches.epoch(0))) == len(batches.plan(0))
    column = texts.columns[0]
    arrays = [*vars(column).values(), *vars(dataset).values(), *vars(dataset.blocks).values()]
    large = [one for one in arrays if isinstance(one, np.ndarray) and len(one) >= len(texts)]
    on_disk = {id(column.tokens), id(column.offsets)}
    assert {id(one) for one in large} - {id(dataset.lengths)} == on_disk
    assert len(dataset.lengths) == len(dataset.blocks)  # of blocks, not of texts
    assert (column.lengths == np.diff(column.offsets)).all()  # the control
    assert column.lengths.dtype == np.int32
    assert "lengths" in vars(column)


def test_blocks_are_never_longer_than_the_text(texts):
    blocks = PackedBlocks(texts, TOKENIZER.end, 10**6, seed=0)
    assert len(blocks) == 1
    assert blocks.gather(0, np.array([0]))[0].tolist() == stream_of(texts)


def test_no_text_is_nothing_to_read_and_predict(tmp_path):
    store = store_of(tmp_path, "", kind="texts")
    with pytest.raises(UserError, match=r"0 tokens of text are too few: .* at least 2 are needed"):
        PackedBlocks(store, TOKENIZER.end, 5, seed=0)


def test_a_language_model_is_asked_for_all_but_the_first(texts):
    examples = CausalLMDataset(texts, TOKENIZER, 8, seed=0)
    batches = list(BatchPlan(examples, batch_tokens=24, seed=0).epoch(0))
    assert sorted(i for b in batches for i in b.examples.tolist()) == list(
        range(len(examples.lengths))
    )
    for batch in batches:
        assert batch.tokens.shape[1] == 9
        assert batch.real is None
        assert not batch.loss_mask[:, 0].any()
        assert batch.loss_mask[:, 1:].all()


def test_filling_up_adds_nothing_to_learn(texts):
    examples = CausalLMDataset(texts, TOKENIZER, 8, seed=0)
    plain = list(BatchPlan(examples, batch_tokens=96, seed=0).epoch(0))
    full = list(BatchPlan(examples, batch_tokens=96, seed=0, bucketed=True).epoch(0))
    assert {len(b.tokens) for b in full} != {len(b.tokens) for b in plain}
    for a, b in zip(plain, full, strict=True):
        rows = len(a.tokens)
        assert torch.equal(a.tokens, b.tokens[:rows])
        assert (b.examples[rows:] == -1).all()
        assert not b.loss_mask[rows:].any()


def test_a_prompt_is_read_and_its_answer_asked_for(tmp_path):
    store = store_of(tmp_path, "ab\tc\na\tbca\nc\ta\n", "p.tsv")
    examples = PromptDataset(store, TOKENIZER)
    (batch,) = BatchPlan(examples, batch_tokens=100, seed=0).epoch(0)
    for row, i in enumerate(batch.examples.tolist()):
        source, target = (column[i].tolist() for column in store.columns)
        whole = [TOKENIZER.start, *source, TOKENIZER.separator, *target, TOKENIZER.end]
        assert batch.tokens[row][batch.real[row]].tolist() == whole
        assert batch.tokens[row][batch.loss_mask[row]].tolist() == [*target, TOKENIZER.end]
        assert examples.lengths[i, 0] == len(whole) - 1
    assert (batch.tokens[~batch.real] == TOKENIZER.pad).all()


def test_blanks_are_drawn_by_epoch_and_the_answers_stay(texts):
    examples = MaskedLMDataset(texts, TOKENIZER, 16, seed=0, rate=0.3)

    def batches(epoch, **settings):
        return list(BatchPlan(examples, batch_tokens=64, seed=0, **settings).epoch(epoch))

    for batch in batches(0):
        assert (batch.labels[:, 0] == TOKENIZER.start).all()
        assert batch.tokens.shape == batch.labels.shape == (len(batch.examples), 16)
        assert torch.equal(batch.tokens[~batch.loss_mask], batch.labels[~batch.loss_mask])
        assert not batch.loss_mask[batch.labels < TOKENIZER.first_text_id].any()
        block = examples.blocks.gather(0, batch.examples.numpy())
        assert torch.equal(batch.labels[:, 1:], torch.from_numpy(block[:, :-1]))
    again = [batch.loss_mask for batch in batches(0, workers=2)]
    assert all(torch.equal(a.loss_mask, b) for a, b in zip(batches(0), again, strict=True))
    assert any(
        not torch.equal(a.loss_mask, b.loss_mask)
        for a, b in zip(batches(1), batches(2), strict=True)
    )


def test_labels_are_numbered_alike_in_every_split(tmp_path):
    train = store_of(tmp_path, "ab\tgood\nc\tbad\n", "l.tsv", kind="labelled")
    valid = store_of(tmp_path, "c\tbad\nb\tgood\na\tbad\n", "v.tsv", kind="labelled")
    classes = sorted(set(train.meta["labels"]))
    for store in (train, valid):
        examples = ClassificationDataset(store, TOKENIZER, classes, longest=20)
        (batch,) = BatchPlan(examples, batch_tokens=100, seed=0).epoch(0)
        for row, i in enumerate(batch.examples.tolist()):
            assert classes[batch.labels[row]] == store.meta["labels"][i]
            whole = [TOKENIZER.start, *store.columns[0][i].tolist(), TOKENIZER.end]
            assert batch.tokens[row][batch.real[row]].tolist() == whole
    with pytest.raises(UserError, match="the label 'bad' is none of the classes good"):
        ClassificationDataset(train, TOKENIZER, ["good"], longest=20)


def test_a_long_text_is_cut_and_still_ends(tmp_path):
    store = store_of(tmp_path, "abcabcabc\tgood\nab\tbad\n", "l.tsv", kind="labelled")
    examples = ClassificationDataset(store, TOKENIZER, ["bad", "good"], longest=6)
    (batch,) = BatchPlan(examples, batch_tokens=100, seed=0).epoch(0)
    long = batch.examples.tolist().index(0)
    expected = [TOKENIZER.start, *store.columns[0][0].tolist()[:4], TOKENIZER.end]
    assert batch.tokens[long].tolist() == expected


def test_corpora_read_together_keep_their_weights_and_tags(tmp_path):
    (tmp_path / "a.tsv").write_text("ab\tc\nb\ta\n")
    (tmp_path / "b.tsv").write_text("c\tab\n")
    data = DataConfig(
        corpora=(
            DataConfig(train=(str(tmp_path / "a.tsv"),), tag="up"),
            DataConfig(train=(str(tmp_path / "b.tsv"),), tag="down", weight=3.0, reverse=True),
        )
    )
    tokenizer = Tokenizer.train("char", ["abc"], 300, ("up", "down"))
    store = open_or_build(data, "train", tokenizer, tmp_path / "stores")
    sources = [store.columns[0][i].tolist() for i in range(3)]
    assert [tokenizer.pieces(ids)[0] for ids in sources] == ["⟨up⟩", "⟨up⟩", "⟨down⟩"]
    assert [tokenizer.decode(ids) for ids in sources] == ["ab", "b", "ab"]
    assert tokenizer.decode(store.columns[1][2]) == "c"
    examples = Seq2SeqDataset(store, tokenizer, [part.weight for part in data.corpora])
    rows = np.concatenate(BatchPlan(examples, batch_tokens=100, seed=0).plan(0))
    assert sorted(rows.tolist()) == [0, 1, 2, 2, 2]


def test_weights_do_not_make_another_store_but_tags_do(tmp_path):
    (tmp_path / "a.tsv").write_text("ab\tc\nb\ta\n")
    tokenizer = Tokenizer.train("char", ["abc"], 300, ("x",))

    def folder(**settings):
        data = DataConfig(train=(str(tmp_path / "a.tsv"),), **settings)
        return open_or_build(data, "train", tokenizer, tmp_path / "stores").folder

    assert folder() == folder(weight=2.0)
    assert len({folder(), folder(tag="x"), folder(reverse=True)}) == 3


def test_texts_of_a_heavier_corpus_give_more_blocks(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 100 + "\n")
    (tmp_path / "b.txt").write_text("b" * 100 + "\n")
    corpora = tuple(
        DataConfig(kind="texts", train=(str(tmp_path / f"{name}.txt"),), weight=weight)
        for name, weight in (("a", 1.0), ("b", 4.0))
    )
    data = DataConfig(kind="texts", corpora=corpora)
    store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
    examples = CausalLMDataset(store, TOKENIZER, 10, 0, [part.weight for part in corpora])
    tokens = [b.tokens for b in BatchPlan(examples, batch_tokens=50, seed=0).epoch(0)]
    text = TOKENIZER.decode(torch.cat(tokens)[:, 1:].flatten().tolist())
    assert 3 < text.count("b") / text.count("a") < 5
