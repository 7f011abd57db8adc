"""The numbers of a compiled model with generated kernels, which need a C++ compiler; and all pairs
of a family and a variant with torch's own kernels, of which `make test` compiles some."""

import pytest
import torch

from tests.model.samples import TRANSFORMERS, VARIANTS, small
from tests.model.test_compile import QUICK, check, check_step

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


REST = [(family, v) for family in TRANSFORMERS for v in VARIANTS if (family, v) not in QUICK]


@pytest.mark.parametrize(("family", "variant"), REST)
def test_compiled_with_torchs_own_kernels(family, variant):
    check(small(family, torch.float32, layers=1, **VARIANTS[variant]), "aot_eager")


@pytest.mark.parametrize(
    ("family", "variant"), [("encoder-decoder", "llama"), ("decoder-only", "paper")]
)
def test_a_compiled_step_of_the_other_variant(family, variant):
    check_step(family, variant)
