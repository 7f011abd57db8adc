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


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_compiled_equals_eager(family, variant):
    check(small(family, torch.float32, layers=1, **VARIANTS[variant]), "aot_eager")


@pytest.mark.parametrize("variant", ["paper", "llama"])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder-only"])
def test_a_compiled_step_equals_an_eager_one(family, variant):
    torch._dynamo.reset()
    model = small(family, torch.float32, **VARIANTS[variant])
    source, text = tokens(2, 5), tokens(2, 8)
    step = torch.compile(model.step, backend="aot_eager")
    eager, fast = begin(model, source), begin(model, source)
    for t in range(8):
        token = text[:, t : t + 1]
        torch.testing.assert_close(step(token, fast), model.step(token, eager))
