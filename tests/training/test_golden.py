"""The loss of the first hundred steps, family by family, as it has always been.

A change that is meant to alter no result must not alter these. One that is meant to alters them on
purpose, and renews them with

    python -m tests.training.test_golden

Weights begin with numbers of numpy and nothing is dropped out: what is left is arithmetic, the same
on every machine to many digits.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from tests.training.samples import log_of, texts, tiny, train_in

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ("encoder-decoder", "decoder-only", "encoder-only", "recurrent-encoder-decoder")


def start_from_numpy(trainer):
    draw = np.random.default_rng(1)
    with torch.no_grad():
        for parameter in trainer.trainable:
            if parameter.dim() > 1:
                parameter.copy_(torch.from_numpy(0.3 * draw.standard_normal(parameter.shape)))


def curve(family, folder, **train):
    """The objective of each step in float64."""
    data = texts(folder) if family == "encoder-only" else None
    train.setdefault(
        "batch_tokens", 128 if family == "encoder-only" else 40
    )  # with a blank or more
    settings = {
        "steps": 100,
        "precision": "float64",
        "validate_every": 100,
        "clip_grad_norm": 1.0,
        **train,
    }
    recipe = tiny(family, data, {"dropout": 0.0}, **settings)
    train_in(folder / "run", recipe, touch=start_from_numpy)
    return [entry["objective"] for entry in log_of(folder / "run") if "lr" in entry]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_as_it_has_always_been(tmp_path, family):
    losses = curve(family, tmp_path)
    known = [float(line) for line in (GOLDEN / f"{family}.txt").read_text().split()]
    assert len(losses) == len(known) == 100
    assert losses == pytest.approx(known, rel=1e-6)
    assert known[-1] < 0.8 * known[0]  # it does learn


def test_a_slip_would_show(tmp_path):
    """The control: a hundredth more of the learning rate is another curve."""
    losses = curve("encoder-decoder", tmp_path, learning_rate=0.101)
    known = [float(line) for line in (GOLDEN / "encoder-decoder.txt").read_text().split()]
    assert losses != pytest.approx(known, rel=1e-6)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in FAMILIES:
        with TemporaryDirectory() as folder:
            losses = curve(family, Path(folder))
        (GOLDEN / f"{family}.txt").write_text("\n".join(f"{loss:.12g}" for loss in losses) + "\n")
