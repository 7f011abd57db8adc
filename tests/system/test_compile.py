"""The numbers of a compiled model with generated kernels. Needs a C++ compiler."""

import pytest
import torch

from tests.model.samples import VARIANTS, small
from tests.model.test_compile import check

pytestmark = pytest.mark.system

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


def test_every_variant_is_among_the_cases():
    assert {variant for _, variant in CASES} == set(VARIANTS)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_compiled_with_generated_kernels(family, variant):
    check(small(family, torch.float32, layers=1, **VARIANTS[variant]), "inductor")
