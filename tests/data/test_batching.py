"""Batches: every example once an epoch, in one order on any machine, with little padding."""

import multiprocessing
import os
import pickle
import time

import numpy as np
import pytest
import torch

from limelight.data.batching import BatchPlan, plan_epoch, round_up
from limelight.data.config import DataConfig
from limelight.data.datasets import Seq2SeqDataset
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import Tokenizer
from limelight.errors import END_SIGNALS

TOKENIZER = Tokenizer.train("char", ["a b c"], 300)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    data = DataConfig(toy="reverse", toy_examples=137, toy_length=12)
    return open_or_build(data, "train", TOKENIZER, tmp_path_factory.mktemp("stores"))


def batches(store, **changes):
    examples = Seq2SeqDataset(store, TOKENIZER)
    return BatchPlan(**{"examples": examples, "batch_tokens": 160, "seed": 5, **changes})


def order(store, epoch, position=0, ranks=1, workers=0):
    """The examples of an epoch from a position on, as all processes see them, turn by turn."""
    each = [
        list(batches(store, rank=rank, ranks=ranks, workers=workers).epoch(epoch, position))
        for rank in range(ranks)
    ]
    assert len({len(mine) for mine in each}) == 1  # equally many turns
    turns = [batch for turn in zip(*each, strict=True) for batch in turn if batch is not None]
    return [batch.examples.tolist() for batch in turns]


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_every_example_exactly_once(store, epoch):
    seen = [i for rows in order(store, epoch) for i in rows]
    assert sorted(seen) == list(range(137))


@pytest.mark.parametrize(("workers", "epoch"), [(0, 0), (0, 1), (0, 2), (2, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_one_order_for_any_number_of_processes_and_workers(store, epoch, ranks, workers):
    whole = order(store, epoch)
    assert order(store, epoch, 0, ranks, workers) == whole
    for position in (1, ranks, len(whole) // 2, len(whole) - 1, len(whole)):
        assert order(store, epoch, position, ranks, workers) == whole[position:]


def test_resume_at_every_position(store):
    whole = order(store, 1)
    for position in range(len(whole) + 1):
        assert order(store, 1, position, ranks=2) == whole[position:]


def test_epochs_and_seeds_differ(store):
    orders = [order(store, epoch) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    groups = [{frozenset(rows) for rows in plan} for plan in orders]
    assert groups[0] != groups[1]  # not only the order of batches, also who meets whom
    other = [batch.examples.tolist() for batch in batches(store, seed=6).epoch(0)]
    assert other != orders[0]


@pytest.mark.parametrize("bucketed", [False, True])
def test_a_batch_holds_its_examples(store, bucketed):
    for batch in batches(store, bucketed=bucketed).epoch(0):
        rows, width = batch.source.shape
        assert rows * max(width, batch.target.size(1) - 1) <= 160
        for row, i in enumerate(batch.examples.tolist()):
            source, target = batch.source[row], batch.target[row]
            if i < 0:
                assert not batch.source_real[row].any()
                assert not batch.target_real[row].any()
                continue
            texts = [column[i].tolist() for column in store.columns]
            assert source[batch.source_real[row]].tolist() == [*texts[0], TOKENIZER.end]
            expected = [TOKENIZER.start, *texts[1], TOKENIZER.end]
            assert target[batch.target_real[row]].tolist() == expected
            assert (source[~batch.source_real[row]] == TOKENIZER.pad).all()
            assert (target[~batch.target_real[row]] == TOKENIZER.pad).all()


def captions(count=29_000):
    """Lengths like those of image captions in two languages: 15 tokens, give or take, and alike."""
    draw = np.random.default_rng(0)
    source = np.clip(draw.lognormal(2.65, 0.35, count), 4, 60).astype(int)
    target = np.clip(source * draw.normal(1.04, 0.14, count), 4, 60).astype(int)
    return np.stack([source, target], axis=1)


def waste(lengths, plan, rounded=False):
    widths = round_up(lengths) if rounded else lengths
    padded = sum(len(rows) * widths[rows].max(axis=0).sum() for rows in plan)
    return 1 - lengths.sum() / padded


def test_little_is_padding():
    lengths = captions()
    assert waste(lengths, plan_epoch(lengths, 4096, seed=0, epoch=0)) < 0.06
    unsorted = np.split(np.arange(29_000), 100)
    assert waste(lengths, unsorted) > 0.3  # the control: this is what sorting saves


def test_rounded_shapes_are_few(tmp_path):
    (tmp_path / "a.tsv").write_text(
        "".join(f"{'a' * s}\t{'b' * t}\n" for s, t in captions(8000).tolist())
    )
    data = DataConfig(train=(str(tmp_path / "a.tsv"),))
    store = open_or_build(data, "train", TOKENIZER, tmp_path / "stores")
    made = list(batches(store, batch_tokens=4096, bucketed=True).epoch(0))
    shapes = {(batch.source.shape, batch.target.shape) for batch in made}
    assert len(shapes) <= 48
    real = sum(int(b.source_real.sum() + b.target_real.sum()) for b in made)
    room = sum(b.source.numel() + b.target.numel() for b in made)
    assert 1 - real / room <= 0.2  # of 8,000 only: more examples fill their buckets better


def test_one_that_exceeds_the_budget_gets_a_batch_of_its_own():
    lengths = np.array([[5, 5], [500, 3], [5, 5]])
    plan = plan_epoch(lengths, 100, seed=0, epoch=0)
    assert sorted(map(len, plan)) == [1, 2]


def test_weights_say_how_often_an_epoch_has_an_example():
    lengths = np.full((4000, 2), 5)
    weights = np.repeat([2.0, 0.25, 1.5, 1.0], 1000)
    seen = np.zeros((2, 4000), int)
    for epoch in range(2):
        rows = np.concatenate(plan_epoch(lengths, 100, seed=0, epoch=epoch, weights=weights))
        np.add.at(seen[epoch], rows, 1)
    assert (seen[:, :1000] == 2).all()
    assert (seen[:, 3000:] == 1).all()
    assert set(seen[0, 1000:2000]) == {0, 1}
    assert abs(seen[0, 1000:2000].mean() - 0.25) < 0.06
    assert set(seen[0, 2000:3000]) == {1, 2}
    assert abs(seen[0, 2000:3000].mean() - 1.5) < 0.06
    assert (seen[0] != seen[1]).any()  # which ones is drawn anew


@pytest.mark.parametrize("bucketed", [False, True])
def test_what_a_model_cannot_read_is_left_out_and_counted(store, bucketed):
    few = batches(store, longest=14, bucketed=bucketed)
    long = {i for i in range(137) if (few.examples.lengths[i] > 14).any()}
    assert few.too_long == len(long) > 0
    seen = [i for batch in few.epoch(0) for i in batch.examples.tolist() if i >= 0]
    assert sorted(seen) == sorted(set(range(137)) - long)
    assert max(batch.source.size(1) for batch in few.epoch(0)) <= 14
    assert batches(store).too_long == 0


def test_a_store_is_sent_by_name_not_by_value(store):
    sent = pickle.dumps(store)
    assert len(sent) < 500
    assert pickle.loads(sent).columns[0][3].tolist() == store.columns[0][3].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_leave_torchs_random_numbers_alone(store, workers):
    """Or dropout after a resume would not be what it was."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    list(batches(store, workers=workers).epoch(0, position=2))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("number", END_SIGNALS)
@pytest.mark.parametrize("hesitating", [0, 1])
def test_who_makes_batches_goes_on_when_all_processes_are_signalled(
    store, number, hesitating, monkeypatch
):
    """`timeout`, Slurm and Ctrl-C do so; the trainer needs its batches until it has saved.

    Also those who have only just been started, and get to nothing yet.
    """
    monkeypatch.setattr(
        "limelight.data.batching.leave_signals_to_the_trainer",
        lambda i: time.sleep(i * hesitating),
    )
    before = {child.pid for child in multiprocessing.active_children()}
    epoch = batches(store, workers=2).epoch(0)
    seen = [next(epoch)]
    makers = [c for c in multiprocessing.active_children() if c.pid not in before]
    assert len(makers) == 2
    for maker in makers:
        os.kill(maker.pid, number)
    seen += list(epoch)
    assert [batch.examples.tolist() for batch in seen] == order(store, 0)


def test_batches_are_tensors_that_a_model_takes(store):
    batch = next(batches(store).epoch(0))
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert batch.source_real.dtype == torch.bool
