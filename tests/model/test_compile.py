"""A compiled model gives the numbers of the eager one, forward and backward, padded or not.

Here torch.compile captures and differentiates the whole graph and runs it with torch's own kernels;
that it is right with generated ones, which need a C++ compiler, is tested in tests/system.
"""

import pytest
import torch

from tests.model.samples import TRANSFORMERS, VARIANTS, begin, has_source, small, tokens

REAL = torch.arange(6) < torch.tensor([[6], [3]])


def check(model, backend):
    """Outputs and all gradients, without and with padding."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    text = tokens(2, 6)
    plain = [text, text] if has_source(model) else [text]
    masks = {"source_real": REAL, "target_real": REAL} if has_source(model) else {"real": REAL}
    for given in ({}, masks):
        results = []
        for run in (model, compiled):
            model.zero_grad()
            out = run(*plain, **given)
            out.square().mean().backward()
            results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
        for eager, fast in zip(*results, strict=True):
            torch.testing.assert_close(fast, eager, rtol=1e-5, atol=1e-5)


# Compiling takes seconds: each variant once, each family twice or more; all pairs in tests/system.
QUICK = [
    ("encoder-decoder", "paper"),
    ("encoder-decoder", "rotary"),
    ("decoder-only", "grouped"),
    ("decoder-only", "one key head"),
    ("decoder-only", "llama"),
    ("encoder-only", "learned"),
    ("encoder-only", "pre-norm"),
]


def test_every_family_and_variant_is_compiled():
    assert {variant for _, variant in QUICK} == set(VARIANTS)
    assert {family for family, _ in QUICK} == set(TRANSFORMERS)


@pytest.mark.parametrize(("family", "variant"), QUICK)
def test_compiled_equals_eager(family, variant):
    check(small(family, torch.float32, layers=1, **VARIANTS[variant]), "aot_eager")


@pytest.mark.parametrize(
    ("family", "variant"), [("encoder-decoder", "paper"), ("decoder-only", "llama")]
)
def test_a_compiled_step_equals_an_eager_one(family, variant):
    check_step(family, variant)


def check_step(family, variant):
    """Eight tokens, one after the other, each with the cache that the last one left."""
    torch._dynamo.reset()
    model = small(family, torch.float32, **VARIANTS[variant])
    source, text = tokens(2, 5), tokens(2, 8)
    step = torch.compile(model.step, backend="aot_eager")
    eager, fast = begin(model, source), begin(model, source)
    for t in range(8):
        token = text[:, t : t + 1]
        torch.testing.assert_close(step(token, fast), model.step(token, eager))
