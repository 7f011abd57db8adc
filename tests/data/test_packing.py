"""Several pairs in a row: nothing is lost, and each is learned from as if it were alone."""

import numpy as np
import pytest
import torch

from limelight.data.batching import BatchPlan, EpochPlan
from limelight.data.datasets import Seq2SeqBatch
from limelight.data.packing import IGNORED, pack_pairs, row_starts
from limelight.errors import UserError
from limelight.model import ModelConfig, build
from limelight.training.objectives import LossModule, count_tokens
from tests.training.samples import hashes, log_of, tiny, train_in

START, END = 1, 2


class Pairs:
    """Pairs of many lengths, of random tokens."""

    weights = None

    def __init__(self, count=60, longest=12, seed=1):
        draw = np.random.default_rng(seed)
        self.lengths = draw.integers(2, longest + 1, (count, 2))
        self.texts = [[draw.integers(3, 13, n - 1) for n in pair] for pair in self.lengths]

    def batch(self, epoch, position, rows, width):
        source = torch.zeros(len(rows), int(width[0]), dtype=torch.long)
        target = torch.zeros(len(rows), int(width[1]) + 1, dtype=torch.long)
        for i, row in enumerate(rows):
            for side, text in zip((source, target), self.texts[row], strict=True):
                ids = [START] * (side is target) + [*text.tolist(), END]
                side[i, : len(ids)] = torch.tensor(ids)
        return Seq2SeqBatch(
            position, torch.from_numpy(rows), source, target, source > 0, target > 0
        )


def test_rows_are_filled_as_far_as_pairs_fit():
    lengths = np.array([[3, 2], [3, 2], [2, 6], [8, 1], [1, 8], [1, 1]])
    assert row_starts(lengths, 8) == [0, 2, 3, 4, 5, 6]
    assert row_starts(lengths, 9) == [0, 2, 3, 5, 6]
    assert row_starts(lengths[:0], 9) == [0]


@pytest.mark.parametrize("width", [12, 17, 64])
def test_an_epoch_has_each_pair_once_and_one_shape(width):
    pairs = Pairs()
    plan = BatchPlan(pairs, batch_tokens=3 * width, seed=1, packed=width)
    batches = [EpochPlan(plan, 0, plan.plan(0))[i] for i in range(len(plan.plan(0)))]
    assert {b.source.shape for b in batches} == {(3, width)}
    seen = torch.cat([b.examples[b.examples >= 0] for b in batches])
    assert sorted(seen.tolist()) == list(range(60))
    for batch in batches:
        for number, example in enumerate(batch.examples[batch.examples >= 0].tolist(), 1):
            source, target = pairs.texts[example]
            mine, its = batch.source_texts == number, batch.target_texts == number
            assert batch.source[mine].tolist() == [*source, END]
            assert batch.source_positions[mine].tolist() == list(range(len(source) + 1))
            assert batch.target[its].tolist() == [START, *target]
            assert batch.labels[its].tolist() == [*target, END]
            assert mine.any(dim=1).sum() == its.any(dim=1).sum() == 1  # both in one row
            assert mine.any(dim=1).equal(its.any(dim=1))
        assert (batch.labels[batch.target_texts == 0] == IGNORED).all()
    other = [rows.tolist() for rows in plan.plan(1)]
    assert other != [rows.tolist() for rows in plan.plan(0)]
    assert sum(count_tokens(b) for b in batches) == pairs.lengths.sum() + 60


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("width", [12, 40])
def test_loss_and_gradients_are_those_of_one_pair_a_row(positions, width):
    torch.manual_seed(1)
    sizes = {"vocab": 13, "layers": 2, "d_model": 8, "heads": 2, "dropout": 0.0, "max_len": 12}
    learner = LossModule(build(ModelConfig(**sizes, positions=positions)).double(), 0.1)
    pairs = Pairs(9)
    plain = pairs.batch(0, 0, np.arange(9), pairs.lengths.max(axis=0))
    found = []
    for batch in (plain, pack_pairs(plain, width, 9)):
        learner.zero_grad()
        sums = learner(batch)
        sums.loss.backward()
        grads = torch.cat([p.grad.flatten() for p in learner.parameters()])
        found.append((torch.stack([x.double() for x in sums]).detach(), grads))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_texts_of_one_row_would_disturb_each_other_without_their_numbers():
    torch.manual_seed(1)
    sizes = {"vocab": 13, "layers": 1, "d_model": 8, "heads": 2, "dropout": 0.0}
    learner = LossModule(build(ModelConfig(**sizes)).double())
    pairs = Pairs(6)
    packed = pack_pairs(pairs.batch(0, 0, np.arange(6), pairs.lengths.max(axis=0)), 40, 2)
    one = packed._replace(
        source_texts=packed.source_texts.clamp(max=1), target_texts=packed.target_texts.clamp(max=1)
    )
    assert (learner(packed).loss - learner(one).loss).abs() > 1e-6


def test_a_training_in_packed_rows_learns_and_resumes_to_the_same_bits(tmp_path):
    usual = {"pack": 20, "batch_tokens": 40, "validate_every": 5, "checkpoint_every": 5}
    train_in(tmp_path / "whole", tiny(**usual))
    train_in(tmp_path / "parts", tiny(**usual, steps=5), expect=0)
    train_in(tmp_path / "parts", tiny(**usual))
    for parent in ("checkpoints", "finished"):
        assert hashes(tmp_path / "whole" / parent) == hashes(tmp_path / "parts" / parent) != {}
    losses = [entry["loss"] for entry in log_of(tmp_path / "whole") if "lr" in entry]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (tiny(pack=64), "is longer than a batch of batch_tokens=40"),
        (tiny(pack=20, model={"decoder_cell": "ssru"}), "attends with a mask"),
        (tiny("recurrent-encoder-decoder", pack=20), "family='recurrent-encoder-decoder'"),
        (tiny("decoder-only", pack=20), "family='decoder-only'"),
    ],
)
def test_where_pairs_cannot_share_a_row_is_said(tmp_path, recipe, words):
    with pytest.raises(UserError, match=words):
        train_in(tmp_path, recipe)
