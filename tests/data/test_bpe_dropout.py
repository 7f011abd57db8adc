"""BPE-dropout: the same text in other pieces, the same for everybody who asks."""

import pickle
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from limelight.data import bpe_dropout
from limelight.data.batching import BatchPlan, EpochPlan
from limelight.data.bpe_dropout import BpeDropout, merged_from, split_store
from limelight.data.config import DataConfig
from limelight.data.datasets import Seq2SeqDataset
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer, TokenizerConfig
from limelight.errors import UserError
from limelight.training.batch_size import worst_case_batches
from limelight.workflows.evaluate import evaluate_run
from tests.training.samples import accept, hashes, texts, tiny, train_in

SPLITS = ("train", "valid")
LINES = [f"the {a} {b} sleeps under {n} trees" for n in range(4) for a in "ab" for b in "xyzw"]
LINES += ["Straße und 東京", "", "a"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("bpe", LINES, 320)


@pytest.fixture(scope="module")
def store(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    for side, lines in {"a": LINES, "b": LINES[::-1]}.items():
        (folder / side).write_text("".join(f"{line or '-'}\n" for line in lines), "utf-8")
    data = DataConfig(train=(str(folder / "a"), str(folder / "b")))
    return open_or_build(data, "train", tokenizer, folder / "stores")


def split(store, tokenizer, rate=0.3, seed=1, epoch=0):
    return split_store(store, BpeDropout(merged_from(tokenizer), rate), seed, epoch)


def test_every_merged_token_has_two_pieces_that_spell_it(tokenizer):
    pairs = merged_from(tokenizer)
    merged = [i for i in range(len(tokenizer)) if pairs[i, 0] >= 0]
    assert len(merged) == len(tokenizer) - tokenizer.first_text_id - 256
    for i in merged:
        spelled = b"".join(tokenizer.token_bytes(int(part)) for part in pairs[i])
        assert spelled == tokenizer.token_bytes(i)


def test_texts_stay_the_same_and_tokens_become_more(store, tokenizer):
    now = split(store, tokenizer)
    for before, after in zip(store.columns, now.columns, strict=True):
        assert after.lengths.sum() > before.lengths.sum()
        for i in range(len(store)):
            assert tokenizer.decode(after[i]) == tokenizer.decode(before[i])
            assert after.lengths[i] == len(after[i])


@pytest.mark.parametrize("at_once", [1, 2, 7, 10**6])
def test_pieces_are_counted_a_few_tokens_at_a_time(store, tokenizer, at_once, monkeypatch):
    """Also of texts that have none, at the beginning, at the end and where a part begins."""
    whole = copy(store.columns[0])
    count = len(whole.tokens)
    whole.offsets = np.array([0, 0, 3, 7, 7, 7, 14, 15, count - 2, count, count])
    monkeypatch.setattr(bpe_dropout, "_AT_ONCE", at_once)
    shell = copy(store)
    shell.columns = [whole]
    (column,) = split(shell, tokenizer).columns
    assert column.lengths.tolist() == [len(column[i]) for i in range(len(whole.offsets) - 1)]
    assert column.lengths.sum() > count


def test_rows_side_by_side_are_the_rows(store, tokenizer):
    column = split(store, tokenizer).columns[1]
    rows = np.array([5, 0, 34, 17])
    width = int(column.lengths[rows].max()) + 2
    for row, padded in zip(rows, column.gather(rows, width, 0), strict=True):
        assert padded.tolist() == [*column[row], *[0] * (width - len(column[row]))]
    narrow = column.gather(rows, 3, 0)
    assert (narrow == column.gather(rows, width, 0)[:, :3]).all()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_merges_are_undone_at_the_rate_in_every_epoch_others(store, tokenizer, rate):
    dropout = BpeDropout(merged_from(tokenizer), rate)
    whole = np.flatnonzero(dropout.pairs[:, 0] >= 0)
    tokens = np.tile(whole, 400)
    pieces, owners = dropout.split(tokens, np.arange(len(tokens), dtype=np.uint64) << np.uint64(7))
    intact = np.bincount(owners, minlength=len(tokens)) == 1
    error = (rate * (1 - rate) / len(tokens)) ** 0.5
    assert abs(intact.mean() - (1 - rate)) < 4 * error
    # A piece that has been set free falls apart as often as any other.
    free = ~intact[owners] & (dropout.pairs[pieces, 0] >= 0)
    undone = (~intact).sum()
    merged = (dropout.pairs[dropout.pairs[tokens[~intact]], 0] >= 0).sum()
    assert merged > 100
    assert free.sum() >= merged * (1 - rate) - 4 * merged**0.5
    assert undone > 0
    seen = [split(store, tokenizer, rate, epoch=e).columns[0].lengths.tolist() for e in (0, 1, 0)]
    assert seen[0] == seen[2] != seen[1]
    assert split(store, tokenizer, rate, seed=2).columns[0].lengths.tolist() != seen[0]


def test_batches_hold_the_pieces_of_their_epoch(store, tokenizer):
    plan = BatchPlan(
        Seq2SeqDataset(store, tokenizer),
        batch_tokens=128,
        seed=1,
        redrawn=lambda epoch: Seq2SeqDataset(split(store, tokenizer, epoch=epoch), tokenizer),
    )
    for epoch in (0, 1):
        now = split(store, tokenizer, epoch=epoch)
        rows = plan.plan(epoch)
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(store)))
        for i in range(len(rows)):
            batch = EpochPlan(plan, epoch, rows)[i]
            assert batch.source.numel() <= 128
            for row, example in enumerate(batch.examples.tolist()):
                real = batch.source[row][batch.source_real[row]].tolist()
                assert real == [*now.columns[0][example], tokenizer.end]
                real = batch.target[row][batch.target_real[row]].tolist()
                assert real == [tokenizer.start, *now.columns[1][example], tokenizer.end]


def test_a_worker_that_opens_the_files_itself_makes_the_same_batches(store, tokenizer):
    """Where processes are spawned, they are sent a pickle."""
    plan = BatchPlan(
        Seq2SeqDataset(store, tokenizer),
        batch_tokens=128,
        seed=1,
        redrawn=lambda epoch: Seq2SeqDataset(split(store, tokenizer, epoch=epoch), tokenizer),
    )
    here = EpochPlan(plan, 1, plan.plan(1))
    there = pickle.loads(pickle.dumps(here))
    assert len(there) == len(here) > 1
    for i in range(len(here)):
        for name, one, other in zip(here[i]._fields, here[i], there[i], strict=True):
            assert np.array_equal(one, other), name


def recipe(folder, **train):
    for split in ("train", "valid"):
        for side in ("source", "target"):
            (folder / f"{split}.{side}").write_text("\n".join(LINES[:12]) + "\n", "utf-8")
    files = {s: tuple(str(folder / f"{s}.{x}") for x in ("source", "target")) for s in SPLITS}
    usual = {"bpe_dropout": 0.3, "batch_tokens": 80, "validate_every": 5, "checkpoint_every": 5}
    subwords = TokenizerConfig(kind="bpe", vocab=290)
    shape = {"vocab": 290, "max_len": 64}
    return replace(tiny(data=DataConfig(**files), model=shape, **usual | train), tokenizer=subwords)


@pytest.mark.parametrize("pack", [0, 70])
def test_a_training_resumes_to_the_same_bits(tmp_path, pack):
    train_in(tmp_path / "whole", recipe(tmp_path, pack=pack))
    train_in(tmp_path / "parts", recipe(tmp_path, pack=pack, steps=5))
    train_in(tmp_path / "parts", recipe(tmp_path, pack=pack))
    for parent in ("checkpoints", "finished"):
        assert hashes(tmp_path / "whole" / parent) == hashes(tmp_path / "parts" / parent) != {}
    train_in(tmp_path / "plain", recipe(tmp_path, pack=pack, bpe_dropout=0.0))
    assert hashes(tmp_path / "plain" / "finished") != hashes(tmp_path / "whole" / "finished")


def test_what_is_measured_is_whole_also_of_training_texts(tmp_path):
    run = tmp_path / "run"
    train_in(run, recipe(tmp_path, bpe_dropout=0.9, steps=1))
    found = evaluate_run(run, "train", silent=True)
    text = (run / "recipe.toml").read_text("utf-8")
    assert "bpe_dropout = 0.9" in text
    (run / "recipe.toml").write_text(text.replace("bpe_dropout = 0.9", "bpe_dropout = 0.0"))
    accept(run)
    assert evaluate_run(run, "train", silent=True) == found


@pytest.mark.parametrize("pack", [0, 70])
def test_it_is_known_how_long_texts_may_become(tmp_path, pack):
    """A kernel for short texts has no room for a longer one."""
    found = {}
    for rate in (0.0, 0.9):
        own = recipe(tmp_path, bpe_dropout=rate, pack=pack, steps=1)
        found[rate] = train_in(tmp_path / str(rate), own)
    short, long = (trainer.length_range[1] for trainer in found.values())
    epochs = [found[0.9].batches.in_epoch(epoch).examples.lengths.max() for epoch in range(3)]
    assert max(epochs) > found[0.0].batches.examples.lengths.max()
    assert long == (pack or 64) >= max(epochs)
    assert short == (pack or found[0.0].batches.examples.lengths.max())


def test_the_batch_to_try_is_the_largest_of_its_epoch(store, tokenizer):
    for seed in range(5):

        def redrawn(epoch, seed=seed):
            return Seq2SeqDataset(split(store, tokenizer, 0.9, seed, epoch), tokenizer)

        plan = BatchPlan(Seq2SeqDataset(store, tokenizer), 64, seed, redrawn=redrawn)
        every = [max(b.source.numel(), b.target[:, 1:].numel()) for b in batches_of(plan)]
        tried = [
            max(b.source.numel(), b.target[:, 1:].numel()) for b in worst_case_batches(plan, 64)
        ]
        assert max(tried) == max(every)


def batches_of(plan):
    rows = plan.plan(0)
    return [EpochPlan(plan, 0, rows)[i] for i in range(len(rows))]


def test_where_no_merge_can_be_undone_is_said(tmp_path):
    with pytest.raises(UserError, match="a tokenizer without merges"):
        train_in(tmp_path / "letters", tiny(bpe_dropout=0.1))
    with pytest.raises(UserError, match="texts end to end"):
        train_in(tmp_path / "texts", tiny("decoder-only", texts(tmp_path), bpe_dropout=0.1))
