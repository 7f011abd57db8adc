"""Does activation checkpointing make room, and does the plan of `limelight info` foretell it?

    python -m benchmarks.large_model             a GPT of 1.3 billion parameters on one GPU
    python -m benchmarks.large_model --quick     a tiny one: does it run at all?
    python -m benchmarks.large_model --masters --compile --precision bfloat16 fp8

One batch of 64 x 2,048 tokens, with each kind of checkpointing: whether it fits, the peak memory
beside the plan's, tokens/s, and the share of the rate of large matrix products in the same run; and
with several precisions, one after the other, the loss after the same few steps.
"""

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.training_speed import commit, make_batch, matrix_rate, median_seconds
from limelight.device import COMPILING, is_out_of_memory
from limelight.errors import FailedError
from limelight.model import ModelConfig, build
from limelight.model.layers import Layer
from limelight.recipe import Recipe
from limelight.run.folder import RunFolder
from limelight.training import distributed
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.objectives import LossModule
from limelight.training.trainer import MicroBatch, StepResult, Trainer, train_step
from limelight.workflows.info import multiply_adds
from limelight.workflows.plan import make_plan

LARGE = {"layers": 24, "d_model": 2048, "heads": 16, "vocab": 50_304, "max_len": 2048}
SMALL = {"layers": 2, "d_model": 32, "heads": 2, "vocab": 64, "max_len": 16}
SHAPE = {"norm_order": "pre", "positions": "learned", "activation": "gelu-tanh", "dropout": 0.0}


def measure(sizes: dict[str, int], rows: int, device: str, **train: Any) -> dict[str, Any]:
    """Seconds of a step and its peak memory; empty if it does not fit."""
    model = ModelConfig(family="decoder-only", **sizes, **SHAPE)  # type: ignore[arg-type]
    config = TrainConfig(label_smoothing=0.0, **train)
    half = "bfloat16" if device == "cuda" else "float32"
    torch.manual_seed(1)
    with torch.device(device):
        built = build(model)
    trainer = Trainer(
        loss_module=LossModule(built, 0.0, fp8=config.precision == "fp8"),
        batches=SimpleNamespace(batch_tokens=rows * model.max_len),  # type: ignore[arg-type]
        config=config,
        run=RunFolder(Path()),
        world=World(torch.device(device)),
        report=Report(console=Console(quiet=True)),
        d_model=model.d_model,
        length_range=(model.max_len, model.max_len),
        precision=half,
    )
    batch = make_batch(sizes, rows, model.max_len, device)
    steps: list[StepResult] = []
    try:
        seconds = median_seconds(
            lambda: steps.append(train_step(trainer, [MicroBatch(batch, 0, 1)])), device, 5
        )
    except (RuntimeError, FailedError) as error:
        if not (is_out_of_memory(error) or "out of memory" in str(error)):
            raise
        return {}
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    loss, _, _, tokens, *_ = steps[-1].numbers()
    return {"seconds": seconds, "peak_bytes": peak, "loss": loss / tokens}


def compile_layers(model: nn.Module, how: str) -> None:
    """As `checkpoint_layers` does, but compiled: one program serves all layers, in seconds."""
    program = torch.compile(Layer.forward, options=COMPILING)
    for part in model.modules():
        if isinstance(part, Layer):
            compiled: Any = partial(program, part)
            part.forward = (
                compiled if how == "off" else partial(checkpoint, compiled, use_reentrant=False)
            )


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Train with each kind of checkpointing in each precision."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes, rows = (SMALL, 2) if options.quick else (LARGE, options.rows)
    memory = torch.cuda.get_device_properties(0).total_memory / 1e9 if device == "cuda" else 141
    model = ModelConfig(family="decoder-only", **sizes, **SHAPE)  # type: ignore[arg-type]
    settings = {"master_weights": options.masters}
    tokens = rows * model.max_len
    recipe = Recipe("large", model, train=TrainConfig(**settings))
    plan = make_plan(recipe, tokens, 1, 1, memory)["bytes"]
    work = 6 * tokens * sum(sum(part.values()) for part in multiply_adds(model).values())
    rate = matrix_rate(device, 256 if options.quick else 8192)
    found: dict[str, Any] = {"commit": commit(), "torch": torch.__version__, "matrix_rate": rate}
    print(f"{rows} x {model.max_len} tokens, {memory:.0f} GB, products {rate / 1e12:.1f} TFLOP/s")
    kinds = ("layer", "off") if options.compile else ("layer", "selective", "off")
    for how, precision in product(kinds, options.precision):
        torch._dynamo.reset()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        given = {"activation_checkpointing": how, "precision": precision, **settings}
        ours = measure(sizes, rows, device, **given)
        found[f"{how}, {precision}"] = {**ours, "planned_bytes": plan[how]["total"]}
        planned = f"planned {plan[how]['total'] / 1e9:.1f} GB"
        if not ours:
            print(f"{how:10} {precision:8} out of memory, {planned}", flush=True)
            continue
        speed, share = tokens / ours["seconds"], work / ours["seconds"] / rate
        print(
            f"{how:10} {precision:8} {speed:,.0f} tokens/s, {share:.1%} of the rate of products, "
            f"peak {ours['peak_bytes'] / 1e9:.1f} GB, {planned}, loss {ours['loss']:.4f}",
            flush=True,
        )
    return found


def main() -> None:
    """Print a line for each kind of checkpointing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--compile", action="store_true", help="each layer, all by one program")
    parser.add_argument("--masters", action="store_true", help="train.master_weights")
    parser.add_argument("--precision", nargs="+", default=["auto"], help="bfloat16, fp8")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if options.compile:
        distributed.checkpoint_layers = compile_layers  # type: ignore[assignment]
    found = compare(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
