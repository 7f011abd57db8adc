"""What a GPU computes in another way is what the plain way gives."""

import pytest
import torch

from limelight.model import ModelConfig, build
from limelight.training.fast_layers import use_joint_products

SIZES = {"vocab": 13, "layers": 2, "d_model": 8, "heads": 4, "dropout": 0.0}


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
