"""Decoding speed on a GPU, beside Hugging Face's `generate` and a compiled static KV cache.

    python benchmarks/decoding_gpu.py [--json FILE]
    python benchmarks/decoding_gpu.py --device cpu --quick    # tiny models: does it run at all?

The paper's base model (6 + 6 layers, vocabulary 32,000; sources of 32 tokens, 32 written), GPT-2
124M and the shape of SmolLM2-135M (prompts of 16 tokens, 256 written), random weights, bfloat16,
the end token never chosen. The contestants take turns, and each one's median round counts. The
compiled contestant is what gpt-fast does: our own model with a KV cache of fixed shape, one token a
step, through `torch.compile(mode="reduce-overhead")`, which captures CUDA graphs; it is greedy
only. Hugging Face's Llama also runs with its own static cache, whose step `generate` compiles.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine
from limelight.decode.request import Request
from limelight.model import ModelConfig, build
from limelight.model.kv_cache import KVCache

PAD, START, END = 0, 1, 2
Case = tuple[ModelConfig, int, int, int]  # model, rows, tokens to write, beam
Round = Callable[[], object]


class Numbers:
    """As much of a tokenizer as search uses."""

    pad, start, end = PAD, START, END
    special_ids, ends = frozenset((PAD, START, END)), frozenset((END,))

    def is_text(self, i: int) -> bool:
        """All but the special tokens."""
        return i not in self.special_ids

    def token_bytes(self, _: int) -> bytes:
        """No text is wanted here."""
        return b""

    def decode(self, _: object) -> str:
        """No text is wanted here."""
        return ""


BASE = ModelConfig(vocab=32000, max_len=128)
GPT2 = ModelConfig(
    family="decoder-only",
    vocab=50257,
    layers=12,
    d_model=768,
    heads=12,
    max_len=1024,
    norm_order="pre",
    positions="learned",
    activation="gelu-tanh",
)
SMOLLM2 = ModelConfig(
    family="decoder-only",
    vocab=49152,
    layers=30,
    d_model=576,
    d_ff=1536,
    heads=9,
    kv_heads=3,
    max_len=1024,
    norm_order="pre",
    norm="rms",
    positions="rotary",
    rotary_base=100000.0,
    activation="swiglu",
    bias=False,
)


def dtype_on(device: str) -> torch.dtype:
    """bfloat16 on a GPU; a CPU may lack the instructions."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def work(case: Case, device: str) -> tuple[Any, list[Request], Numbers]:
    """Our model, and the requests that it answers; it never chooses the end token."""
    config, rows, length, _ = case
    torch.manual_seed(1)
    model: Any = build(config).eval().to(device, dtype_on(device))
    numbers = Numbers()
    if model.classifier.bias is None:  # GPT has none: let another token be the end
        numbers.end = -1
    else:
        with torch.no_grad():
            model.classifier.bias[END] = -1e4
    draw = torch.Generator().manual_seed(2)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, config.vocab, (count,), generator=draw).tolist()

    two_sided = config.family == "encoder-decoder"
    requests = [
        Request(
            [START] if two_sided else tokens(16), length, [*tokens(31), END] if two_sided else ()
        )
        for _ in range(rows)
    ]
    return model, requests, numbers


def ours(case: Case, device: str) -> Round:
    """Our model behind its accelerators."""
    model, requests, numbers = work(case, device)
    engine, settings = Engine([model], numbers), DecodeConfig(beam=case[3])  # type: ignore[arg-type]
    return lambda: [best[0].tokens for best in engine.generate(requests, settings)]


class StaticCache(KVCache):
    """A KV cache of fixed shape for rows of one length, which attends to all of its positions."""

    def __init__(self, state: KVCache, config: ModelConfig, slots: int) -> None:
        super().__init__(config, state.length.numel(), slots, like=state.keys[0])
        self.memory = [(k.clone(), v.clone()) for k, v in state.memory]
        fixed = (*self.keys, *self.values, *(x for pair in self.memory for x in pair), self.length)
        for tensor in fixed:
            torch._dynamo.mark_static_address(tensor)

    def load(self, state: KVCache) -> None:
        """Copy in what a prompt's prefill has left in an ordinary cache."""
        used = state.max_used
        for mine, its in ((self.keys, state.keys), (self.values, state.values)):
            for new, old in zip(mine, its, strict=True):
                new[:, :, :used] = old[:, :, :used]
        for pair, its_pair in zip(self.memory, state.memory, strict=True):
            for new, old in zip(pair, its_pair, strict=True):
                new.copy_(old)
        self.length.fill_(used)

    def begin(self, count: int) -> None:
        """The next position, without a check that a compiled step could not make."""
        self.positions = self.length[:, None]

    def mask(self) -> Tensor:
        """B 1 1 S: all positions up to the token's own."""
        every = torch.arange(self.keys[0].size(2), device=self.length.device)
        return (every <= self.positions[..., None])[:, None]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write one position of all rows in place."""
        for kept, new in ((self.keys[layer], k), (self.values[layer], v)):
            kept.index_copy_(2, self.length[:1], new)
        return self.keys[layer], self.values[layer]

    def commit(self, real: Tensor | None = None) -> Tensor:
        """Count in place."""
        self.length.add_(1)
        return torch.ones_like(self.length)


def compiled(case: Case, device: str, **options: Any) -> Round:
    """Our model with a static cache, a compiled step for each token (gpt-fast)."""
    model, requests, _ = work(case, device)
    config, rows, length, _ = case
    prompt = torch.tensor([request.prompt for request in requests], device=device)
    sources = [request.source for request in requests]
    given = torch.tensor(sources, device=device) if sources[0] else rows
    tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)

    def prefill() -> tuple[KVCache, Tensor]:
        state: KVCache = model.start(given, max_len=prompt.size(1) + length)
        return state, model.step(prompt, state).argmax(dim=-1, keepdim=True)

    cache = StaticCache(prefill()[0], config, -(-(prompt.size(1) + length) // 64) * 64)

    def one_token(read: Tensor) -> Tensor:
        chosen: Tensor = model.step(read, cache).argmax(dim=-1, keepdim=True)
        return chosen

    step = torch.compile(one_token, fullgraph=True, dynamic=False, **options)

    def play() -> list[list[int]]:
        state, first = prefill()
        cache.load(state)
        tokens.copy_(first)
        written = [first]
        for _ in range(length - 1):
            torch.compiler.cudagraph_mark_step_begin()
            tokens.copy_(step(tokens))
            written.append(tokens.clone())
        return torch.cat(written, dim=1).tolist()

    return play


def sizes_of(config: ModelConfig) -> dict[str, int]:
    """As Marian calls them."""
    return {"layers": config.layers, "ffn_dim": config.ffn_dim, "attention_heads": config.heads}


def theirs(case: Case, device: str, **cache: Any) -> Round:
    """Hugging Face's model of the same size, with its own cache."""
    import transformers

    config, rows, length, beam = case
    torch.manual_seed(1)
    if config.family == "encoder-decoder":
        sizes = {
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in sizes_of(config).items()
        }
        made: Any = transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=config.vocab,
                d_model=config.d_model,
                max_position_embeddings=config.max_len,
                pad_token_id=PAD,
                eos_token_id=END,
                forced_eos_token_id=None,
                decoder_start_token_id=START,
                **sizes,
            )
        )
    elif config.positions == "rotary":
        made = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocab,
                hidden_size=config.d_model,
                intermediate_size=config.ffn_dim,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.num_kv_heads,
                tie_word_embeddings=True,
            )
        )
    else:
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=config.vocab,
                n_embd=config.d_model,
                n_layer=config.layers,
                n_head=config.heads,
            )
        )
    model = made.eval().to(device, dtype_on(device))
    width = 32 if config.family == "encoder-decoder" else 16
    inputs = torch.randint(3, config.vocab, (rows, width), device=device)
    settings = {"num_beams": beam, "do_sample": False, "pad_token_id": PAD}
    exactly = {"min_new_tokens": length, "max_new_tokens": length}
    mask = torch.ones_like(inputs)
    return lambda: model.generate(inputs, attention_mask=mask, **settings, **exactly, **cache)


CASES: dict[str, Case] = {
    "base, greedy, batch 1": (BASE, 1, 32, 1),
    "base, greedy, batch 64": (BASE, 64, 32, 1),
    "base, beam 5, batch 1": (BASE, 1, 32, 5),
    "base, beam 5, batch 64": (BASE, 64, 32, 5),
    "GPT-2 124M, batch 1": (GPT2, 1, 256, 1),
    "GPT-2 124M, batch 64": (GPT2, 64, 256, 1),
    "SmolLM2 135M, batch 1": (SMOLLM2, 1, 256, 1),
    "SmolLM2 135M, batch 64": (SMOLLM2, 64, 256, 1),
}


def quick(case: Case) -> Case:
    """A tiny model of the same kind, two rows and eight tokens."""
    config, rows, _, beam = case
    small = replace(
        config, vocab=64, layers=2, d_model=32, heads=2, kv_heads=0, d_ff=64, max_len=64
    )
    return small, min(rows, 2), 8, beam


@torch.no_grad()
def race(case: Case, repeats: int, device: str = "cuda") -> dict[str, float]:
    """Tokens per second of all, in turns; the first two rounds of each are not counted."""
    contestants = {"limelight": ours(case, device), "hugging face": theirs(case, device)}
    if case[3] == 1:
        options = {"mode": "reduce-overhead"} if device == "cuda" else {}
        contestants["compiled"] = compiled(case, device, **options)
    if case[0].positions == "rotary":
        static = theirs(case, device, cache_implementation="static")
        contestants["hugging face, static"] = static
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 2):  # one to compile, one to capture
        for name, play in contestants.items():
            synchronize(device)
            began = time.perf_counter()
            play()
            synchronize(device)
            seconds[name].append(time.perf_counter() - began)
    written = case[1] * case[2]
    return {name: written / statistics.median(times[2:]) for name, times in seconds.items()}


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def commit() -> str:
    """The commit that is timed; "-dirty" if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    """All cases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU; benchmarks/decoding_speed.py is for CPUs")
    results = {}
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"commit {commit()}, {name}, torch {torch.__version__}")
    for name in options.cases:
        case = quick(CASES[name]) if options.quick else CASES[name]
        speeds = results[name] = race(case, options.repeats, options.device)
        others = {
            "hugging face": "Hugging Face",
            "hugging face, static": "Hugging Face compiled",
            "compiled": "compiled static cache",
        }
        ratios = [
            f"{speeds['limelight'] / speeds[other]:.1f} x {shown}"
            for other, shown in others.items()
            if other in speeds
        ]
        print(f"{name:28} {speeds['limelight']:10,.0f} tokens/s, {', '.join(ratios)}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"commit": commit(), **results}, file, indent=2)


if __name__ == "__main__":
    main()
