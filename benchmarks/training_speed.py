"""How fast a training step is, beside other people's models on the same work, in the same run.

    make bench                                       on whatever this machine has
    python benchmarks/training_speed.py --help

Ours is the step of `limelight train` itself, with its checks, clipping and scores; theirs a bare
loop with the same optimizer. Label smoothing is 0.1 for translation. The contestants take turns,
and each one's median round counts. On a GPU in bfloat16, eager and compiled; on a CPU in float32,
eager.

Most cases are full batches without padding, one batch to a round, and tokens are all positions
read. In the ragged case a round is an epoch of pairs about as long as those of Multi30k, and only
what is no padding counts. Each has batches of at most so many tokens on a side, made of pairs of
like length: ours as `limelight train` makes them, theirs as short as their longest text.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.data.batching import BatchPlan, EpochPlan
from limelight.data.datasets import LMBatch, Rows, Seq2SeqBatch
from limelight.model import ModelConfig, build
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.objectives import LossModule, to_device
from limelight.training.trainer import MicroBatch, Trainer, train_step

S = {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "vocab": 8000}
BASE = {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "vocab": 32_000}
GPT2 = {"layers": 12, "d_model": 768, "heads": 12, "vocab": 50_304, "max_len": 1024}
RAGGED_PAIRS, RAGGED_TOKENS = 29_000, 4096  # as Multi30k; on each side of a batch
CASES: dict[str, tuple[dict[str, int], int, int]] = {  # sizes, rows, length; 0 for ragged pairs
    "S, 32 x (32 + 32)": (S, 32, 32),
    "S, 64 x (32 + 32)": (S, 64, 32),
    "base, 512 x (32 + 32)": (BASE, 512, 32),
    "base, 2048 x (32 + 32)": (BASE, 2048, 32),
    "base, ragged pairs": (BASE, RAGGED_PAIRS, 0),
    "GPT-2 124M, 32 x 1024": (GPT2, 32, 1024),
}
Step = Callable[[Any], Any]  # on a batch
Contestant = tuple[Step, list[Any]]


class TorchTransformer(nn.Module):
    """torch's own encoder-decoder, with an embedding and a tied classifier around it."""

    def __init__(self, vocab: int, layers: int, d_model: int, d_ff: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_model)
        self.positions = nn.Embedding(512, d_model)
        self.core = nn.Transformer(
            d_model, heads, layers, layers, d_ff, dropout=0.1, batch_first=True
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions.weight[: tokens.size(1)]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        x = self.core(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return F.linear(x, self.tokens.weight)


class Marian(nn.Module):
    """Hugging Face's encoder-decoder."""

    def __init__(self, vocab: int, layers: int, d_model: int, d_ff: int, heads: int) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        both = {
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in {"layers": layers, "ffn_dim": d_ff, "attention_heads": heads}.items()
        }
        config = MarianConfig(
            vocab_size=vocab, d_model=d_model, pad_token_id=0, decoder_start_token_id=0, **both
        )
        self.core = MarianMTModel(config)

    def forward(self, source: Tensor, target: Tensor, real: Tensor | None = None) -> Tensor:
        return self.core(
            input_ids=source, attention_mask=real, decoder_input_ids=target, use_cache=False
        ).logits


class HuggingFaceGPT2(nn.Module):
    """Hugging Face's GPT-2."""

    def __init__(self, vocab: int, layers: int, d_model: int, heads: int, max_len: int) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=vocab,
            n_layer=layers,
            n_embd=d_model,
            n_head=heads,
            n_positions=max_len,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        self.core = GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.core(input_ids=tokens, use_cache=False).logits


def our_step(
    sizes: dict[str, int],
    widths: tuple[int, int],
    device: str,
    compiled: bool,
    cuda_graphs: bool = False,
) -> Step:
    """A step of our own loop, as `limelight train` takes it."""
    translating = "max_len" not in sizes
    family = (
        {"dropout": 0.1}
        if translating
        else {
            "family": "decoder-only",
            "dropout": 0.0,
            "norm_order": "pre",
            "positions": "learned",
            "activation": "gelu-tanh",
        }
    )
    smoothing = 0.1 if translating else 0.0
    config = TrainConfig(compile=compiled, cuda_graphs=cuda_graphs, label_smoothing=smoothing)
    trainer = Trainer(
        loss_module=LossModule(build(ModelConfig(**sizes, **family)), smoothing, compiled),
        batches=None,  # type: ignore[arg-type]
        config=config,
        run=RunFolder(Path()),
        world=World(torch.device(device)),
        report=Report(console=Console(quiet=True)),
        d_model=sizes["d_model"],
        length_range=widths,
        precision="bfloat16" if device == "cuda" else "float32",
    )
    return lambda batch: train_step(trainer, [MicroBatch(batch, 0, 1)])


def their_step(model: nn.Module, device: str, compiled: bool) -> Step:
    """The same work in a bare loop."""
    model = model.to(device).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    half = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")

    def step(batch: Any) -> None:
        read, wanted, smoothing = exercise(to_device(batch, torch.device(device)))
        with half:
            logits = run(*read)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), wanted.flatten(), label_smoothing=smoothing
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def exercise(batch: Any) -> tuple[tuple[Tensor, ...], Tensor, float]:
    """What is read, what is wanted, and how much of the label is smoothed."""
    if isinstance(batch, LMBatch):
        return (batch.tokens[:, :-1],), batch.tokens[:, 1:], 0.0
    read, wanted = batch.target[:, :-1], batch.target[:, 1:]
    if batch.source_real is None:
        return (batch.source, read), wanted, 0.1
    wanted = wanted.masked_fill(~batch.target_real[:, 1:], -100)
    return (batch.source, read, batch.source_real), wanted, 0.1


def make_batch(sizes: dict[str, int], rows: int, length: int, device: str) -> Any:
    """Random tokens; no two of them alike, and no padding."""
    source = torch.randint(5, sizes["vocab"], (rows, length), device=device)
    target = torch.randint(5, sizes["vocab"], (rows, length + 1), device=device)
    examples = torch.arange(rows)
    asked = torch.ones_like(target, dtype=torch.bool)
    if "max_len" in sizes:
        return LMBatch(0, examples, target, None, asked)
    return Seq2SeqBatch(0, examples, source, target, None, asked)


class Ragged:
    """Pairs about as long as Multi30k's: 4 to 40 tokens, 14 on average, of random tokens."""

    weights = None

    def __init__(self, pairs: int, vocab: int) -> None:
        draw = np.random.default_rng(1)
        source = draw.lognormal(np.log(13.3), 0.33, pairs)
        target = source * draw.lognormal(0.0, 0.18, pairs)
        self.lengths = np.stack([source, target], axis=1).round().clip(4, 40).astype(np.int64)
        self.vocab = vocab

    def batch(self, epoch: int, position: int, rows: Rows, width: Rows) -> Seq2SeqBatch:
        """These examples side by side, so wide on each side."""
        real = [
            torch.from_numpy(
                np.arange(int(width[side]) + side) < self.lengths[rows, side, None] + side
            )
            for side in (0, 1)
        ]
        draw = torch.Generator().manual_seed(position)
        source, target = (
            torch.randint(5, self.vocab, mask.shape, generator=draw) * mask for mask in real
        )
        return Seq2SeqBatch(position, torch.from_numpy(rows), source, target, *real)


def ragged_batches(
    sizes: dict[str, int], pairs: int, rounded: bool, device: str
) -> list[Seq2SeqBatch]:
    """An epoch of them, in memory that a GPU can copy from."""
    batches = BatchPlan(Ragged(pairs, sizes["vocab"]), RAGGED_TOKENS, seed=1, bucketed=rounded)
    plan = batches.plan(0)
    made: list[Any] = [EpochPlan(batches, 0, plan)[i] for i in range(len(plan))]
    if device != "cuda":
        return made
    return [
        Seq2SeqBatch(*(x.pin_memory() if isinstance(x, Tensor) else x for x in b)) for b in made
    ]


def peers_of(sizes: dict[str, int]) -> dict[str, Callable[[], nn.Module]]:
    """Other people's models of these sizes."""
    if "max_len" in sizes:
        return {"HF GPT-2": lambda: HuggingFaceGPT2(**sizes)}
    return {
        "torch.nn.Transformer": lambda: TorchTransformer(**sizes),
        "HF Marian": lambda: Marian(**sizes),
    }


def contestants(case: str, device: str, modes: list[str]) -> tuple[dict[str, Contestant], int]:
    """A step of everybody, with the batches of a round; and the tokens of one."""
    sizes, rows, length = CASES[case]
    if not length:
        return ragged_contestants(sizes, rows, device, modes)
    batches: list[Any] = [make_batch(sizes, rows, length, device)]
    found: dict[str, Contestant] = {}
    for compiled in [mode == "compiled" for mode in modes]:
        mark = ", compiled" if compiled else ""
        found[f"limelight{mark}"] = our_step(sizes, (length, length), device, compiled), batches
        for name, peer in peers_of(sizes).items():
            found[f"{name}{mark}"] = their_step(peer(), device, compiled), batches
    return found, rows * length * (1 if "max_len" in sizes else 2)


def ragged_contestants(
    sizes: dict[str, int], pairs: int, device: str, modes: list[str]
) -> tuple[dict[str, Contestant], int]:
    """Ours recorded, and compiled, with few shapes; Hugging Face's as its Trainer has it."""
    lengths = Ragged(pairs, sizes["vocab"]).lengths
    widths = int(lengths.min()), int(lengths.max())
    ours, theirs = (ragged_batches(sizes, pairs, rounded, device) for rounded in (True, False))
    found: dict[str, Contestant] = {
        "HF Marian": (their_step(Marian(**sizes), device, False), theirs),
    }
    if "eager" in modes:
        found["limelight, recorded"] = (
            our_step(sizes, widths, device, False, cuda_graphs=True),
            ours,
        )
    if "compiled" in modes:
        found["limelight, compiled"] = our_step(sizes, widths, device, True), ours
    return found, int(lengths.sum())


def measure(
    case: str, repeats: int, device: str, modes: list[str], only: str
) -> dict[str, dict[str, float]]:
    """Tokens per second of each, from the median of rounds in which all take turns."""
    everybody, tokens = contestants(case, device, modes)
    found = {name: who for name, who in everybody.items() if only in name}
    times: dict[str, list[float]] = {name: [] for name in found}
    first: dict[str, float] = {}
    for round_ in range(repeats + 3):
        for name, (step, batches) in found.items():
            began = time.perf_counter()
            for batch in batches:
                step(batch)
            if device == "cuda":
                torch.cuda.synchronize()
            taken = time.perf_counter() - began
            first.setdefault(name, taken)
            if round_ >= 3:  # the first rounds warm up, compile and record
                times[name].append(taken)
    return {
        name: {
            "tokens_per_second": round(tokens / statistics.median(t)),
            "first_round_seconds": round(first[name], 2),
        }
        for name, t in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    usual = [case for case in CASES if case.startswith("S,") != cuda]
    parser.add_argument("--cases", nargs="+", choices=CASES, default=usual)
    parser.add_argument("--repeats", type=int, default=20 if cuda else 7)
    both = ["eager", "compiled"]
    parser.add_argument("--modes", nargs="+", choices=both, default=both if cuda else both[:1])
    parser.add_argument("--only", default="", help="contestants with this in their name")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    if cuda:
        torch.set_float32_matmul_precision("high")
    print(f"{machine}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    results = {}
    for case in options.cases:
        repeats = options.repeats if CASES[case][2] else -(-options.repeats // 7)  # long rounds
        results[case] = measure(case, repeats, device, options.modes, options.only)
        peers = {k: v for k, v in results[case].items() if "limelight" not in k} or results[case]
        best = max(v["tokens_per_second"] for v in peers.values())
        print(case)
        for name, numbers in results[case].items():
            speed = numbers["tokens_per_second"]
            print(
                f"  {name:34}{speed:>12,} tokens/s {speed / best:6.2f} x of the best peer, ", end=""
            )
            print(f"first round {numbers['first_round_seconds']} s")
    if options.json:
        facts = {"date": str(date.today()), "machine": machine, "torch": torch.__version__}
        options.json.write_text(json.dumps({**facts, "cases": results}, indent=1))


if __name__ == "__main__":
    main()
