"""How fast a training step is, beside other people's models on the same work, in the same run.

    make bench                                       on whatever this machine has
    python benchmarks/training_speed.py --nanogpt nanoGPT/model.py      nanoGPT takes part, too
    python benchmarks/training_speed.py --quick      tiny models: does it run at all?

Ours is the step of `limelight train` itself, with its checks, clipping and scores; theirs a bare
loop with the same optimizer. Their loss is compiled together with the model. Label smoothing is 0.1
for translation. The contestants take turns, and each one's median round counts. On a GPU in
bfloat16, eager and compiled; on a CPU in float32, eager.

nanoGPT is the strongest peer for GPT-2 and not on any package index: clone
https://github.com/karpathy/nanoGPT (MIT licence) and pass its model.py. It gets the biases that
GPT-2 has, as ours does, and computes the loss as its own train.py does.

Most cases are full batches without padding, one batch per round, and all positions count as tokens.
In the ragged case a round is an epoch of pairs about as long as those of Multi30k, and padding does
not count. Batches hold pairs of similar length and at most RAGGED_TOKENS tokens per side: ours as
`limelight train` builds them, theirs padded to their longest text.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
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
Case = tuple[dict[str, int], int, int]  # sizes, rows, length; 0 for ragged pairs
CASES: dict[str, Case] = {
    "S, 32 x (32 + 32)": (S, 32, 32),
    "S, 64 x (32 + 32)": (S, 64, 32),
    "base, 512 x (32 + 32)": (BASE, 512, 32),
    "base, 2048 x (32 + 32)": (BASE, 2048, 32),
    "base, ragged pairs": (BASE, RAGGED_PAIRS, 0),
    "GPT-2 124M, 32 x 1024": (GPT2, 32, 1024),
}
Step = Callable[[Any], Any]  # on a batch
Contestant = tuple[Step, list[Any]]


class Peer(nn.Module):
    """Somebody else's model, whose forward pass returns logits."""

    def loss(self, read: tuple[Tensor, ...], wanted: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy of the wanted tokens; padding is -100."""
        logits = self(*read).flatten(0, 1).float()
        return F.cross_entropy(logits, wanted.flatten(), label_smoothing=smoothing)


class TorchTransformer(Peer):
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


class Marian(Peer):
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


class HuggingFaceGPT2(Peer):
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


def module_of(file: Path) -> Any:
    """nanoGPT's model.py as a module; torch.compile finds it by its name."""
    spec = spec_from_file_location("nanogpt", file)
    assert spec
    assert spec.loader
    sys.modules["nanogpt"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NanoGPT(Peer):
    """nanoGPT's GPT-2, from the model.py of a checkout."""

    def __init__(
        self, file: Path, vocab: int, layers: int, d_model: int, heads: int, max_len: int
    ) -> None:
        super().__init__()
        theirs = module_of(file)
        config = theirs.GPTConfig(
            vocab_size=vocab,
            n_layer=layers,
            n_embd=d_model,
            n_head=heads,
            block_size=max_len,
            dropout=0.0,
            bias=True,
        )
        self.core = theirs.GPT(config)

    def loss(self, read: tuple[Tensor, ...], wanted: Tensor, smoothing: float) -> Tensor:
        """Its own: without targets it returns the logits of the last position alone."""
        return self.core(*read, wanted.contiguous())[1]


def our_step(
    sizes: dict[str, int],
    widths: tuple[int, int],
    device: str,
    compiled: bool,
    **settings: Any,
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
    config = TrainConfig(compile=compiled, label_smoothing=smoothing, **settings)
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


def their_step(model: Peer, device: str, compiled: bool) -> Step:
    """The same work in a bare loop."""
    model = model.to(device).train()
    loss_of = torch.compile(model.loss) if compiled else model.loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    half = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")

    def step(batch: Any) -> None:
        read, wanted, smoothing = exercise(to_device(batch, torch.device(device)))
        with half:
            loss = loss_of(read, wanted, smoothing)
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


def peers_of(sizes: dict[str, int], nanogpt: Path | None) -> dict[str, Callable[[], Peer]]:
    """Other people's models of these sizes."""
    if "max_len" in sizes:
        peers: dict[str, Callable[[], Peer]] = {"HF GPT-2": lambda: HuggingFaceGPT2(**sizes)}
        if nanogpt:
            peers["nanoGPT"] = lambda: NanoGPT(nanogpt, **sizes)
        return peers
    return {
        "torch.nn.Transformer": lambda: TorchTransformer(**sizes),
        "HF Marian": lambda: Marian(**sizes),
    }


def quick(case: Case) -> Case:
    """A tiny model of the same kind, and two rows of eight tokens or 20 ragged pairs."""
    sizes, _, length = case
    small = {"layers": 2, "d_model": 32, "d_ff": 64, "heads": 2, "vocab": 64, "max_len": 16}
    return {name: small[name] for name in sizes}, 2 if length else 20, min(length, 8)


def contestants(
    case: Case, device: str, modes: list[str], nanogpt: Path | None = None
) -> tuple[dict[str, Contestant], int]:
    """A step of everybody, with the batches of a round; and the tokens of one."""
    sizes, rows, length = case
    if not length:
        return ragged_contestants(sizes, rows, device, modes)
    batches: list[Any] = [make_batch(sizes, rows, length, device)]
    found: dict[str, Contestant] = {}
    for compiled in [mode == "compiled" for mode in modes]:
        mark = ", compiled" if compiled else ""
        found[f"limelight{mark}"] = our_step(sizes, (length, length), device, compiled), batches
        if device == "cuda":
            step = our_step(sizes, (length, length), device, compiled, master_weights=True)
            found[f"limelight, bfloat16 weights{mark}"] = step, batches
        for name, peer in peers_of(sizes, nanogpt).items():
            found[f"{name}{mark}"] = their_step(peer(), device, compiled), batches
    return found, rows * length * (1 if "max_len" in sizes else 2)


def ragged_contestants(
    sizes: dict[str, int], pairs: int, device: str, modes: list[str]
) -> tuple[dict[str, Contestant], int]:
    """Ours with CUDA graphs, and compiled, with few shapes; Hugging Face's as in its Trainer."""
    lengths = Ragged(pairs, sizes["vocab"]).lengths
    widths = int(lengths.min()), int(lengths.max())
    ours, theirs = (ragged_batches(sizes, pairs, rounded, device) for rounded in (True, False))
    found: dict[str, Contestant] = {
        "HF Marian": (their_step(Marian(**sizes), device, False), theirs),
    }
    if "eager" in modes:
        found["limelight, CUDA graphs"] = (
            our_step(sizes, widths, device, False, cuda_graphs=True),
            ours,
        )
    if "compiled" in modes:
        found["limelight, compiled"] = our_step(sizes, widths, device, True), ours
    return found, int(lengths.sum())


def measure(
    everybody: dict[str, Contestant], tokens: int, repeats: int, device: str
) -> dict[str, dict[str, float]]:
    """Tokens per second of each, from the median of rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in everybody}
    first: dict[str, float] = {}
    for round_ in range(repeats + 3):
        for name, (step, batches) in everybody.items():
            began = time.perf_counter()
            for batch in batches:
                step(batch)
            if device == "cuda":
                torch.cuda.synchronize()
            taken = time.perf_counter() - began
            first.setdefault(name, taken)
            if round_ >= 3:  # the first rounds warm up, compile and capture
                times[name].append(taken)
    return {
        name: {
            "tokens_per_second": round(tokens / statistics.median(t)),
            "first_round_seconds": round(first[name], 2),
        }
        for name, t in times.items()
    }


def show(case: str, found: dict[str, dict[str, float]]) -> None:
    """A line for each, with its ratio to the best peer."""
    peers = {k: v for k, v in found.items() if "limelight" not in k} or found
    best = max(v["tokens_per_second"] for v in peers.values())
    print(case)
    for name, numbers in found.items():
        speed = numbers["tokens_per_second"]
        print(
            f"  {name:34}{speed:>12,} tokens/s {speed / best:6.2f} x of the best peer, "
            f"first round {numbers['first_round_seconds']} s",
            flush=True,
        )


def commit() -> str:
    """The commit that is timed; "-dirty" if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def parse_options(cuda: bool) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = [case for case in CASES if case.startswith("S,") != cuda]
    both = ["eager", "compiled"]
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--repeats", type=int, default=20 if cuda else 7)
    parser.add_argument("--modes", nargs="+", choices=both, default=both if cuda else both[:1])
    parser.add_argument("--only", default="", help="contestants with this in their name")
    parser.add_argument("--nanogpt", type=Path, metavar="FILE", help="model.py of a checkout")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if options.nanogpt and not options.nanogpt.is_file():
        sys.exit(f"--nanogpt {options.nanogpt}: no such file; give the model.py of a checkout")
    options.cases = options.cases or (list(CASES) if options.quick else usual)
    return options


def main() -> None:
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    options = parse_options(cuda)
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    if cuda:
        torch.set_float32_matmul_precision("high")
    facts = {"commit": commit(), "machine": machine, "torch": torch.__version__}
    print(*(f"{k} {v}," for k, v in facts.items()), f"{torch.get_num_threads()} threads")
    if not options.nanogpt and any("GPT-2" in case for case in options.cases):
        print("nanoGPT, the strongest peer for GPT-2, does not take part: see --nanogpt")
    results = {}
    for name in options.cases:
        case = quick(CASES[name]) if options.quick else CASES[name]
        repeats = options.repeats if case[2] else -(-options.repeats // 7)  # long rounds
        everybody, tokens = contestants(case, device, options.modes, options.nanogpt)
        chosen = {who: it for who, it in everybody.items() if options.only in who}
        results[name] = measure(chosen, tokens, repeats, device)
        show(name, results[name])
    if options.json:
        facts["date"] = str(date.today())
        options.json.write_text(json.dumps({**facts, "cases": results}, indent=1))


if __name__ == "__main__":
    main()
