"""Equation 1: the golden numbers, and the fused kernel against the explicit lines."""

import math
from itertools import product

import pytest
import torch

from limelight.model import ModelConfig
from limelight.model.attention import Attention, attention_mask, explicit_attention, fused_attention


def test_golden_numbers():
    eye = torch.eye(2, dtype=torch.float64)[None, None]
    seen = {}
    mixed = explicit_attention(eye, eye, 10 * eye, watch=seen.setdefault)
    expected = torch.tensor([[0.6698, 0.3302], [0.3302, 0.6698]], dtype=torch.float64)
    torch.testing.assert_close(seen["weights"][0, 0], expected, rtol=0, atol=5e-5)
    torch.testing.assert_close(mixed[0, 0], 10 * expected, rtol=0, atol=5e-4)
    torch.testing.assert_close(fused_attention(eye, eye, 10 * eye, None, False, 0.0), mixed)


def test_every_step_is_what_it_says():
    q, k, v = torch.randn(3, 2, 4, 5, 6, dtype=torch.float64)
    seen = {}
    explicit_attention(q, k, v, causal=True, watch=seen.setdefault)
    assert list(seen) == ["q", "k", "v", "scores", "scaled", "masked", "weights", "mixed"]
    torch.testing.assert_close(seen["scores"], torch.einsum("bhtk,bhsk->bhts", q, k))
    torch.testing.assert_close(seen["scaled"], seen["scores"] / math.sqrt(6))
    future = torch.ones(5, 5).triu(1).bool()
    assert (seen["masked"][..., future] == -math.inf).all()
    assert torch.equal(seen["masked"][..., ~future], seen["scaled"][..., ~future])
    assert (seen["weights"][..., future] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_softmax_rows_sum_to_one(dtype):
    q, k, v = torch.randn(3, 3, 4, 9, 8, dtype=dtype) * 20
    real = torch.arange(9) < torch.tensor([[9], [4], [1]])
    for mask, causal in (
        (None, False),
        (None, True),
        (attention_mask(real), False),
        (attention_mask(real, True), False),
    ):
        seen = {}
        explicit_attention(q, k, v, mask, causal, watch=lambda n, x, s=seen: s.setdefault(n, x))
        sums = seen["weights"].sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-6)
        assert (seen["weights"] >= 0).all()


MASKS = {
    "none": lambda t, s: (None, False),
    "causal": lambda t, s: (None, True),
    "padding": lambda t, s: (
        attention_mask(torch.arange(s) < torch.tensor([[s], [1], [s - 2]])),
        False,
    ),
    "causal and padding": lambda t, s: (
        attention_mask(torch.arange(s) >= torch.tensor([[0], [2], [s - 1]]), causal=True),
        False,
    ),
}


@pytest.mark.parametrize(
    ("kind", "groups", "dtype"), list(product(MASKS, [4, 2, 1], [torch.float64, torch.float32]))
)
def test_explicit_equals_fused_and_so_do_the_gradients(kind, groups, dtype):
    rows, heads, length, width = 3, 4, 7, 8
    q = torch.randn(rows, heads, length, width, dtype=dtype, requires_grad=True)
    k, v = (
        torch.randn(rows, groups, length, width, dtype=dtype, requires_grad=True) for _ in range(2)
    )
    mask, causal = MASKS[kind](length, length)
    fused = fused_attention(q, k, v, mask, causal, 0.0)
    explicit = explicit_attention(q, k, v, mask, causal)
    tolerance = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-5}
    torch.testing.assert_close(fused, explicit, **tolerance)
    weight = torch.randn_like(fused)
    for a, b in zip(
        torch.autograd.grad((fused * weight).sum(), (q, k, v)),
        torch.autograd.grad((explicit * weight).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, **tolerance)


def test_grouped_heads_share_keys_and_values_in_order():
    """Query heads 0 and 1 use key head 0, heads 2 and 3 use key head 1; never the other way."""
    config = ModelConfig(vocab=2, d_model=8, heads=4, kv_heads=2)
    grouped, full = Attention(config), Attention(ModelConfig(vocab=2, d_model=8, heads=4))
    with torch.no_grad():
        for name in ("query", "output"):
            getattr(full, name).load_state_dict(getattr(grouped, name).state_dict())
        for name in ("key", "value"):
            ours, theirs = getattr(grouped, name), getattr(full, name)
            theirs.weight.copy_(ours.weight.view(2, 1, 2, 8).expand(2, 2, 2, 8).reshape(8, 8))
            theirs.bias.copy_(ours.bias.view(2, 1, 2).expand(2, 2, 2).reshape(8))
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(grouped(x), full(x))


def test_cross_attention_asks_with_x_and_answers_with_memory():
    attention = Attention(ModelConfig(vocab=2, d_model=8, heads=2)).double()
    x, memory = torch.randn(2, 3, 8).double(), torch.randn(2, 5, 8).double()
    seen = {}
    attention.attend = lambda q, k, v, *rest: (
        seen.update(q=q, k=k, v=v) or fused_attention(q, k, v, *rest)
    )
    out = attention(x, memory)
    assert out.shape == x.shape
    torch.testing.assert_close(seen["q"], attention.split(attention.query(x)))
    torch.testing.assert_close(seen["k"], attention.split(attention.key(memory)))
    torch.testing.assert_close(seen["v"], attention.split(attention.value(memory)))
    torch.testing.assert_close(out, attention(x, attention.keys_values(memory)))


def test_a_row_of_padding_alone_gives_numbers():
    real = torch.tensor([[False, False, False], [True, True, False]])
    q = torch.randn(2, 1, 3, 4, requires_grad=True)
    for mask in (attention_mask(real), attention_mask(real, causal=True)):
        for function in (fused_attention, explicit_attention):
            out = function(q, q, q, mask, False, 0.0)
            (gradient,) = torch.autograd.grad(out.sum(), q)
            assert out.isfinite().all()
            assert gradient.isfinite().all()


def test_attention_dropout_is_for_training_only():
    attention = Attention(ModelConfig(vocab=2, d_model=8, heads=2, attention_dropout=0.5))
    x = torch.randn(1, 6, 8)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_a_mask_and_the_look_ahead_flag_are_not_mixed():
    attention = Attention(ModelConfig(vocab=2, d_model=8, heads=2))
    with pytest.raises(ValueError, match="not both"):
        attention(torch.randn(1, 3, 8), mask=torch.ones(3, 3).bool(), causal=True)


def test_explicit_dropout_drops_weights():
    """With all weights dropped nothing is mixed; with none dropped all is as without."""
    q = torch.randn(1, 2, 3, 4)
    assert torch.equal(explicit_attention(q, q, q, dropout=1.0), torch.zeros_like(q))
    assert torch.equal(explicit_attention(q, q, q, dropout=0.0), explicit_attention(q, q, q))
