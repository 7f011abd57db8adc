"""What a GPU computes in another way is what the plain way gives."""

import pytest
import torch

from limelight.model import ModelConfig, build
from limelight.model.attention import attention_mask, explicit_attention
from limelight.training.loss import IGNORED, cross_entropy_chunk
from limelight.training.objectives import short_attention, use_joint_products

SIZES = {"vocab": 13, "layers": 2, "d_model": 8, "heads": 4, "dropout": 0.0}


@pytest.mark.parametrize("kind", ["none", "causal", "padding", "numbers"])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("scaling", [True, False])
def test_dividing_by_the_sum_at_the_end_changes_nothing(kind, groups, scaling):
    torch.manual_seed(1)
    q = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, groups, 5, 6, dtype=torch.float64, requires_grad=True) for _ in "kv")
    real = torch.arange(5) < torch.tensor([[5], [3]])
    mask = {"padding": attention_mask(real), "numbers": torch.randn(4, 5, 5).double()}.get(kind)
    wanted = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    found = []
    for attend in (explicit_attention, short_attention):
        mixed = attend(q, k, v, mask, kind == "causal", 0.0, scaling)
        found.append([mixed, *torch.autograd.grad((mixed * wanted).sum(), (q, k, v))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"bias": False}, {"kv_heads": 2}, {"qkv_bias": True}])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_one_product_for_queries_keys_and_values_is_three(family, changes):
    torch.manual_seed(1)
    changes = {"bias": False, **changes} if "qkv_bias" in changes else changes
    model = build(ModelConfig(family=family, **SIZES, **changes)).double()
    tokens = [torch.randint(5, 13, (2, n)) for n in ((5, 4) if "encoder" in family else (5,))]
    found = []
    for joint in (False, True):
        if joint:
            use_joint_products(model)
        model.zero_grad()
        logits = model(*tokens)
        logits.square().sum().backward()
        found.append([logits, *(p.grad.clone() for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocab", [512, 5001, 50304])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_kernel_of_the_loss_gives_what_torch_gives(smoothing, vocab, kind):
    from limelight.training.loss_kernels import loss_of_rows, transposed

    torch.manual_seed(1)
    logits = (3 * torch.randn(77, vocab, device="cuda")).to(kind)
    labels = torch.randint(0, vocab, (77,), device="cuda")
    labels[::5] = IGNORED
    labels[1], labels[2] = logits[1].argmax(), 5
    logits[2, [5, 9]] = 2 * logits[2].max()  # the first of two is the most likely token
    sums, grad = cross_entropy_chunk(logits.clone(), labels, smoothing, True)
    only, nothing = loss_of_rows(logits.clone(), labels, smoothing, False)
    ours, ours_grad = loss_of_rows(logits.clone(), labels, smoothing, True)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 4e-3}[kind]
    torch.testing.assert_close(ours, sums, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(only, ours)
    torch.testing.assert_close(ours_grad, grad, rtol=tolerance, atol=tolerance)
    assert sums[2] >= 2
    assert nothing is None
    small = logits.to(torch.float8_e5m2)
    assert torch.equal(transposed(small).float(), small.float().t())
