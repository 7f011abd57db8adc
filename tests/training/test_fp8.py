"""The classifier in 8 bits: its loss and gradients are nearly those of bfloat16."""

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from limelight.device import choose_precision
from limelight.errors import UserError
from limelight.model import ModelConfig, build
from limelight.training.activation_checkpointing import checkpoint_layers
from limelight.training.fp8 import Fp8Linear, quantize, use_fp8_products
from limelight.training.loss import IGNORED
from limelight.training.objectives import LossModule
from tests.training.processes import ROOT
from tests.training.samples import cross_entropy_reference

SIZES = {"family": "decoder-only", "layers": 1, "d_model": 64, "heads": 2, "positions": "rotary"}


def losses(n, smoothing=0.1, bias=True, kind=torch.float32):
    """Of both ways on the same numbers: loss, nll, gradients."""
    torch.manual_seed(1)
    states = torch.randn(n, 64, dtype=kind, requires_grad=True)
    weight = (torch.randn(512, 64, dtype=kind) / 8).requires_grad_()
    shift = torch.randn(512, dtype=kind, requires_grad=True) if bias else None
    labels = torch.randint(0, 512, (n,))
    labels[::7] = IGNORED
    given = [x for x in (states, weight, shift) if x is not None]
    learner = LossModule(build(ModelConfig(vocab=512, **SIZES)), smoothing, fp8=True)
    found = []
    for how in (lambda *x: cross_entropy_reference(*x, smoothing), learner.loss):
        sums = how(states, weight, shift, labels)
        found.append((sums, torch.autograd.grad(sums.loss, given)))
    return found


@pytest.mark.parametrize("n", [96, 100])  # 100 is no multiple of what the hardware multiplies
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_are_nearly_those_of_more_bits(n, bias):
    (exact, exact_grads), (ours, grads) = losses(n, bias=bias)
    assert ours.total == exact.total
    assert ours.loss.item() == pytest.approx(exact.loss.item(), rel=0.01)
    assert ours.loss != exact.loss
    for mine, true in zip(grads, exact_grads, strict=True):
        assert mine.shape == true.shape
        assert torch.cosine_similarity(mine.flatten(), true.flatten(), dim=0) > 0.998
        assert mine.norm() == pytest.approx(true.norm().item(), rel=0.01)


def test_what_is_only_measured_has_all_its_bits():
    learner = LossModule(build(ModelConfig(vocab=512, **SIZES)), fp8=True)
    states, labels = torch.randn(20, 64), torch.randint(0, 512, (20,))
    weight = torch.randn(512, 64)
    with torch.no_grad():
        found = learner.loss(states, weight, None, labels)
    assert found.nll.item() == pytest.approx(
        cross_entropy_reference(states, weight, None, labels).nll.item(), rel=1e-6
    )


def test_the_largest_number_is_kept_and_zeros_are_zeros():
    x = torch.tensor([[0.0, -3.0, 0.1], [1e-9, 2.0, 0.0]])
    small, scale = quantize(x)
    back = small.float() * scale
    assert back[0, 1].item() == pytest.approx(-3.0, rel=1e-6)
    torch.testing.assert_close(back, x, rtol=0.07, atol=1e-3)
    small, scale = quantize(torch.zeros(2, 2))
    assert (small.float() * scale == 0).all()


def test_where_it_cannot_be_is_said():
    with pytest.raises(UserError, match="is for NVIDIA GPUs since Ada and Hopper, and this is CPU"):
        choose_precision("fp8", torch.device("cpu"))
    with pytest.raises(UserError, match="vocab=500 is no multiple"):
        LossModule(build(ModelConfig(vocab=500, **SIZES)), fp8=True)


@pytest.mark.parametrize("rows", [(4, 16), (3, 7)])  # 21 is no multiple of the hardware's 16
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_nearly_that_of_more_bits(rows, bias):
    torch.manual_seed(2)
    exact = torch.nn.Linear(64, 96, bias=bias)
    ours = Fp8Linear(exact)
    x, pull = torch.randn(*rows, 64, requires_grad=True), torch.randn(*rows, 96)
    given = [x, *exact.parameters()]
    made = [layer(x) for layer in (exact, ours)]
    grads = [torch.autograd.grad((y * pull).sum(), given) for y in made]
    for mine, true in [(made[1], made[0]), *zip(grads[1], grads[0], strict=True)]:
        assert mine.shape == true.shape
        assert torch.cosine_similarity(mine.flatten(), true.flatten(), dim=0) > 0.996
        assert mine.norm().item() == pytest.approx(true.norm().item(), rel=0.02)
    assert not torch.equal(made[1], made[0])
    with torch.no_grad():
        assert torch.equal(ours(x), exact(x))


def test_wide_layers_multiply_in_8_bits_and_keep_their_weights():
    torch.manual_seed(3)
    sizes = SIZES | {"d_model": 64, "d_ff": 48, "kv_heads": 1, "dropout": 0.0}
    plain = build(ModelConfig(vocab=512, **sizes))
    model = build(ModelConfig(vocab=512, **sizes))
    model.load_state_dict(plain.state_dict())
    names = list(model.state_dict())
    use_fp8_products(model, narrowest=64)
    wide = {name for name, part in model.named_modules() if isinstance(part, Fp8Linear)}
    assert wide == {f"decoder.layers.0.self_attention.{name}" for name in ("query", "output")}
    assert list(model.state_dict()) == names
    tokens = torch.randint(5, 512, (2, 24))
    exact, ours = plain.decode(tokens), model.decode(tokens)
    assert 1e-4 < (ours - exact).norm() / exact.norm() < 0.05
    ours.sum().backward()
    assert all(p.grad is not None for p in model.decoder.parameters())


class Products(TorchDispatchMode):
    """Counts them."""

    made = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.made += operation is torch.ops.aten._scaled_mm.default
        return operation(*args, **(kwargs or {}))


def products_back(how="off", frozen=()):
    """In the backward pass of a layer: how many products in 8 bits, and the gradients."""
    torch.manual_seed(4)
    model = build(ModelConfig(vocab=512, dropout=0.0, **SIZES)).train()
    use_fp8_products(model, narrowest=64)
    checkpoint_layers(model, how)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.endswith(frozen))
    loss = model.decode(torch.randint(5, 512, (2, 16))).square().sum()
    with Products() as products:
        loss.backward()
    return products.made, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_selective_checkpointing_keeps_products_of_8_bits():
    (plain, expected), (kept, found), (again, _) = map(products_back, ("off", "selective", "layer"))
    assert plain == kept == 12
    assert again == 18
    assert all(torch.equal(found[name], grad) for name, grad in expected.items())


def test_frozen_weights_take_no_product():
    _, expected = products_back()
    made, found = products_back(frozen=("output.weight", "inner.weight", "outer.weight"))
    assert made == 9
    assert found.keys() < expected.keys()
    assert all(torch.equal(grad, expected[name]) for name, grad in found.items())


def test_narrow_layers_keep_all_their_bits():
    model = build(ModelConfig(vocab=512, **SIZES))
    use_fp8_products(model)
    assert not any(isinstance(part, Fp8Linear) for part in model.modules())


PROBE = """
import torch
from limelight.model import ModelConfig, build
from limelight.training.objectives import LossModule
from tests.training.test_fp8 import SIZES
from limelight.data.datasets import LMBatch
for fp8 in (False, True):
    torch.manual_seed(1)
    learner = LossModule(build(ModelConfig(vocab=64, dropout=0.0, **SIZES)), fp8=fp8)
    learner.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2)
    made = []
    for step in range(60):
        tokens = torch.randint(5, 64, (16, 1)) + torch.arange(9)
        tokens = 5 + tokens % 59
        sums = learner(LMBatch(0, torch.arange(16), tokens, None, torch.ones_like(tokens).bool()))
        (sums.loss / sums.total).backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append((sums.nll / sums.total).item())
    print(*made)
"""


def test_it_learns_what_bfloat16_learns():
    ours = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=os.environ | ours,
        capture_output=True,
        text=True,
        check=True,
    )
    plain, small = ([*map(float, line.split())] for line in done.stdout.splitlines())
    assert plain[-1] < 0.5 * plain[0]
    assert small != plain
    assert small == pytest.approx(plain, rel=0.1, abs=0.05)
