"""Small models of every family and variant, and one way to call them all."""

from typing import Any

import torch
from torch import Tensor, nn

from limelight.model import ModelConfig, RecurrentConfig, build

VOCAB = 13
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_order": "pre"},
    "learned": {"positions": "learned", "tied": False},
    "rotary": {"positions": "rotary", "activation": "gelu"},
    "grouped": {"kv_heads": 2, "activation": "gelu-tanh"},
    "one key head": {"kv_heads": 1, "positions": "rotary", "activation": "silu"},
    "llama": {
        "norm_order": "pre",
        "norm": "rms",
        "positions": "rotary",
        "activation": "swiglu",
        "kv_heads": 2,
        "bias": False,
    },
}
EXPERIMENTS: dict[str, dict[str, Any]] = {  # parts of the paper's model that are switched off
    "no positions": {"positions": "none"},
    "no norm": {"norm": "none"},
    "no scaling": {"scaling": False},
    "no mask": {"mask": False},
    "no residual": {"residual": False},
    "nothing of it": {
        "positions": "none",
        "norm": "none",
        "scaling": False,
        "residual": False,
        "norm_order": "pre",
    },
    "recurrent": {"decoder_cell": "ssru"},
}
# What published models need, besides: by family.
PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    (
        "encoder-decoder",
        {"source_vocab": 17, "decoder_layers": 1, "tied": "target", "embedding_scale": "off"},
    ),
    (
        "encoder-decoder",
        {"decoder_layers": 3, "tied": "none", "head_dim": 6, "positions": "rotary", "kv_heads": 2},
    ),
    ("encoder-only", {"embedding_scale": "on", "head_dim": 2, "bias": False, "qkv_bias": True}),
    ("decoder-only", {**VARIANTS["llama"], "rotary_base": 500.0, "head_dim": 6, "qk_norm": True}),
    ("decoder-only", {**VARIANTS["llama"], "qkv_bias": True, "tied": "none"}),
    (
        "decoder-only",
        {"positions": "rotary", "rotary_scaling": "linear", "rotary_factor": 2.5, "qk_norm": True},
    ),
    (
        "decoder-only",
        {
            "positions": "rotary",
            "head_dim": 12,
            "rotary_scaling": "llama3",
            "rotary_factor": 8.0,
            "rotary_length": 16,
            "rotary_base": 20.0,
            "embedding_scale": "on",
        },
    ),
]
TRANSFORMERS = ("encoder-decoder", "decoder-only", "encoder-only")
RECURRENT: dict[str, dict[str, Any]] = {
    f"{cell}{' with attention' if attention else ''}": {"cell": cell, "attention": attention}
    for cell in ("rnn", "lstm", "gru")
    for attention in (True, False)
}
SWITCHED = [
    (family, switch)
    for family in TRANSFORMERS
    for switch in EXPERIMENTS
    if (family, switch) != ("encoder-only", "no mask")
    and (family == "encoder-decoder" or switch != "recurrent")
]
# Every model that writes token by token: its family and what is special about it.
WRITERS = [(family, v) for family in TRANSFORMERS[:2] for v in VARIANTS.values()] + [
    ("encoder-decoder", EXPERIMENTS["recurrent"]),
    *(pair for pair in PUBLISHED if pair[0] != "encoder-only"),
    *(
        (family, {**v, "layers": layers})
        for family in ("recurrent-encoder-decoder", "recurrent-decoder-only")
        for v in RECURRENT.values()
        for layers in (1, 2)
    ),
]


def small(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> nn.Module:
    """A model of a few thousand numbers, none left at a trivial value such as a zero bias."""
    common = {"family": family, "vocab": VOCAB, "layers": 2, "d_model": 16, "max_len": 48}
    if family.startswith("recurrent"):
        config = RecurrentConfig(**{**common, **changes})
    else:
        config = ModelConfig(**{**common, "heads": 4, "d_ff": 24, **changes})
    model = build(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (rows, length))


def has_source(model: nn.Module) -> bool:
    return model.config.family.endswith("encoder-decoder")


def begin(model: nn.Module, source: Tensor, real: Tensor | None = None) -> Any:
    """The state before the first token; a model without a source only takes the number of rows."""
    return model.start(source, real) if has_source(model) else model.start(source.size(0))


def logits(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """All logits in one pass; a model without a source only reads the target."""
    return model(source, target) if has_source(model) else model(target)
