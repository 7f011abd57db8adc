"""Muon moves the matrices of layers along all their directions alike."""

import pytest
import torch
from torch import nn

from limelight.errors import UserError
from limelight.model import ModelConfig, build, model_config
from limelight.training.config import TrainConfig
from limelight.training.optimizer import (
    Muon,
    make_optimizer,
    optimizer_step_no_sync,
    orthogonal,
    set_lr,
)
from tests.training.samples import hashes, log_of, tiny, train_in

SIZES = {"vocab": 13, "layers": 2, "d_model": 8, "heads": 2, "max_len": 16}


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 32), (2, 32, 8)])
def test_what_moves_is_the_nearest_orthogonal_matrix_roughly(shape):
    torch.manual_seed(1)
    matrices = torch.randn(shape, dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    found = torch.linalg.svdvals(orthogonal(matrices))
    assert found.min() > 0.3  # where s was as small as a hundredth of the largest
    assert found.max() < 1.3
    assert (s.amin(dim=1) < 0.5 * s.amax(dim=1)).all()  # it was not so before
    ours, exact = orthogonal(matrices).flatten(1), (u @ v).flatten(1)
    assert torch.cosine_similarity(ours, exact).min() > 0.95


def make(model, **changes):
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", **changes))
    set_lr(optimizer, 0.01)
    return optimizer


def with_gradients(seed=1):
    torch.manual_seed(seed)
    model = build(ModelConfig(family="decoder-only", **SIZES)).double()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model


def test_it_moves_as_torch_s_own_does():
    ours, theirs = with_gradients(), with_gradients()
    moved = [p for n, p in theirs.named_parameters() if p.dim() == 2 and "layers" in n]
    torchs = torch.optim.Muon(
        moved, 0.01, 0.1, adjust_lr_fn="match_rms_adamw", ns_coefficients=(3.4445, -4.775, 2.0315)
    )
    optimizer = make(ours, weight_decay=0.1)
    for _ in range(3):
        optimizer.step()
        torchs.step()
    names = {n for n, p in ours.named_parameters() if p.dim() == 2 and "layers" in n}
    other = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        if name in names:  # torch's computes in bfloat16
            torch.testing.assert_close(p, other[name], rtol=0, atol=2e-3)


def test_tables_norms_and_biases_are_left_to_adam():
    model = with_gradients()
    optimizer = make(model)
    optimizer.step()
    for name, p in model.named_parameters():
        kept = {"step", "exp_avg"} if p.dim() == 2 and "layers" in name else None
        assert set(optimizer.state[p]) == (kept or {"step", "exp_avg", "exp_avg_sq"}), name


def test_a_step_that_is_not_finite_changes_nothing():
    model = with_gradients()
    optimizer = make(model)
    optimizer.step()
    state = {n: p.detach().clone() for n, p in model.named_parameters()}
    kept = [value.clone() for p in model.parameters() for value in optimizer.state[p].values()]
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    nothing = torch.tensor(1.0), torch.tensor(False)
    matrices = [group for group in optimizer.param_groups if group["muon"]]
    optimizer.param_groups = matrices  # Adam's kernel for this is a GPU's
    optimizer_step_no_sync(optimizer, [], *nothing)
    for name, p in model.named_parameters():
        assert torch.equal(p, state[name])
    after = [value for p in model.parameters() for value in optimizer.state[p].values()]
    assert all(torch.equal(a, b) for a, b in zip(after, kept, strict=True))


def test_its_training_resumes_to_the_same_bits(tmp_path):
    usual = {"validate_every": 5, "checkpoint_every": 5, "optimizer": "muon"}
    train_in(tmp_path / "whole", tiny(**usual))
    train_in(tmp_path / "parts", tiny(**usual, steps=5), expect=0)
    train_in(tmp_path / "parts", tiny(**usual))
    for parent in ("checkpoints", "finished"):
        assert hashes(tmp_path / "whole" / parent) == hashes(tmp_path / "parts" / parent)
    losses = [entry["loss"] for entry in log_of(tmp_path / "whole") if "lr" in entry]
    assert losses[-1] < losses[0]


def test_where_it_cannot_work_is_said():
    with pytest.raises(UserError, match=r"needs whole matrices.*--train\.optimizer adam"):
        TrainConfig(optimizer="muon", fsdp=True)
    recurrent = model_config(family="recurrent-decoder-only", vocab=13, d_model=8)
    with pytest.raises(UserError, match="none of them is trained here"):
        make(build(recurrent))
    assert not isinstance(make_optimizer(nn.Linear(2, 2), TrainConfig()), Muon)
