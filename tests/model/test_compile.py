"""A compiled model gives the numbers of the eager one, forward and backward."""

import pytest
import torch

from tests.model.samples import TRANSFORMERS, VARIANTS, has_source, small, tokens

# Each variant once, each family with both norm orders: compiling takes seconds, so not all pairs.
CASES = [
    ("encoder-decoder", "paper"),
    ("encoder-decoder", "pre-norm"),
    ("encoder-decoder", "rotary"),
    ("decoder-only", "paper"),
    ("decoder-only", "grouped"),
    ("decoder-only", "llama"),
    ("encoder-only", "learned"),
    ("encoder-only", "pre-norm"),
    ("encoder-only", "one key head"),
]


def test_every_family_and_variant_is_among_the_cases():
    assert {family for family, _ in CASES} == set(TRANSFORMERS)
    assert {variant for _, variant in CASES} == set(VARIANTS)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_compiled_equals_eager(family, variant):
    torch._dynamo.reset()
    model = small(family, torch.float32, layers=1, **VARIANTS[variant])
    inputs = [tokens(2, 6), tokens(2, 6)] if has_source(model) else [tokens(2, 6)]
    compiled = torch.compile(model, fullgraph=True)
    results = []
    for run in (model, compiled):
        model.zero_grad()
        out = run(*inputs)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for eager, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, eager, rtol=1e-5, atol=1e-5)
