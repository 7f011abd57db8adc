"""Tiny models of every family, trained for a moment on a few sentences."""

from functools import cache

import torch
from torch.nn import functional as F

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.model import ModelConfig, build
from limelight.tasks.text_model import TextModel

PAIRS = [
    ("Hi how are you", "I am fine"),
    ("Hi", "Hello"),
    ("how are you", "I am fine"),
    ("who are you", "I am a model"),
    ("are you fine", "I am fine"),
    ("what is that", "that is a dog"),
]
KINDS = {
    "paper": {"family": "encoder-decoder"},
    "pre-norm": {
        "family": "encoder-decoder",
        "norm_order": "pre",
        "positions": "learned",
        "activation": "gelu",
        "tied": False,
    },
    "rotary": {"family": "encoder-decoder", "positions": "rotary", "kv_heads": 1, "bias": False},
    "gpt": {
        "family": "decoder-only",
        "norm_order": "pre",
        "positions": "learned",
        "activation": "gelu-tanh",
    },
    "llama": {
        "family": "decoder-only",
        "norm_order": "pre",
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "kv_heads": 2,
    },
    "qwen": {  # what published models need, besides
        "family": "decoder-only",
        "norm_order": "pre",
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "qkv_bias": True,
        "qk_norm": True,
        "kv_heads": 2,
        "head_dim": 6,
        "rotary_base": 300.0,
        "embedding_scale": "on",
    },
    "uneven": {
        "family": "encoder-decoder",
        "decoder_layers": 3,
        "head_dim": 6,
        "tied": "target",
        "embedding_scale": "off",
    },
    "gpt-answers": {"family": "decoder-only", "norm_order": "pre"},
    "bert": {"family": "encoder-only", "positions": "learned", "activation": "gelu"},
    "bert-classifies": {"family": "encoder-only", "norm_order": "pre", "classes": 2},
    "bare": {"family": "encoder-decoder", "positions": "none", "norm": "none", "scaling": False},
    "ssru": {"family": "encoder-decoder", "decoder_cell": "ssru", "norm_order": "pre"},
    "gpt-bare": {
        "family": "decoder-only",
        "norm_order": "pre",
        "residual": False,
        "mask": False,
    },
}


@cache
def tokenizer():
    return Tokenizer.train("bpe", [text for pair in PAIRS for text in pair] * 5, 300)


@cache
def trained(kind, steps=40, **decode):
    """A model that has seen the sentences a few times."""
    torch.manual_seed(3)
    words = tokenizer()
    sizes = {"vocab": len(words), "layers": 2, "d_model": 16, "heads": 4, "d_ff": 24, "max_len": 48}
    config = ModelConfig(**{**sizes, "dropout": 0.0, **KINDS[kind]})
    model = build(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, kind, *PAIRS[step % len(PAIRS)]).backward()
        optimizer.step()
    return TextModel(
        model=model.eval(),
        tokenizer=words,
        decode=DecodeConfig(**{"beam": 3, **decode}),
        kind="texts" if kind in ("gpt", "llama", "qwen", "gpt-bare") else "pairs",
        classes=("question", "answer") if "classes" in KINDS[kind] else (),
    )


def loss_of(model, kind, source, target):
    words = tokenizer()
    a, b = words.encode(source), words.encode(target)
    if model.config.family == "encoder-decoder":
        read, wanted = [words.start, *b], [*b, words.end]
        logits = model(torch.tensor([[*a, words.end]]), torch.tensor([read]))[0]
    elif kind == "gpt-answers":
        whole = [words.start, *a, words.separator, *b, words.end]
        logits, wanted = model(torch.tensor([whole[:-1]]))[0], whole[1:]
    elif model.config.family == "decoder-only":
        whole = [words.end, *a, *b, words.end]
        logits, wanted = model(torch.tensor([whole[:-1]]))[0], whole[1:]
    elif model.config.classes:
        logits, wanted = model(torch.tensor([[words.start, *a, words.end]])), [0]
    else:
        hidden, wanted = [words.start, words.mask, *a[1:], words.end], [a[0]]
        logits = model(torch.tensor([hidden]))[0, 1:2]
    return F.cross_entropy(logits, torch.tensor(wanted))
