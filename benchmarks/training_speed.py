"""How fast a training step is, beside other people's models on the same work, in the same run.

    make bench                                       on whatever this machine has
    python benchmarks/training_speed.py --nanogpt nanoGPT/model.py      nanoGPT takes part, too
    python benchmarks/training_speed.py --together   contestants compile at the same time
    python benchmarks/training_speed.py --quick      tiny models: does it run at all?

Ours is the step of `limelight train` itself, with its checks, clipping and scores; theirs a bare
loop with the same optimizer. Their loss is compiled together with the model. Label smoothing is 0.1
for translation. The contestants take turns, and each one's median round counts. On a GPU in
bfloat16, eager and compiled; on a CPU in float32, eager.

nanoGPT is the strongest peer for GPT-2 and not on any package index: clone
https://github.com/karpathy/nanoGPT (MIT licence) and pass its model.py. It gets the biases that
GPT-2 has, as ours does, and computes the loss as its own train.py does.

With --together each contestant is a process of its own, so all compile at once; they are timed one
after the other all the same, and one that fails tells why and leaves the others alone.

Most cases are full batches without padding, one batch per round, and all positions count as tokens.
In the ragged case a round is an epoch of pairs about as long as those of Multi30k, and padding does
not count. Batches hold pairs of similar length and at most RAGGED_TOKENS tokens per side: ours as
`limelight train` builds them, theirs padded to their longest text.

On a GPU each speed is also given as a share of the rate of a large matrix product in the same run:
the multiplications and additions of a forward pass three times, the classifier only where a token
is predicted. Masked scores count.
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.data.batching import BatchPlan, EpochPlan
from limelight.data.datasets import LMBatch, MaskedLMBatch, Rows, Seq2SeqBatch
from limelight.model import ModelConfig, build
from limelight.run.folder import RunFolder
from limelight.training.config import TrainConfig
from limelight.training.console import Report
from limelight.training.distributed import World
from limelight.training.objectives import LossModule, to_device
from limelight.training.trainer import MicroBatch, Trainer, train_step
from limelight.workflows.info import multiply_adds

S = {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "vocab": 8000}
BASE = {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "vocab": 32_000}
GPT2 = {"layers": 12, "d_model": 768, "heads": 12, "vocab": 50_304, "max_len": 1024}
BERT = {"layers": 12, "d_model": 768, "heads": 12, "vocab": 30_592, "masked_len": 512}
RAGGED_PAIRS, RAGGED_TOKENS = 29_000, 4096  # as Multi30k; on each side of a batch
MASKED = 0.15  # share of the tokens that BERT predicts
PACKED = 128  # tokens in a row that pairs share
Case = tuple[dict[str, int], int, int]  # sizes, rows, length; 0 for ragged pairs
CASES: dict[str, Case] = {
    "S, 32 x (32 + 32)": (S, 32, 32),
    "S, 64 x (32 + 32)": (S, 64, 32),
    "base, 512 x (32 + 32)": (BASE, 512, 32),
    "base, 2048 x (32 + 32)": (BASE, 2048, 32),
    "base, ragged pairs": (BASE, RAGGED_PAIRS, 0),
    "GPT-2 124M, 32 x 1024": (GPT2, 32, 1024),
    "BERT-base, 64 x 512": (BERT, 64, 512),
}
WAYS: dict[str, dict[str, Any]] = {  # of ours on a GPU, beside autocast
    "bfloat16 weights": {"master_weights": True},
    "fp8 classifier": {"master_weights": True, "precision": "fp8"},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "translation": {"dropout": 0.1},
    "writing": {
        "family": "decoder-only",
        "dropout": 0.0,
        "norm_order": "pre",
        "positions": "learned",
        "activation": "gelu-tanh",
    },
    "filling": {"family": "encoder-only", "positions": "learned", "activation": "gelu"},
}
Step = Callable[[Any], Any]  # on a batch
Contestant = tuple[Step, list[Any]]
Builder = Callable[[], Contestant]
Turn = Callable[[], float]  # does all of a round, and returns its seconds


def kind_of(sizes: dict[str, int]) -> str:
    """What a model of these sizes does."""
    kinds = {"max_len": "writing", "masked_len": "filling"}
    return next((kind for name, kind in kinds.items() if name in sizes), "translation")


def config_of(sizes: dict[str, int], **changes: Any) -> ModelConfig:
    """Our model of these sizes."""
    numbers = {name.replace("masked_len", "max_len"): n for name, n in sizes.items()}
    return ModelConfig(**numbers, **FAMILIES[kind_of(sizes)], **changes)  # type: ignore[arg-type]


def flops(case: Case) -> float:
    """Of a training step, for each token that counts."""
    sizes, _, length = case
    kind = kind_of(sizes)
    reads = {"max_len": length or round(Ragged(1000, 8).lengths.mean())}
    by_part = multiply_adds(config_of(sizes, **(reads if kind == "translation" else {})))
    parts = {name: sum(macs.values()) for name, macs in by_part.items()}
    if kind == "filling":
        parts["masked_head"] *= MASKED
    return 6 * sum(parts.values()) / (2 if kind == "translation" else 1)


def matrix_rate(device: str, size: int = 8192) -> float:
    """FLOP/s of a product of square matrices of random numbers, in bfloat16 on a GPU."""
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    a = torch.randn(size, size, device=device, dtype=kind)
    return 2 * size**3 / median_seconds(lambda: a @ a, device, 10)


def median_seconds(work: Any, device: str, repeats: int) -> float:
    """Of some calls, after two to warm up."""
    times = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


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


class HuggingFaceBert(Peer):
    """Hugging Face's BERT, which computes logits at all positions."""

    def __init__(self, vocab: int, layers: int, d_model: int, heads: int, masked_len: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(
            vocab_size=vocab,
            num_hidden_layers=layers,
            hidden_size=d_model,
            num_attention_heads=heads,
            intermediate_size=4 * d_model,
            max_position_embeddings=masked_len,
            attention_probs_dropout_prob=0.0,
        )
        self.core = BertForMaskedLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.core(input_ids=tokens).logits


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
    smoothing = 0.1 if kind_of(sizes) == "translation" else 0.0
    config = TrainConfig(compile=compiled, label_smoothing=smoothing, **settings)
    model: Any = build(config_of(sizes))
    trainer = Trainer(
        loss_module=LossModule(model, smoothing, compiled, fp8=config.precision == "fp8"),
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
    if isinstance(batch, MaskedLMBatch):
        return (batch.tokens,), batch.labels.masked_fill(~batch.loss_mask, -100), 0.0
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
    if kind_of(sizes) == "writing":
        return LMBatch(0, examples, target, None, asked)
    if kind_of(sizes) == "filling":
        asked = torch.rand(source.shape, device=device) < MASKED
        return MaskedLMBatch(0, examples, source, asked, target[:, 1:].contiguous())
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


def ragged_batches(sizes: dict[str, int], pairs: int, device: str, **how: Any) -> list[Any]:
    """An epoch of them, in memory that a GPU can copy from."""
    batches = BatchPlan(Ragged(pairs, sizes["vocab"]), RAGGED_TOKENS, seed=1, **how)
    plan = batches.plan(0)
    made: list[Any] = [EpochPlan(batches, 0, plan)[i] for i in range(len(plan))]
    if device != "cuda":
        return made
    return [type(b)(*(x.pin_memory() if isinstance(x, Tensor) else x for x in b)) for b in made]


def peers_of(sizes: dict[str, int], nanogpt: Path | None) -> dict[str, Callable[[], Peer]]:
    """Other people's models of these sizes."""
    if kind_of(sizes) == "filling":
        return {"HF BERT": lambda: HuggingFaceBert(**sizes)}
    if kind_of(sizes) == "writing":
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
    small = {"layers": 2, "d_model": 32, "d_ff": 64, "heads": 2, "vocab": 64}
    small |= {"max_len": 16, "masked_len": 16}
    return {name: small[name] for name in sizes}, 2 if length else 20, min(length, 8)


def contestants(
    case: Case, device: str, modes: list[str], nanogpt: Path | None = None
) -> tuple[dict[str, Builder], int]:
    """What builds a step of everybody, with the batches of a round; and the tokens of one."""
    sizes, rows, length = case
    if not length:
        return ragged_contestants(sizes, rows, device, modes)
    batches: list[Any] = [make_batch(sizes, rows, length, device)]
    found: dict[str, Builder] = {}

    def ours(compiled: bool, **settings: Any) -> Builder:
        return lambda: (our_step(sizes, (length, length), device, compiled, **settings), batches)

    def theirs(compiled: bool, peer: Callable[[], Peer]) -> Builder:
        return lambda: (their_step(peer(), device, compiled), batches)

    for compiled in [mode == "compiled" for mode in modes]:
        mark = ", compiled" if compiled else ""
        found[f"limelight{mark}"] = ours(compiled)
        for way, settings in WAYS.items() if device == "cuda" else ():
            found[f"limelight, {way}{mark}"] = ours(compiled, **settings)
        for name, peer in peers_of(sizes, nanogpt).items():
            found[f"{name}{mark}"] = theirs(compiled, peer)
    return found, rows * length * (2 if kind_of(sizes) == "translation" else 1)


def ragged_contestants(
    sizes: dict[str, int], pairs: int, device: str, modes: list[str]
) -> tuple[dict[str, Builder], int]:
    """Ours with CUDA graphs, and compiled, with few shapes; Hugging Face's as in its Trainer."""
    lengths = Ragged(pairs, sizes["vocab"]).lengths
    widths = int(lengths.min()), int(lengths.max())

    def ours(compiled: bool, **settings: Any) -> Builder:
        return lambda: (
            our_step(sizes, widths, device, compiled, **settings),
            ragged_batches(sizes, pairs, device, bucketed=True),
        )

    def packed(**settings: Any) -> Builder:
        return lambda: (
            our_step(sizes, (PACKED, PACKED), device, "compiled" in modes, pack=PACKED, **settings),
            ragged_batches(sizes, pairs, device, packed=PACKED),
        )

    found: dict[str, Builder] = {
        "HF Marian": lambda: (
            their_step(Marian(**sizes), device, False),
            ragged_batches(sizes, pairs, device),
        ),
    }
    if "eager" in modes:
        found["limelight, CUDA graphs"] = ours(False, cuda_graphs=True)
        if device == "cuda":
            more = {"cuda_graphs": True, "master_weights": True}
            found["limelight, CUDA graphs, bfloat16 weights"] = ours(False, **more)
    if "compiled" in modes:
        found["limelight, compiled"] = ours(True)
    found["limelight, packed"] = packed()
    if device == "cuda":
        found["limelight, packed, bfloat16 weights"] = packed(master_weights=True)
    return found, int(lengths.sum())


def turn_of(contestant: Contestant, device: str, rounds: int = 1) -> Turn:
    """Its round, timed: the mean of some if they are short."""
    step, batches = contestant

    def turn() -> float:
        began = time.perf_counter()
        for batch in batches * rounds:
            step(batch)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / rounds

    return turn


def measure(everybody: dict[str, Turn], tokens: int, repeats: int) -> dict[str, dict[str, float]]:
    """Tokens per second of each, from the median of rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in everybody}
    first: dict[str, float] = {}
    for round_ in range(repeats + 3):
        for name, turn in everybody.items():
            taken = turn()
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


def take_turns(
    pipe: Connection, case: Case, name: str, device: str, modes: list[str], nanogpt: Path | None
) -> None:
    """A contestant in a process of its own: warm up, then do what the pipe says, until it ends."""
    try:
        torch.set_float32_matmul_precision("high")
        everybody, _ = contestants(case, device, modes, nanogpt)
        contestant = everybody[name]()
        turn = turn_of(contestant, device, rounds_of(case, device))
        first = turn()
        turn(), turn()  # captures, and replays
        pipe.send(first)
        while asked := pipe.recv():
            pipe.send(turn() if asked == "turn" else profile(contestant, device))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        print(f"{name}: {text}\n{traceback.format_exc()[-1500:]}", file=sys.stderr, flush=True)
        pipe.send(text[:300])


def rounds_of(case: Case, device: str) -> int:
    """Steps that are timed as one: a GPU should not be waited for after each."""
    return 4 if device == "cuda" and case[2] else 1


@contextmanager
def together(names: list[str], case: Case, *how: Any) -> Iterator[dict[str, Connection]]:
    """These contestants, each in a process, once all are warm; the end of a pipe for each."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in names:
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=take_turns, args=(theirs, case, name, *how)))
        processes[-1].start()
        theirs.close()
    try:
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def hear(pipe: Connection, seconds: float = 240) -> Any:
    """What a contestant says: a number, a profile, or an error."""
    try:
        return pipe.recv() if pipe.poll(seconds) else "said nothing in time"
    except EOFError:
        return "its process is gone"


def measure_together(
    pipes: dict[str, Connection], tokens: int, repeats: int
) -> dict[str, dict[str, Any]]:
    """As `measure` does, but contestants may fail."""
    times: dict[str, list[Any]] = {name: [hear(pipe)] for name, pipe in pipes.items()}
    for _ in range(repeats):
        for name, pipe in pipes.items():
            if not isinstance(times[name][-1], str):
                pipe.send("turn")
                times[name].append(hear(pipe))
    found: dict[str, dict[str, Any]] = {}
    for name, (first, *rounds) in times.items():
        if failed := [x for x in (first, *rounds) if isinstance(x, str)]:
            found[name] = {"error": failed[0]}
            continue
        speed = round(tokens / statistics.median(rounds))
        found[name] = {"tokens_per_second": speed, "first_round_seconds": round(first, 2)}
    return found


def profile(contestant: Contestant, device: str, steps: int = 3, lines: int = 40) -> list[str]:
    """Where the time of a step goes: the longest kernels, in microseconds."""
    step, batches = contestant
    kind = "cuda" if device == "cuda" else "cpu"
    with torch.profiler.profile() as found:
        for _ in range(steps):
            step(batches[0])
        if device == "cuda":
            torch.cuda.synchronize()
    rows = [e for e in found.key_averages() if e.device_type.name.lower() == kind]
    times = [(e.self_device_time_total if kind == "cuda" else e.self_cpu_time_total) for e in rows]
    order = sorted(range(len(rows)), key=lambda i: -times[i])[:lines]
    text = [f"{sum(times) / steps:10.0f} us of kernels in a step, {len(rows)} kinds"]
    for i in order:
        count = rows[i].count / steps
        text.append(f"{times[i] / steps:10.1f} us {count:7.1f} x {rows[i].key[:150]}")
    return text


def show(case: str, found: dict[str, dict[str, Any]], rate: float) -> None:
    """A line for each, with its ratio to the best peer and its share of the matrix rate."""
    done = {k: v for k, v in found.items() if "error" not in v}
    peers = {k: v for k, v in done.items() if "limelight" not in k} or done
    best = max([v["tokens_per_second"] for v in peers.values()], default=1)
    print(case)
    for name, numbers in found.items():
        if "error" in numbers:
            print(f"  {name:34} failed: {numbers['error']}", flush=True)
            continue
        speed = numbers["tokens_per_second"]
        share = f"{speed * flops(CASES[case]) / rate:.0%} of the matrix rate, " if rate else ""
        print(
            f"  {name:34}{speed:>12,} tokens/s {speed / best:6.2f} x of the best peer, "
            f"{share}first round {numbers['first_round_seconds']} s",
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
    parser.add_argument("--only", default=[""], nargs="+", help="contestants with one of these")
    parser.add_argument("--together", action="store_true", help="a process for each contestant")
    parser.add_argument("--profile", type=Path, help="with --together: our kernels, to this file")
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
    options.rate = matrix_rate(device) if cuda and not options.quick else 0.0
    if options.rate:
        print(f"a product of matrices of 8,192: {options.rate / 1e12:.0f} TFLOP/s")
        facts["matrix_rate"] = f"{options.rate:.3g}"
    results = (measure_processes if options.together else measure_here)(options, device)
    if options.json:
        facts["date"] = str(date.today())
        options.json.write_text(json.dumps({**facts, "cases": results}, indent=1))


def everybody(options: argparse.Namespace, device: str, name: str) -> Any:
    """The case of this name, its chosen contestants, the tokens and the repeats of a round."""
    case = quick(CASES[name]) if options.quick else CASES[name]
    found, tokens = contestants(case, device, options.modes, options.nanogpt)
    chosen = {who: it for who, it in found.items() if any(part in who for part in options.only)}
    repeats = options.repeats if case[2] else -(-options.repeats // 7)  # long rounds
    return case, chosen, tokens, repeats


def measure_here(options: argparse.Namespace, device: str) -> dict[str, Any]:
    """All cases, one after the other, in this process."""
    results = {}
    for name in options.cases:
        case, chosen, tokens, repeats = everybody(options, device, name)
        rounds = rounds_of(case, device)
        turns = {who: turn_of(build(), device, rounds) for who, build in chosen.items()}
        results[name] = measure(turns, tokens, repeats)
        show(name, results[name], options.rate)
    return results


def measure_processes(options: argparse.Namespace, device: str) -> dict[str, Any]:
    """All cases, whose contestants warm up at the same time."""
    results = {}
    with ExitStack() as running:
        cases = {}
        for name in options.cases:
            case, chosen, *how = everybody(options, device, name)
            started = together([*chosen], case, device, options.modes, options.nanogpt)
            cases[name] = running.enter_context(started), *how
        for pipes, *_ in cases.values():
            for pipe in pipes.values():
                pipe.poll(240)  # nobody is timed while others still compile
        for name, (pipes, tokens, repeats) in cases.items():
            results[name] = measure_together(pipes, tokens, repeats)
            show(name, results[name], options.rate)
            if options.profile:
                ours = {who: pipe for who, pipe in pipes.items() if "limelight" in who}
                write_profiles(options.profile, name, ours, results[name])
    return results


def write_profiles(
    file: Path, case: str, pipes: dict[str, Connection], found: dict[str, Any]
) -> None:
    """Add where our time goes to a file."""
    with file.open("a", encoding="utf-8") as out:
        for name, pipe in pipes.items():
            if "error" not in found[name]:
                pipe.send("profile")
                told = hear(pipe)
                lines = told if isinstance(told, list) else [str(told)]
                print(case, name, *lines, "", sep="\n", file=out, flush=True)


if __name__ == "__main__":
    main()
