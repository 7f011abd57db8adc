"""`limelight info`: parameters, MACs and memory, counted on the model itself.

It is built on torch's meta device, where tensors have shapes and no numbers, so that even GPT-3
takes no memory. Forward passes count the MACs, and the activations that a backward pass needs: of
a few layers, or of short texts where a network loops over them, since the rest follows exactly.
"""

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from itertools import pairwise
from math import comb
from typing import Any, cast

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from limelight.errors import UserError
from limelight.evaluate.tables import print_table
from limelight.model import AnyConfig, ModelConfig, RecurrentConfig, build_empty
from limelight.model.attention import Attention, fused_attention
from limelight.model.count import count_parameters
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.layers import Layer
from limelight.model.recurrent import RecurrentDecoderOnly, RecurrentEncoderDecoder
from limelight.model.stack import Embedding
from limelight.recipe import Recipe, toml
from limelight.training.lora import count_trained, prepare_finetuning
from limelight.workflows.step_memory import activation_memory

_FLOAT = 4  # bytes of a float32
_SELDOM = (  # settings that published models have; shown where they differ from the defaults
    *("source_vocab", "decoder_layers", "head_dim", "embedding_scale", "tied"),
    *("rotary_base", "rotary_scaling", "rotary_factor", "rotary_low", "rotary_high"),
    "rotary_length",
)
_EXPERIMENTS = {  # what a setting takes away; but for `mask`, decoding then has no accelerator
    "positions": "nothing says where a token stands",
    "norm": "nothing keeps the numbers in a steady range",
    "scaling": "attention scores are not divided by sqrt(d_k)",
    "mask": "training shows the decoder the tokens it has to predict; generating cannot",
    "residual": "each sub-layer replaces its input instead of adding to it",
    "decoder_cell": "a recurrent cell replaces the decoder's masked self-attention",
}


def describe(recipe: Recipe, batch_tokens: int = 0, devices: int = 1) -> dict[str, Any]:
    """Everything `limelight info` shows, as plain data."""
    config = recipe.model
    if not 1 <= devices <= 1_000_000:
        raise UserError(f"--devices {devices} is out of range: 1 to 1000000")
    if batch_tokens and not config.max_len <= batch_tokens <= 2**32:
        raise UserError(
            f"--batch-tokens {batch_tokens} is out of range: from one full-length text, "
            f"max_len={config.max_len}, to {2**32}"
        )
    stated = asdict(config)
    if isinstance(config, ModelConfig) and recipe.data.kind == "labelled" and not config.classes:
        config = replace(config, classes=2)  # training counts them
        recipe = replace(recipe, model=config)
    model = build_empty(config)
    parts, settled = count_parameters(model), {}
    if isinstance(config, ModelConfig):
        settled = {"d_ff": config.ffn_dim, "kv_heads": config.num_kv_heads}
    cache = extrapolate(_count_cache, config, config.max_len)
    return {
        "name": recipe.name,
        "about": recipe.about,
        "model": stated | settled,
        "experiments": config.experiments if isinstance(config, ModelConfig) else {},
        "parameters": sum(parts.values()),
        "parts": parts,
        "trained_parameters": trained_parameters(recipe)[1],
        "published": asdict(recipe.published) if recipe.published else None,
        "multiply_adds_per_token": multiply_adds(config),
        "training_bytes": training_memory(recipe, batch_tokens, devices),
        # In float32: the weights, and a full-length KV cache of one text.
        "decoding_bytes": {"weights": _FLOAT * size_of(model), **cache},
    }


def _texts(config: AnyConfig, rows: int, length: int) -> list[Tensor]:
    tokens = torch.zeros(rows, length, dtype=torch.long, device="meta")
    return [tokens, tokens] if config.family.endswith("encoder-decoder") else [tokens]


def extrapolate(
    count: Callable[[nn.Module, int], dict[str, int]], config: AnyConfig, length: int
) -> dict[str, int]:
    """`count(model, length)`, exactly, without a deep model or a loop over a long text.

    Transformers repeat a layer, so that counts are affine in the number of layers. Recurrent models
    have one pass per token and compare pairs of them: counts are quadratic in the length.
    """
    if isinstance(config, RecurrentConfig):
        model = build_empty(config)
        if length <= 4:
            return count(model, length)
        return _newton([count(model, n) for n in (2, 3, 4)], length - 2)
    models = [build_empty(replace(config, layers=n)) for n in (1, 2)]
    return _newton([count(model, length) for model in models], config.layers - 1)


def _newton(values: list[dict[str, int]], n: int) -> dict[str, int]:
    """The value at n of the polynomials with these values at 0, 1, ..., by Newton's differences."""
    result = dict.fromkeys(values[0], 0)
    for k in range(len(values)):
        result = {part: total + comb(n, k) * values[0][part] for part, total in result.items()}
        values = [{p: b[p] - a[p] for p in a} for a, b in pairwise(values)]
    return result


def multiply_adds(config: AnyConfig) -> dict[str, dict[str, int]]:
    """MACs of one token of a full-length text, by part: with the weights, and between positions.

    The second grow with the length. All pairs of positions count, masked ones too: a plain kernel
    computes them. An encoder-decoder reads one source and one target token here.
    """
    long, short = config.max_len, max(1, config.max_len // 2)
    full, half = (extrapolate(_count_work, config, length) for length in (long, short))
    by_part = {}
    for part in full:
        work, before = full[part] // long, half[part] // short
        grows = (work - before) * long // (long - short) if long > short else 0
        grows = max(0, grows)  # what is done once for a text takes less of each token
        by_part[part] = {"weights": work - grows, "positions": grows}
    return by_part


def _count_work(model: nn.Module, length: int) -> dict[str, int]:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*_texts(cast(AnyConfig, model.config), 1, length))
    root, work = type(model).__name__, dict[str, int]()
    for path, flops in counter.get_flop_counts().items():
        parent, _, part = path.rpartition(".")
        if parent == root and flops:
            work[part] = sum(flops.values())
    # Additive attention makes its keys once per source, outside the pass through its module.
    if keys := counter.get_total_flops() - sum(work.values()):
        work["attention"] += keys
    return {part: flops // 2 for part, flops in work.items()}  # MACs are FLOPs / 2


def trained_parameters(recipe: Recipe) -> tuple[int, int]:
    """How many parameters there are while it trains, with adapters, and how many are trained."""
    model = build_empty(recipe.model)
    prepare_finetuning(model, recipe.train)
    return count_trained(model)


def training_memory(recipe: Recipe, batch_tokens: int, devices: int = 1) -> dict[str, int]:
    """Bytes per device in float32 with Adam, whose state is sharded over all devices (FSDP)."""
    config, (total, trained) = recipe.model, trained_parameters(recipe)
    model = build_empty(config)
    rows = max(1, batch_tokens // config.max_len)
    tokens = rows * config.max_len
    units: list[nn.Module] = [m for m in model.modules() if isinstance(m, Layer | Embedding)]

    def count(model: nn.Module, length: int) -> dict[str, int]:
        activations, logits = kept_for_backward(model, _texts(config, rows, length))
        return {"activations": activations, "logits": logits}

    kept = extrapolate(count, config, config.max_len)
    how = recipe.train.activation_checkpointing
    if how != "off" and isinstance(config, ModelConfig):
        kept["activations"] = activation_memory(config, rows, how, "float32")[1]
    adam = 0 if recipe.train.offload_optimizer else 2 * _FLOAT * trained  # two averages
    memory = {
        "weights": _FLOAT * total // devices,
        "gradients": _FLOAT * trained // devices,
        "optimizer": adam // devices,
        # While a sharded layer computes it is gathered, and the next one is on its way.
        "gathered layers": 2 * _FLOAT * max(map(size_of, units or [model])) if devices > 1 else 0,
        "activations": kept["activations"],
        "logits": 3 * kept["logits"],  # the logits, their softmax and their gradient, all at once
    }
    return {"devices": devices, "tokens": tokens, **memory, "total": sum(memory.values())}


def size_of(module: nn.Module) -> int:
    """The parameters of a module, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


class _FusedAttention(torch.autograd.Function):
    """Saves what the fused kernel saves: inputs and output, never the T x S weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, output)
        return output


def _keep_as_fused(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return _FusedAttention.apply(q, k, v)  # type: ignore[no-untyped-call]


def kept_for_backward(model: nn.Module, tokens: list[Tensor]) -> tuple[int, int]:
    """Bytes of the activations saved for the backward pass, and of the logits."""
    kept = {}
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return value

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.attend = _keep_as_fused
    with saved_tensors_hooks(keep, lambda value: value):
        logits: Tensor = model.train()(*tokens)
    for attention in attentions:
        attention.attend = fused_attention
    return sum(storage.nbytes() for storage in kept.values()), logits.nbytes


def _count_cache(model: nn.Module, length: int) -> dict[str, int]:
    if isinstance(model, EncoderDecoder | RecurrentEncoderDecoder):
        state = model.start(_texts(model.config, 1, length)[0])
    elif isinstance(model, DecoderOnly | RecurrentDecoderOnly):
        state = model.start(1)
    else:
        return {}
    return {"cache of one text": _count_bytes(vars(state))}


def _count_bytes(value: object) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(_count_bytes, value)) if isinstance(value, list | tuple) else 0


def show(facts: dict[str, Any], console: Console) -> None:
    """Print the facts as tables that fit 80 columns."""
    console.print(Text(facts["name"], "bold") + Text(f"  {facts['about']}", "not bold"))
    open_ones = {f.name: f.default for f in fields(ModelConfig) if f.name in _SELDOM}
    sizes = {k: v for k, v in facts["model"].items() if not isinstance(v, bool)}
    sizes = {k: v for k, v in sizes.items() if k not in open_ones or v != open_ones[k]}
    sizes.pop("decoder_cell", None)  # an experiment, below
    shape = ", ".join(f"{k} {v}" for k, v in sizes.items())
    console.print(Text(shape, "dim"))
    for name, value in facts["experiments"].items():
        console.print(Text(f"experiment: {name} = {toml(value)}: {_EXPERIMENTS[name]}", "yellow"))
    if certificate := facts.get("certificate"):
        show_certificate(certificate, console)
    elif facts.get("trained"):
        _show_trained(facts["trained"], console)
    rows = [(part, f"{n:,}") for part, n in facts["parts"].items()]
    rows.append(("total", f"{facts['parameters']:,}"))
    if (trained := facts["trained_parameters"]) != facts["parameters"]:
        rows.append(("trained", f"{trained:,}"))
    print_table(console, ["parameters", ""], rows)
    if theirs := facts["published"]:
        ours, said = short(facts["parameters"]), short(theirs["parameters"])
        console.print(Text(f"counted {ours}, published {said} ({theirs['source']})"))
        if theirs["difference"]:
            console.print(Text(theirs["difference"].strip(), "dim"))
    work = dict(facts["multiply_adds_per_token"])
    work["total"] = {kind: sum(v[kind] for v in work.values()) for kind in ("weights", "positions")}
    length = facts["model"]["max_len"]
    heads = ["MACs per token", "with weights", f"with {length} positions"]
    print_table(console, heads, [(k, *map(short, v.values())) for k, v in work.items()])
    training, decoding = dict(facts["training_bytes"]), facts["decoding_bytes"]
    devices, tokens = training.pop("devices"), training.pop("tokens")
    where = f"each of {devices} devices" if devices > 1 else "one device"
    rows = [(k, short(n, "B")) for k, n in training.items() if n]
    if "plan" not in facts:  # which says it of bfloat16, with tensor parallelism
        print_table(console, [f"training in float32, a batch of {tokens:,} tokens", where], rows)
    print_table(
        console, ["decoding in float32", ""], [(k, short(n, "B")) for k, n in decoding.items()]
    )


def show_certificate(facts: dict[str, Any], console: Console, done: str = "imported") -> None:
    """How far a model is from the same one in another library; anybody may have edited the file."""
    try:
        if facts["compared"] == "nothing":
            text = f"{done}; its numbers were not compared: {facts['why']}"
        else:
            packages = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
            ids = f"; the ids of {facts['texts']} texts are equal" if facts["texts"] else ""
            text = (
                f"{done}; at most {facts['largest_difference']:.1e} from {facts['compared']}, "
                f"in numbers of up to {facts['largest_value']:.3g} at {facts['tokens']} positions"
                f"{ids} ({packages})"
            )
    except (KeyError, TypeError, ValueError, AttributeError):
        text = f"{done}; its certificate.json cannot be read"
    console.print(Text(text))


def _show_trained(trained: dict[str, Any], console: Console) -> None:
    last, best = trained["last"], trained["best_validation"]
    if bad := trained["unreadable"]:
        console.print(f"lines of log.jsonl that cannot be read: {bad:,}")
    if last is None:
        console.print("not trained yet")
        return
    text = f"trained for {last['step']:,} steps, {last['tokens']:,} tokens, loss {last['loss']:.4f}"
    if best is not None:
        text += f"; best validation {best['loss']:.4f} at step {best['step']:,}"
    console.print(Text(text))


def short(number: float, unit: str = "") -> str:
    """Three digits and a letter: 65.1M, 2.8TB."""
    letters = ["", "k", "M", "G" if unit else "B", "T"]
    power = 0
    while number >= 999.5 and power < len(letters) - 1:
        number, power = number / 1000, power + 1
    digits = f"{number:.3g}" if number < 100 else f"{number:.0f}"
    return f"{digits}{letters[power]}{unit}"
