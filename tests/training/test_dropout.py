"""Dropout by quick coins is dropout: as often, as much in the mean, and no coin knows another."""

import pytest
import torch
from torch import nn

from limelight.training.dropout import LEVELS, FastCpuDropout, dropout_mask, use_fast_cpu_dropout

MANY = 400_000


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_as_many_are_dropped_as_should_be(p):
    torch.manual_seed(1)
    scales = dropout_mask((MANY,), p, torch.float64)
    dropped = (scales == 0).double().mean().item()
    error = (p * (1 - p) / MANY) ** 0.5
    assert abs(dropped - p) < 5 * error + 1 / LEVELS
    alive = scales[scales > 0].unique()
    assert alive.tolist() == [pytest.approx(1 / (1 - p), rel=1 / LEVELS / (1 - p))]
    assert abs(scales.mean().item() - 1) < 5 * error / (1 - p)


def test_coins_from_one_number_do_not_know_each_other():
    """All sixteen outcomes of four neighbours come as often as chance has it (chi-square)."""
    torch.manual_seed(2)
    fours = (dropout_mask((MANY, 4), 0.5, torch.float32) > 0).long() @ torch.tensor([8, 4, 2, 1])
    counts = fours.bincount(minlength=16).double()
    expected = MANY / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # 15 degrees of freedom, 1 in 1,000
    skewed = counts + 0.02 * expected * torch.tensor([1.0, -1.0] * 8)  # the control: 2% of each
    assert ((skewed - expected) ** 2 / expected).sum() > 37.7


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 3, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_shape(shape, dtype):
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    y = FastCpuDropout(0.5)(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert set(y.flatten().tolist()) <= {0.0, 2.0}
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # what is dropped learns nothing


def test_the_same_seed_drops_the_same_and_nothing_is_dropped_at_rest():
    layer, x = FastCpuDropout(0.3), torch.randn(50, 7)
    torch.manual_seed(5)
    first = layer(x)
    state = torch.get_rng_state()
    second = layer(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), second)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(FastCpuDropout(0.0)(x), x)
    assert FastCpuDropout(1.0)(x).isfinite().all()


def test_all_of_a_model_toss_so():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.2), nn.Sequential(nn.Dropout(0.4)))
    use_fast_cpu_dropout(model)
    layers = [part for part in model.modules() if isinstance(part, nn.Dropout)]
    assert [(type(part), part.p) for part in layers] == [
        (FastCpuDropout, 0.2),
        (FastCpuDropout, 0.4),
    ]
