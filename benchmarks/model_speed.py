"""How fast a training step is, beside torch.nn.Transformer on the same work, in the same run.

    make bench                                  on whatever this machine has
    python benchmarks/model_speed.py --help

Full batches without padding, AdamW, cross-entropy over the whole vocabulary; tokens are source plus
target positions. The contestants take turns, and each one's median step counts. On a GPU in
bfloat16, eager and compiled; on a CPU in float32, eager.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.model import ModelConfig, build

SIZES = {
    "S": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "vocab": 8000},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "vocab": 32_000},
}


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


def contestants(size: str, device: str) -> dict[str, nn.Module]:
    sizes = SIZES[size]
    models: dict[str, nn.Module] = {
        "limelight": build(ModelConfig(**sizes, dropout=0.1)),
        "torch.nn.Transformer": TorchTransformer(**sizes),
    }
    models = {name: model.to(device).train() for name, model in models.items()}
    if device == "cuda":
        models |= {f"{name}, compiled": torch.compile(model) for name, model in models.items()}
    return models


def make_step(model: nn.Module, source: Tensor, target: Tensor, device: str) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    half = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")

    def step() -> None:
        with half:
            logits = model(source, target[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(size: str, rows: int, length: int, repeats: int, device: str) -> dict[str, float]:
    """Tokens per second of each, from the median of `repeats` rounds in which all take turns."""
    vocab = SIZES[size]["vocab"]
    source = torch.randint(vocab, (rows, length), device=device)
    target = torch.randint(vocab, (rows, length + 1), device=device)
    steps = {n: make_step(m, source, target, device) for n, m in contestants(size, device).items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(repeats + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if round_ >= 2:  # the first two rounds warm up and compile
                times[name].append(time.perf_counter() - began)
    return {name: 2 * rows * length / statistics.median(t) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cuda = torch.cuda.is_available()
    parser.add_argument("--size", choices=SIZES, default="base" if cuda else "S")
    parser.add_argument("--rows", type=int, default=512 if cuda else 32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=20 if cuda else 9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = "cuda" if cuda else "cpu"
    speeds = measure(options.size, options.rows, options.length, options.repeats, device)
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    result = {
        "date": str(date.today()),
        "machine": machine,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{key: getattr(options, key) for key in ("size", "rows", "length", "repeats")},
        "tokens_per_second": {name: round(speed) for name, speed in speeds.items()},
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{machine}, torch {torch.__version__}, model {options.size}, ", end="")
    print(f"batches of {options.rows} x ({options.length} + {options.length}) tokens")
    best = max(speed for name, speed in speeds.items() if name.startswith("torch"))
    for name, speed in speeds.items():
        print(f"{name:32}{speed:12,.0f} tokens/s{speed / best:8.2f} x the best of torch's")


if __name__ == "__main__":
    main()
