"""Our layer is torch.nn's TransformerEncoderLayer and TransformerDecoderLayer."""

import pytest
import torch
from torch import nn

from limelight.model import ModelConfig
from limelight.model.attention import attention_mask
from limelight.model.layers import Layer
from tests.against.copying import compare, load, randomise, rename

D, HEADS, D_FF = 12, 3, 20


def mapping(theirs):
    """torch keeps query, key and value in one matrix."""
    ours = rename(
        theirs,
        {
            "linear1.": "feed_forward.inner.",
            "linear2.": "feed_forward.outer.",
            "norm1.": "self_residual.norm.",
            "self_attn.out_proj.": "self_attention.output.",
            "multihead_attn.out_proj.": "cross_attention.output.",
        },
    )
    cross = any(name.startswith("multihead") for name in theirs)
    names = {"norm2.": "cross_residual.norm.", "norm3.": "feed_forward_residual.norm."}
    ours |= rename(theirs, names if cross else {"norm2.": "feed_forward_residual.norm."})
    for old, new in (("self_attn", "self_attention"), ("multihead_attn", "cross_attention")):
        for kind in ("weight", "bias"):
            if f"{old}.in_proj_{kind}" in theirs:
                parts = theirs[f"{old}.in_proj_{kind}"].chunk(3)
                for part, value in zip(("query", "key", "value"), parts, strict=True):
                    ours[f"{new}.{part}.{kind}"] = value
    return ours


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("padded", [False, True])
def test_encoder_layer(norm_order, activation, padded):
    theirs = randomise(
        nn.TransformerEncoderLayer(
            D, HEADS, D_FF, activation=activation, batch_first=True, norm_first=norm_order == "pre"
        )
    )
    config = ModelConfig(
        vocab=1, d_model=D, heads=HEADS, d_ff=D_FF, norm_order=norm_order, activation=activation
    )
    ours = Layer(config).double().eval()
    load(ours, theirs, mapping)
    x = torch.randn(2, 6, D, dtype=torch.float64)
    real = torch.arange(6) < torch.tensor([[6], [4 if padded else 6]])
    a = ours(x, attention_mask(real))
    b = theirs(x, src_key_padding_mask=~real)
    compare(ours, theirs, a * real[..., None], b * real[..., None], mapping)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_decoder_layer(norm_order, activation):
    theirs = randomise(
        nn.TransformerDecoderLayer(
            D, HEADS, D_FF, activation=activation, batch_first=True, norm_first=norm_order == "pre"
        )
    )
    config = ModelConfig(
        vocab=1, d_model=D, heads=HEADS, d_ff=D_FF, norm_order=norm_order, activation=activation
    )
    ours = Layer(config, cross=True).double().eval()
    load(ours, theirs, mapping)
    x, memory = torch.randn(2, 5, D).double(), torch.randn(2, 7, D).double()
    real = torch.arange(7) < torch.tensor([[7], [3]])
    a = ours(x, causal=True, memory=memory, memory_mask=attention_mask(real))
    hidden = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    b = theirs(x, memory, tgt_mask=hidden, memory_key_padding_mask=~real)
    compare(ours, theirs, a, b, mapping)


def test_a_forgotten_transposition_is_noticed():
    """The negative control: with query and key exchanged the comparison fails."""
    theirs = randomise(nn.TransformerEncoderLayer(D, HEADS, D_FF, batch_first=True))
    ours = Layer(ModelConfig(vocab=1, d_model=D, heads=HEADS, d_ff=D_FF)).double().eval()

    def wrong(theirs):
        mapped = mapping(theirs)
        swapped = {"query": "key", "key": "query"}
        for kind in ("weight", "bias"):
            q, k = (mapped[f"self_attention.{swapped[part]}.{kind}"] for part in ("query", "key"))
            mapped[f"self_attention.query.{kind}"], mapped[f"self_attention.key.{kind}"] = q, k
        return mapped

    load(ours, theirs, wrong)
    x = torch.randn(2, 6, D, dtype=torch.float64)
    with pytest.raises(AssertionError, match="not close"):
        compare(ours, theirs, ours(x), theirs(x), wrong)
