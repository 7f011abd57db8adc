"""What each change to GPT-2's recipe brings in tokens and in time: a table, three seeds a row.

    python -m benchmarks.speedrun --tokens stories.npz --results speedrun.json
    python -m benchmarks.speedrun --quick          tiny models on random tokens: does it run?

A small GPT reads public-domain stories for 500 steps, with a validation every 25. The
first rows follow one another; those with a plus each add one thing to the row before them all, and
the last adds everything. A row's number is how many tokens it needs for the loss that the first
row has at its end. Rows are processes: some compile while one trains, and only one trains at a
time; its seconds are those of a median stretch between validations, times all stretches. Runs that
the results already hold are not done again.

The tokens are two arrays of 16 bits, `train` and `valid`; --make builds them from two text files,
such as those of the corpus `stories`.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.data.datasets import LMBatch
from limelight.device import COMPILING
from limelight.model import ModelConfig, build
from limelight.model.layers import Layer
from limelight.model.positions import rotation
from limelight.run.folder import RunFolder
from limelight.training import loss as losses
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.objectives import LossModule
from limelight.training.trainer import MicroBatch, Trainer, train_step

SIZES = {"vocab": 8000, "layers": 6, "d_model": 384, "heads": 6, "max_len": 512}
TINY = {"vocab": 64, "layers": 2, "d_model": 16, "heads": 2, "max_len": 16}
ROWS, STEPS, EVERY, VALID_ROWS, SEEDS = 32, 500, 25, 128, 3
AT_ONCE, WARMUP = 6, 3  # processes; steps in which a run compiles and captures, beside others
GPT2: dict[str, Any] = {
    "family": "decoder-only",
    "norm_order": "pre",
    "positions": "learned",
    "activation": "gelu-tanh",
    "dropout": 0.0,
}
TRAIN: dict[str, Any] = {
    "label_smoothing": 0.0,
    "schedule": "cosine",
    "learning_rate": 6e-4,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip_grad_norm": 1.0,
}
Part = tuple[dict[str, Any], dict[str, Any], list[Callable[[Any], None]]]  # model, training, others


def square_relu(module: LossModule) -> None:
    """ReLU squared in the feed-forward layers (So et al. 2021)."""
    for layer in layers_of(module):
        layer.feed_forward.activate = lambda x: F.relu(x).square()


def zero_outputs(module: LossModule) -> None:
    """Layers add nothing at first."""
    for layer in layers_of(module):
        for linear in (layer.self_attention.output, layer.feed_forward.outer):
            nn.init.zeros_(linear.weight)


def cap_logits(module: LossModule, most: float = 15.0) -> None:
    """Logits are pressed between -15 and 15 (Gemma 2)."""

    def chunk(logits: Tensor, labels: Tensor, **settings: Any) -> tuple[Tensor, Tensor | None]:
        pressed = (logits.float() / most).tanh()
        sums, grad = losses.cross_entropy_chunk_functional(pressed * most, labels, **settings)
        return sums, None if grad is None else (grad * (1 - pressed**2)).to(logits.dtype)

    module.loss.keywords["chunk_loss"] = torch.compile(chunk, options=COMPILING)


def add_skips(module: LossModule) -> None:
    """Each layer also reads the embeddings, as much of them as it learns to want."""
    stack: Any = module.model.decoder
    stack.skips = nn.Parameter(torch.zeros(len(stack.layers)))

    def forward(x: Tensor, positions: Tensor, mask: Any = None, causal: bool = False) -> Tensor:
        rope = rotation(positions, stack.config, x.dtype) if stack.rotary else None
        first = x
        for layer, skip in zip(stack.layers, stack.skips, strict=True):
            x = layer(x + skip * first, mask, causal, rope)
        return stack.norm(x)

    stack.forward = forward


def layers_of(module: LossModule) -> Iterator[Any]:
    return (part for part in module.modules() if isinstance(part, Layer))


LADDER: dict[str, Part] = {
    "GPT-2": ({}, {}, []),
    "rotary, RMS norm, no biases": (
        {"positions": "rotary", "norm": "rms", "bias": False},
        {},
        [],
    ),
    "learning rate 0.003": ({}, {"learning_rate": 3e-3}, []),
    "warm-up, stable, decay": ({}, {"schedule": "wsd"}, []),
    "Muon": ({}, {"optimizer": "muon"}, []),
}
EXTRAS: dict[str, Part] = {
    "QK-norm": ({"qk_norm": True}, {}, []),
    "ReLU squared": ({}, {}, [square_relu]),
    "outputs zero at first": ({}, {}, [zero_outputs]),
    "logits capped at 15": ({}, {}, [cap_logits]),
    "embedding skips": ({}, {}, [add_skips]),
    "tables untied": ({"tied": "none"}, {}, []),
}
NUMBERS: dict[str, Part] = {
    "bfloat16 weights": ({}, {"master_weights": True}, []),
    "bfloat16 weights, fp8 classifier": ({}, {"master_weights": True, "precision": "fp8"}, []),
}
GRID = {"learning rate 0.003": (1.5e-3, 6e-3), "Muon": (1.5e-3, 6e-3)}  # one seed each


def table_rows() -> dict[str, Part]:
    """All settings of each row."""
    rows: dict[str, Part] = {}
    model, train, others = dict(GPT2), dict(TRAIN), list[Any]()
    for name, part in LADDER.items():
        model, train = model | part[0], train | part[1]
        rows[name] = (model, train, others)
    for name, part in (EXTRAS | NUMBERS).items():
        rows[f"+ {name}"] = (model | part[0], train | part[1], others + part[2])
    for part in EXTRAS.values():
        model, train, others = model | part[0], train | part[1], others + part[2]
    rows["+ all of these"] = (model, train, others)
    return rows


def runs_of(row: str) -> Iterator[tuple[str, int, dict[str, float]]]:
    """The runs of a row: a key, the seed and what is changed."""
    for seed in range(1, SEEDS + 1):
        yield f"{row}/{seed}", seed, {}
    for rate in GRID.get(row, ()):
        yield f"{row}/1/{rate}", 1, {"learning_rate": rate}


def make_trainer(
    part: Part, sizes: dict[str, int], seed: int, steps: int, device: str, **changes: Any
) -> Trainer:
    """A trainer of our own loop, with the settings of a row."""
    model, train, others = part
    torch.manual_seed(seed)
    settings = train | {"steps": steps, "warmup": steps // 10, "seed": seed} | changes
    config = TrainConfig(compile=device == "cuda", **settings)
    shape: dict[str, Any] = sizes | model
    built: Any = build(ModelConfig(**shape))
    module = LossModule(built, 0.0, config.compile, fp8=config.precision == "fp8")
    for change in others:
        change(module)
    return Trainer(
        loss_module=module,
        batches=None,  # type: ignore[arg-type]
        config=config,
        run=RunFolder(Path()),
        world=World(torch.device(device)),
        report=Report(console=Console(quiet=True)),
        d_model=sizes["d_model"],
        length_range=(sizes["max_len"], sizes["max_len"]),
        precision="bfloat16" if device == "cuda" else "float32",
    )


def blocks_of(tokens: NDArray[Any], width: int, count: int, seed: int) -> Tensor:
    """So many blocks in random order: an epoch, and more if there are too few."""
    every = len(tokens) // width
    draw = np.random.default_rng(seed)
    order = np.concatenate([draw.permutation(every) for _ in range(-(-count // every))])[:count]
    return torch.from_numpy(tokens[: every * width].reshape(every, width)[order].astype(np.int64))


def as_batch(blocks: Tensor, device: str) -> LMBatch:
    blocks = blocks.to(device, non_blocking=True)
    return LMBatch(0, torch.arange(len(blocks)), blocks, None, torch.ones_like(blocks).bool())


@torch.no_grad()
def valid_loss(trainer: Trainer, batches: list[LMBatch]) -> float:
    """Nats per token on books that are not learned from."""
    module, device = trainer.loss_module.eval(), trainer.world.device
    with torch.autocast(device.type, torch.bfloat16, trainer.precision == "bfloat16"):
        sums = [module(batch) for batch in batches]
    return float(sum(s.nll for s in sums) / sum(s.total for s in sums))


def run(
    part: Part,
    tokens: Any,
    sizes: dict[str, int],
    seed: int,
    steps: int,
    device: str,
    turn: AbstractContextManager[Any],
    **changes: Any,
) -> dict[str, Any]:
    """Train once; the loss after every few steps, and seconds without those of validation."""
    trainer = make_trainer(part, sizes, seed, steps, device, **changes)
    width, every = sizes["max_len"] + 1, max(1, steps * EVERY // STEPS)
    blocks = blocks_of(tokens["train"], width, ROWS * steps, seed)
    held: Any = blocks_of(tokens["valid"], width, VALID_ROWS, 0)
    valid = [as_batch(some, device) for some in held.split(ROWS * 2)]

    def train(begin: int, end: int) -> None:
        for step in range(begin, end):
            batch = as_batch(blocks[step * ROWS : (step + 1) * ROWS], device)
            last = train_step(trainer, [MicroBatch(batch, 0, step + 1)])
        last.numbers()

    curve, spent, ready = [], [], min(WARMUP, every - 1)
    if ready:
        train(0, ready)
    with turn:
        for begin in range(0, steps, every):
            end, began = min(begin + every, steps), time.perf_counter()
            train(max(begin, ready), end)
            spent.append((time.perf_counter() - began) / (end - max(begin, ready)))
            curve.append((end * ROWS * (width - 1), valid_loss(trainer, valid)))
    return {"curve": curve, "seconds": round(statistics.median(spent) * steps, 2)}


def work(queue: Any, turn: Any, row: str, runs: list[Any], tokens: Any, *how: Any) -> None:
    """All runs of a row."""
    sizes, steps, device = how
    torch.set_float32_matmul_precision("high")
    for key, seed, changes in runs:
        settings = (table_rows()[row], tokens, sizes, seed, steps, device, turn)
        try:
            queue.put((key, run(*settings, **changes)))
        except Exception as error:
            print(f"{key}: {traceback.format_exc()[-1500:]}", file=sys.stderr, flush=True)
            queue.put((key, {"error": f"{type(error).__name__}: {error}"[:300]}))
    queue.put(None)


def run_all(rows: list[str], tokens: Any, results: dict[str, Any], save: Any, *how: Any) -> None:
    """What is missing in the results, each row in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    queue, turn = spawn.Queue(), spawn.Lock()
    missing = {
        row: [one for one in runs_of(row) if "curve" not in results.get(one[0], {})] for row in rows
    }
    waiting = [(row, runs) for row, runs in missing.items() if runs]
    busy = 0
    while waiting or busy:
        while waiting and busy < AT_ONCE:
            how_row = (queue, turn, *waiting.pop(0), tokens, *how)
            spawn.Process(target=work, args=how_row, daemon=True).start()
            busy += 1
        if (found := queue.get()) is None:
            busy -= 1
            continue
        key, results[key] = found
        save()
        if "curve" in results[key]:
            loss, seconds = results[key]["curve"][-1][1], results[key]["seconds"]
            print(f"{key:44} {loss:.4f} {seconds:6.1f} s", flush=True)


def tokens_to(curve: list[Any], loss: float) -> float:
    """How many tokens until the loss is reached, between two validations in proportion."""
    before = (0.0, math.inf)
    for tokens, found in curve:
        if found <= loss:
            share = 1.0 if before[1] == math.inf else (before[1] - loss) / (before[1] - found)
            return before[0] + share * (tokens - before[0])
        before = (tokens, found)
    return math.inf


def show(results: dict[str, Any]) -> None:
    """The table."""
    rows = {}
    for row in table_rows():
        keys = [f"{row}/{seed}" for seed in range(1, SEEDS + 1)]
        rows[row] = [results[key] for key in keys if "curve" in results.get(key, {})]
    first = next(iter(rows.values()))
    if not first:
        print("the first row is missing")
        return
    goal = statistics.mean(one["curve"][-1][1] for one in first)
    print(f"\ngoal: a validation loss of {goal:.4f} nats per token, the first row's at its end")
    print(f"{'':36}{'loss at the end':>20}{'M tokens':>14}{'share':>10}{'seconds':>10}")
    for row, runs in rows.items():
        if not runs:
            continue
        ends = [one["curve"][-1][1] for one in runs]
        middle = [
            (points[0][0], statistics.mean(loss for _, loss in points))
            for points in zip(*(one["curve"] for one in runs), strict=True)
        ]
        share = tokens_to(middle, goal) / middle[-1][0]
        seconds = share * statistics.mean(one["seconds"] for one in runs)
        print(
            f"{row:36}{statistics.mean(ends):10.4f} +- {spread(ends):.4f}"
            f"{share * middle[-1][0] / 1e6:14.3f}{share:10.1%}{seconds:10.1f}"
        )


def spread(values: list[float]) -> float:
    """The standard deviation, 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def make_tokens(train: Path, valid: Path, file: Path, vocab: int) -> None:
    """Tokenize text files with a tokenizer that is learned from the first."""
    from limelight.data.tokenizer import Tokenizer

    texts = [file.read_text(encoding="utf-8").split("\n") for file in (train, valid)]
    lines = [[line for line in text if line] for text in texts]
    tokenizer = Tokenizer.train("bpe", lines[0][::8], vocab)
    ids = [
        np.array(
            [i for text in tokenizer.encode_many(some) for i in [*text, tokenizer.end]], np.uint16
        )
        for some in lines
    ]
    np.savez_compressed(file, train=ids[0], valid=ids[1])


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=Path, help="an .npz file with `train` and `valid`")
    parser.add_argument("--make", type=Path, nargs=2, help="build it from these text files")
    parser.add_argument("--results", type=Path, help="a .json file, read and written")
    parser.add_argument("--rows", nargs="+", choices=table_rows(), default=[*table_rows()])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    options = parser.parse_args()
    if options.make:
        train, valid = options.make
        make_tokens(train, valid, options.tokens, SIZES["vocab"])
        return
    if options.tokens and not options.tokens.is_file():
        parser.error(f"--tokens {options.tokens}: no such file; --make TRAIN VALID builds it")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes, steps = (TINY, 20) if options.quick else (SIZES, options.steps)
    if options.tokens:
        with np.load(options.tokens) as file:
            tokens = {name: file[name] for name in ("train", "valid")}
    else:
        draw = np.random.default_rng(1)
        tokens = {
            name: draw.integers(5, 64, 20_000).astype(np.uint16) for name in ("train", "valid")
        }
    results: dict[str, Any] = {}
    if options.results and options.results.is_file():
        results = json.loads(options.results.read_text())

    def save() -> None:
        if options.results:
            options.results.write_text(json.dumps(results))

    run_all(options.rows, tokens, results, save, sizes, steps, device)
    show(results)


if __name__ == "__main__":
    main()
