"""The package gives the numbers of the slow NumPy reference, whatever the shape and variant."""

import random

import numpy as np
import pytest
import torch

from tests.model.reference import RecurrentReference, Reference
from tests.model.samples import (
    EXPERIMENTS,
    PUBLISHED,
    RECURRENT,
    SWITCHED,
    TRANSFORMERS,
    small,
    tokens,
)


def random_variant(seed: int) -> dict:
    choose = random.Random(seed)
    heads = choose.choice([1, 2, 3, 4])
    activation = choose.choice(["relu", "gelu", "gelu-tanh", "silu", "swiglu"])
    return {
        "heads": heads,
        "kv_heads": choose.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "d_model": heads * choose.choice([2, 4, 6]),
        "d_ff": choose.randint(1, 20),
        "layers": choose.randint(1, 3),
        "norm_order": choose.choice(["post", "pre"]),
        "norm": choose.choice(["layer", "rms"]),
        "norm_eps": choose.choice([1e-12, 1e-5, 1e-3]),
        "positions": choose.choice(["sinusoidal", "learned", "rotary"]),
        "activation": activation,
        "bias": choose.choice([True, False]),
        "tied": choose.choice([True, False]),
    }


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_logits_equal_the_numpy_reference(family, seed):
    assert_equals_reference(family, seed, random_variant(seed))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("family", "settings"), PUBLISHED)
def test_settings_of_published_models_equal_the_numpy_reference(family, settings, seed):
    assert_equals_reference(family, seed, settings)


@pytest.mark.parametrize(
    "setting",
    [
        {"rotary_base": 100.0},
        {"rotary_scaling": "linear", "rotary_factor": 2.0},
        {"rotary_scaling": "llama3", "rotary_factor": 2.0, "rotary_length": 16},
        {"embedding_scale": "on"},
        {"qk_norm": True},
    ],
)
def test_each_of_these_settings_changes_what_is_computed(setting):
    model = small("decoder-only", positions="rotary")
    other = small("decoder-only", positions="rotary", **setting)
    other.load_state_dict(model.state_dict(), strict=False)
    text = tokens(1, 7)
    assert (model(text) - other(text)).abs().max() > 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("family", "switch"), SWITCHED)
def test_experiments_equal_the_numpy_reference(family, switch, seed):
    variant = random_variant(seed) | {"activation": "relu", "dropout": 0.0} | EXPERIMENTS[switch]
    assert_equals_reference(family, seed, variant, training=True)
    assert_equals_reference(family, seed, variant, training=False)


def assert_equals_reference(family, seed, variant, training=False):
    torch.manual_seed(seed)
    model = small(family, **variant).train(training)
    source, target = tokens(1, 1 + seed % 7), tokens(1, 1 + seed % 5)
    segments = torch.randint(2, source.shape)
    inputs = {
        "encoder-decoder": (source, target),
        "decoder-only": (target,),
        "encoder-only": (source, segments),
    }[family]
    weights = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    reference = getattr(Reference(model.config, weights, training), family.replace("-", "_"))
    expected = reference(*(x[0].tolist() for x in inputs))
    size = max(1, np.abs(expected).max())  # without norms numbers grow
    with torch.no_grad():
        np.testing.assert_allclose(model(*inputs)[0].numpy(), expected, rtol=0, atol=1e-10 * size)
        got = model.float()(*inputs)[0].double().numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("variant", RECURRENT)
@pytest.mark.parametrize("family", ["recurrent-encoder-decoder", "recurrent-decoder-only"])
def test_recurrent_logits_equal_the_numpy_reference(family, variant, layers):
    model = small(family, layers=layers, d_model=8, tied=layers == 2, **RECURRENT[variant])
    source, target = tokens(1, 5), tokens(1, 4)
    inputs = (source, target) if family.endswith("encoder-decoder") else (target,)
    weights = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    reference = getattr(RecurrentReference(model.config, weights), family.replace("-", "_"))
    expected = reference(*(x[0].tolist() for x in inputs))
    with torch.no_grad():
        np.testing.assert_allclose(model(*inputs)[0].numpy(), expected, rtol=0, atol=1e-10)
