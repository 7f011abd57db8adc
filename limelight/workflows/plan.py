"""Does a training fit on these devices, what do they send each other, how long does a step take?

Rates are those that we measured on one NVIDIA H200 (benchmarks/results), and those of data sheets
for what one GPU cannot measure.
"""

from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import nn

from limelight.errors import UserError
from limelight.evaluate.tables import print_table
from limelight.model import ModelConfig, build_empty
from limelight.model.attention import Attention
from limelight.model.layers import Layer
from limelight.recipe import Recipe
from limelight.training.tensor_parallel import check_divisible
from limelight.workflows.info import multiply_adds, short, size_of, trained_parameters
from limelight.workflows.step_memory import activation_memory

_MATRIX_RATE = 800e12  # FLOP/s of bfloat16 products of 8192 x 8192 matrices: measured
# Of it, by d_model, compiled: the paper's base model (1,450,000 tokens/s at 512 x (32 + 32),
# 1,575,000 at 2,048), GPT-2 124M (540,000 at 32 x 1024) and BERT-base: measured, on 18 November.
_NARROW, _NARROW_SHARE = 512, 0.345
_WIDE, _WIDE_SHARE = 768, 0.57
_LAUNCH = 7e-6  # s until the processor has launched a kernel, however small: measured
_KERNELS = 58  # of a layer in a step: the paper's base model has some 700, compiled
_COLLECTIVE = 20e-6  # s until all have a message, however small: never measured here
_NVLINK, _NETWORK = 450e9, 50e9  # bytes/s that a GPU receives, in a machine and from others: sheets
_MACHINE = 8  # GPUs in a machine
_MEMORY = 141  # GB of an H200
_USABLE = 0.92  # of the memory: the rest is CUDA's own, and gaps between tensors
_FULL, _HALF = 4, 2  # bytes of float32 and bfloat16
_CHOICES = ("off", "selective", "layer")  # of activation checkpointing, the fastest first


def add_plan(
    facts: dict[str, Any], recipe: Recipe, batch_tokens: int, devices: int, tensor: int, memory: int
) -> dict[str, Any]:
    """The facts of `describe`, with a plan if it was asked for, and if there are many devices."""
    if not memory and tensor == 1 and (devices == 1 or not isinstance(recipe.model, ModelConfig)):
        return facts
    plan = make_plan(recipe, batch_tokens, devices, tensor, memory or _MEMORY)
    return {**facts, "plan": plan}


def make_plan(
    recipe: Recipe, batch_tokens: int, devices: int, tensor: int, memory: float
) -> dict[str, Any]:
    """Memory by part, traffic and time of a step in bfloat16, on each of these devices."""
    config = recipe.model
    if not isinstance(config, ModelConfig):
        raise UserError("--tp and --memory plan the training of Transformers: leave them out")
    if tensor < 1 or devices % tensor:
        raise UserError(f"--tp {tensor} must divide --devices {devices}")
    check_divisible(config, tensor)
    ranks, rows = devices // tensor, max(1, batch_tokens // config.max_len)
    # What a device has of every layer: some of the heads, and some of the units inside.
    local = replace(
        config,
        heads=config.heads // tensor,
        kv_heads=config.num_kv_heads // tensor,
        d_ff=config.ffn_dim // tensor,
        head_dim=config.d_head,
    )
    model = build_empty(local)
    choices = {
        how: _memory(recipe, model, local, rows, ranks, how, memory * 1e9) for how in _CHOICES
    }
    fits = [how for how in _CHOICES if choices[how]["total"] <= _USABLE * memory * 1e9]
    how = fits[0] if fits else _CHOICES[-1]
    sent, messages = _traffic(model, local, rows, ranks, tensor, how)
    layers = sum(isinstance(part, Layer) for part in model.modules())
    products, launches = _products(local, rows, how), layers * _KERNELS * _LAUNCH
    seconds = _seconds(max(products, launches), devices <= _MACHINE, sent, messages)
    return {
        "devices": devices,
        "tensor_parallel": tensor,
        "device_gb": memory,
        "tokens": rows * config.max_len,  # of each batch
        "batches": ranks,
        "bytes": choices,
        "activation_checkpointing": how if fits else None,  # the fastest that fits
        "received_bytes": sent,
        "seconds": seconds,
        "waits_for_launches": launches > products,
        "tokens_per_second": rows * config.max_len * ranks / seconds["step"],
    }


def _memory(
    recipe: Recipe,
    model: nn.Module,
    local: ModelConfig,
    rows: int,
    ranks: int,
    how: str,
    available: float,
) -> dict[str, int]:
    size = size_of(model)
    layers = [size_of(part) for part in model.modules() if isinstance(part, Layer)]
    total, trained = trained_parameters(recipe)
    held = size // ranks
    moved = int(held * trained / total)
    rest, layer = size - sum(layers), max(layers)
    # What is in no layer is gathered for the whole step, and with the layer that computes the next
    # one is on its way; the largest gradient waits to be summed in float32.
    gathered = _HALF * (rest + 2 * layer) + (_HALF + _FULL) * max(rest, layer)
    masters, offloaded = recipe.train.master_weights, recipe.train.offload_optimizer
    cast = "bfloat16" if masters or ranks > 1 else "autocast"
    kept, peak = activation_memory(local, rows, how, cast)
    states = rows * local.max_len * local.d_model * _FULL
    # The loss has some logits, of up to ten bytes, and the gradients of states and classifier.
    logits = min(available / 256, rows * local.max_len * local.vocab) * 10
    at_loss = kept + int(logits) + states + local.vocab * local.d_model * _FULL
    parts = {
        "weights": (_HALF if masters else _FULL) * held,
        "gradients": _FULL * moved,
        "optimizer": 0 if offloaded else (3 if masters else 2) * _FULL * moved,
        "gathered weights": gathered if ranks > 1 else 0,
        "activations": kept,
        "loss, backward pass": max(peak, at_loss) - kept,
    }
    return {**parts, "total": sum(parts.values())}


def _traffic(
    model: nn.Module, local: ModelConfig, rows: int, ranks: int, tensor: int, how: str
) -> tuple[dict[str, int], tuple[int, int]]:
    """Bytes that each device receives in a step with one batch, and in how many messages."""
    # Weights are gathered for both passes in bfloat16, gradients scattered in float32.
    shards = (2 * _HALF + _FULL) * size_of(model) * (ranks - 1) // ranks
    states = _HALF * rows * local.max_len * local.d_model
    attentions = sum(isinstance(part, Attention) for part in model.modules())
    layers = sum(isinstance(part, Layer) for part in model.modules())
    # A sum of all devices' results ends a sub-layer, and one of gradients of what it has read:
    # cross-attention reads two things. What is not kept is summed again.
    forward = attentions + layers
    backward = forward + sum(hasattr(part, "cross_attention") for part in model.modules())
    sums = (forward if how == "off" else 2 * forward) + backward
    received = {
        "weights and gradients (FSDP)": shards,
        "sums of sub-layers (tensor parallel)": sums * 2 * states * (tensor - 1) // tensor,
    }
    return received, (3 * (layers + 1) * (ranks > 1), sums * (tensor > 1))


def _products(local: ModelConfig, rows: int, how: str) -> float:
    """Seconds of a step's matrix products, which the rest of the work of its width accompanies."""
    products = sum(sum(work.values()) for work in multiply_adds(local).values())
    passes = 4 if how == "layer" else 3  # forward, twice as much backward, and forward again
    flops = 2 * passes * products * rows * local.max_len
    return flops / (_MATRIX_RATE * training_share(local.d_model))


def training_share(d_model: int) -> float:
    """Of the rate of large matrix products: between what was measured on a line, below in ratio."""
    if d_model <= _NARROW:
        return _NARROW_SHARE * d_model / _NARROW
    part = (min(d_model, _WIDE) - _NARROW) / (_WIDE - _NARROW)
    return _NARROW_SHARE + part * (_WIDE_SHARE - _NARROW_SHARE)


def _seconds(
    computing: float, near: bool, received: dict[str, int], messages: tuple[int, int]
) -> dict[str, float]:
    """Computing, waiting for sums, and for weights as far as they come later than needed."""
    shards, sums = received.values()
    sending = shards / (_NVLINK if near else _NETWORK) + messages[0] * _COLLECTIVE
    summing = sums / _NVLINK + messages[1] * _COLLECTIVE
    late = max(0.0, sending - computing)
    return {
        "computing": computing,
        "waiting for sums": summing,
        "waiting for weights": late,
        "step": computing + summing + late,
    }


def show_plan(facts: dict[str, Any], console: Console) -> None:
    """Print the plan, if there is one, as tables that fit 80 columns, and what to set."""
    if (plan := facts.get("plan")) is None:
        return
    parts = [part for part in plan["bytes"]["off"] if any(c[part] for c in plan["bytes"].values())]
    rows = [(part, *(short(c[part], "B") for c in plan["bytes"].values())) for part in parts]
    devices, tensor = plan["devices"], plan["tensor_parallel"]
    where = f"on each of {devices:,} devices" if devices > 1 else "on one device"
    if tensor > 1:
        where = f"on every {tensor} of {devices:,} devices"
    batch = f"{plan['tokens']:,} tokens {where}"
    console.print(Text(f"training in bfloat16, {batch}, by activation checkpointing:"))
    print_table(console, ["each device", *plan["bytes"]], rows)
    how = plan["activation_checkpointing"]
    size = f"{plan['device_gb']:g} GB"
    if how is None:
        console.print(f"does not fit into {size}: fewer --batch-tokens, more --devices or --tp")
        return
    words = [f"--train.activation-checkpointing {how}"] if how != "off" else []
    words += ["--train.fsdp"] if plan["batches"] > 1 else []
    words += [f"--train.tensor-parallel {tensor}"] * (tensor > 1)
    console.print(Text(f"fits into {size}{' with ' if words else ''}{' '.join(words)}"))
    rows = [(f"receives: {k}", short(n, "B")) for k, n in plan["received_bytes"].items() if n]
    rows += [(k, f"{s:.3g} s") for k, s in plan["seconds"].items() if s]
    rows.append(("tokens/s, all devices", f"{plan['tokens_per_second']:,.0f}"))
    print_table(console, ["a step, at the rates of an H200", ""], rows)
    if plan["waits_for_launches"]:
        console.print(
            "computing is waiting for kernels to be launched, so a larger batch takes no longer "
            "(no step as small was measured)"
        )
