"""Run folders of small random models, to be exported."""

import random
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file

from limelight.data.config import DataConfig
from limelight.data.tokenizer import Tokenizer, TokenizerConfig
from limelight.model import ModelConfig, build
from limelight.recipe import Recipe, write_recipe
from limelight.run.atomic import commit
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS, name_of
from tests.against.copying import randomise
from tests.interop.samples import TEXTS

FAMILIES = ("marian", "pegasus", "gpt2", "llama", "qwen2", "qwen3", "starcoder2", "bert")
_ROTARY = {"norm_order": "pre", "positions": "rotary", "bias": False}
_GATED = {**_ROTARY, "norm": "rms", "activation": "swiglu"}
_FIXED = {  # what makes a model one of its family
    "marian": {"family": "encoder-decoder"},
    "pegasus": {"family": "encoder-decoder", "norm_order": "pre"},
    "gpt2": {"family": "decoder-only", "norm_order": "pre", "positions": "learned"},
    "llama": {"family": "decoder-only", **_GATED},
    "qwen2": {"family": "decoder-only", **_GATED, "qkv_bias": True},
    "qwen3": {"family": "decoder-only", **_GATED, "qk_norm": True},
    "starcoder2": {"family": "decoder-only", **_ROTARY},
    "bert": {"family": "encoder-only", "positions": "learned"},
}


@cache
def tokenizer(kind="bpe"):
    return Tokenizer.train(kind, TEXTS, 300, ["de", "en"])


def random_config(kind, seed):
    """A model of this family, everything else drawn."""
    draw = random.Random(f"{kind} {seed}")
    heads = draw.choice([1, 2, 4])
    found = {
        "vocab": 300 + draw.choice([0, 3]),  # a model may have more tokens than its tokenizer
        "layers": draw.randint(1, 3),
        "d_model": heads * draw.choice([4, 6, 8]),
        "d_ff": draw.choice([0, draw.randint(5, 30)]),
        "heads": heads,
        "max_len": draw.randint(40, 60),
        "tied": draw.choice([True, False]),
        **_FIXED[kind],
    }
    plain = draw.choice(["relu", "gelu", "gelu-tanh", "silu"])
    found.setdefault("activation", plain)
    if found["family"] == "decoder-only":
        found["embedding_scale"] = draw.choice(["auto", "off"])
    if found.get("positions") == "rotary":
        _draw_rotary(found, draw, kind)
    if found["family"] == "encoder-decoder":
        found["decoder_layers"] = draw.randint(1, 3)
        found["embedding_scale"] = draw.choice(["on", "off"])
        found["tied"] = draw.choice(["all", "target", "none"]) if kind == "marian" else "all"
    elif kind != "qwen3":
        found["norm_eps"] = draw.choice([1e-12, 1e-6, 1e-5])
    if kind == "bert":
        found |= draw.choice([{}, {"classes": 3}, {"sentence_pairs": True}, {"masked_head": False}])
    return ModelConfig(**found)


def _draw_rotary(found, draw, kind):
    found["kv_heads"] = draw.choice([n for n in (0, 1, 2, 4) if not n or found["heads"] % n == 0])
    found["rotary_base"] = draw.choice([10000.0, 500.0])
    found["head_dim"] = draw.choice([0, 10]) if kind != "qwen2" else 0
    if kind in ("llama", "starcoder2"):
        found["bias"] = draw.choice([True, False])
    if (way := draw.choice(["none", "linear", "llama3"])) != "none":
        found |= {"rotary_scaling": way, "rotary_factor": 4.0}
        found |= {"rotary_length": 16} if way == "llama3" else {}


def write_run(path: Path, config, seed=0, kind="", tokens="bpe", **decode):
    """A run folder with a model off its start."""
    torch.manual_seed(seed)
    model = randomise(build(config), 0.3).float().eval()
    texts = "texts" if config.family != "encoder-decoder" else "pairs"
    data = DataConfig(kind=kind or ("labelled" if getattr(config, "classes", 0) else texts))
    recipe = Recipe("tiny", config, data, TokenizerConfig(kind=tokens, vocab=300), **decode)
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.write_recipe(write_recipe(recipe))
    tokenizer(tokens).save(run.tokenizer)
    if getattr(config, "classes", 0):
        run.write_json("classes.json", [f"class {i}" for i in range(config.classes)])
    weights = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    commit(run.finished / name_of(1), lambda folder: save_file(weights, folder / WEIGHTS))
    run.begin("tiny")
    return model
