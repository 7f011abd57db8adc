"""Random small models of each family: the same logits and tokens as in `transformers`."""

import pytest
import torch

from limelight.interop import huggingface
from limelight.model import build
from tests.interop.samples import FAMILIES, hub_folder, theirs


def ours_of(imported):
    model = build(imported.config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(imported.weights[name])
    return model


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_are_those_of_transformers(kind, seed, tmp_path):
    origin = theirs(kind, seed)
    imported = huggingface.read(hub_folder(tmp_path, origin, kind))
    model = ours_of(imported)
    text = torch.randint(3, 90, (2, 9))
    with torch.no_grad():
        if kind in ("marian", "pegasus"):
            target = torch.randint(3, 90, (2, 6))
            got, expected = model(text, target), origin(text, decoder_input_ids=target).logits
            got, expected = got[..., 1:], expected[..., 1:]  # padding is made impossible
        else:
            got, expected = model(text), origin(text).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
