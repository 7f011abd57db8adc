"""One batch, or the same rows in several: the same step. Every token counts the same."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from limelight.data.datasets import Seq2SeqBatch
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.loop import fit
from limelight.training.loss import LossSums
from limelight.training.objectives import LossModule
from limelight.training.trainer import Trainer
from tests.model.samples import VOCAB, small

ROWS, STEPS = 32, 20


class Given:
    """Batches that are what a test says, again in every epoch."""

    ranks, batch_tokens = 1, 0

    def __init__(self, batches: list[Seq2SeqBatch]) -> None:
        self.batches = batches

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Any]:
        yield from self.batches[position:]


class MeanOfMeans(LossModule):
    """The slip that is guarded against: every batch counts the same, however much is in it."""

    def forward(self, batch):
        loss, surprise, right, asked = super().forward(batch)
        return LossSums(loss / asked, surprise, right, torch.ones_like(asked))


def ragged_rows():
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 12, (ROWS, 2), generator=draw).tolist()
    return [[torch.randint(1, VOCAB, (n,), generator=draw) for n in pair] for pair in lengths]


def side_by_side(rows):
    """Rows as one batch, padded as far as these need it."""
    sides = []
    for column in zip(*rows, strict=True):
        tokens = torch.nn.utils.rnn.pad_sequence(column, batch_first=True)
        lengths = torch.tensor([len(row) for row in column])
        sides.append((tokens, torch.arange(tokens.size(1)) < lengths[:, None]))
    (source, source_real), (target, target_real) = sides
    start = torch.zeros(len(rows), 1, dtype=torch.long)
    target = torch.cat([start, target], dim=1)
    target_real = torch.cat([start == 0, target_real], dim=1)
    return Seq2SeqBatch(0, torch.arange(len(rows)), source, target, source_real, target_real)


def parameters_after(folder, parts, loss_module=LossModule, **settings):
    """Train on the same rows in this many parts; the weights, one after the other."""
    rows, size = ragged_rows(), ROWS // parts
    batches = [side_by_side(rows[i : i + size]) for i in range(0, ROWS, size)]
    torch.manual_seed(0)
    usual = {
        "learning_rate": 0.01,
        "schedule": "inverse-sqrt",
        "warmup": 5,
        "average_checkpoints": 0,
    }
    usual["eps"] = 1e-6  # a key's bias has a gradient of rounding alone, which Adam would blow up
    config = TrainConfig(
        steps=STEPS, grad_accumulation=parts, precision="float64", **{**usual, **settings}
    )
    folder.mkdir()
    trainer = Trainer(
        loss_module=loss_module(small("encoder-decoder", dropout=0.0), 0.1),
        batches=Given(batches),
        config=config,
        run=RunFolder(folder),
        world=World(torch.device("cpu")),
        report=Report(silent=True),
        precision="float64",
    )
    before = flat(trainer)
    assert fit(trainer) == 0
    assert trainer.state.epoch == STEPS - 1  # every step has seen all rows
    assert (flat(trainer) - before).abs().max() > 0.01
    return flat(trainer)


def flat(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.trainable])


@pytest.mark.parametrize(
    ("parts", "settings"), [(4, {}), (16, {}), (2, {"clip_grad_norm": 0.5, "weight_decay": 0.1})]
)
def test_accumulated_batches_are_one_batch(tmp_path, parts, settings):
    one = parameters_after(tmp_path / "one", 1, **settings)
    some = parameters_after(tmp_path / "some", parts, **settings)
    assert (one - some).abs().max() < 1e-10


def test_a_mean_of_means_would_be_noticed(tmp_path):
    one = parameters_after(tmp_path / "one", 1)
    slip = parameters_after(tmp_path / "slip", 4, loss_module=MeanOfMeans)
    assert (one - slip).abs().max() > 1e-6
