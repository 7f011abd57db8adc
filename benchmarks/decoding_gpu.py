"""How fast models write on a GPU, beside Hugging Face's `generate` on the same work.

    python benchmarks/decoding_gpu.py [--json FILE]

The paper's base model (6 + 6 layers, vocabulary 32,000; sources of 32 tokens, 32 tokens written)
and GPT-2 124M (prompts of 16 tokens, 256 written), random weights, bfloat16, the end token never
chosen. They take turns, and each one's median round counts.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from limelight.decode.accel.cuda.runner import CudaGraphModel
from limelight.decode.beam import beam_search
from limelight.decode.config import DecodeConfig
from limelight.decode.generate import write
from limelight.decode.request import Request
from limelight.model import ModelConfig, build

PAD, START, END = 0, 1, 2
Round = Callable[[], object]


class Numbers:
    """As much of a tokenizer as search asks for."""

    pad, start, end, first = PAD, START, END, 3

    def raw(self, _: int) -> bytes:
        """No text is wanted here."""
        return b""

    def decode(self, _: object) -> str:
        """The same."""
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


def ours(config: ModelConfig, rows: int, length: int, beam: int) -> Round:
    """Our model behind its recorded steps."""
    torch.manual_seed(1)
    model: Any = build(config).eval().to("cuda", torch.bfloat16)
    banned = model.classifier.bias is not None
    if banned:
        with torch.no_grad():
            model.classifier.bias[END] = -1e4
    writer, settings = CudaGraphModel(model), DecodeConfig(beam=beam)
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
    numbers: Any = Numbers()
    if not banned:  # GPT has no bias there: the first token it would end with is another
        numbers.end = -1
    search = beam_search if beam > 1 else write
    return lambda: search(writer, requests, settings, numbers)


def theirs(config: ModelConfig, rows: int, length: int, beam: int) -> Round:
    """Hugging Face's model of the same size, with its own cache."""
    import transformers

    torch.manual_seed(1)
    if config.family == "encoder-decoder":
        sizes = {
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in {"layers": 6, "ffn_dim": 2048, "attention_heads": 8}.items()
        }
        made: Any = transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=config.vocab,
                d_model=512,
                max_position_embeddings=128,
                pad_token_id=PAD,
                eos_token_id=END,
                forced_eos_token_id=None,
                decoder_start_token_id=START,
                **sizes,
            )
        )
    else:
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    model = made.eval().to("cuda", torch.bfloat16)
    width = 32 if config.family == "encoder-decoder" else 16
    inputs = torch.randint(3, config.vocab, (rows, width), device="cuda")
    settings = {"num_beams": beam, "do_sample": False, "pad_token_id": PAD}
    exactly = {"min_new_tokens": length, "max_new_tokens": length}
    mask = torch.ones_like(inputs)
    return lambda: model.generate(inputs, attention_mask=mask, **settings, **exactly)


CASES = {
    "base, greedy, batch 1": (BASE, 1, 32, 1),
    "base, greedy, batch 64": (BASE, 64, 32, 1),
    "base, beam 5, batch 1": (BASE, 1, 32, 5),
    "base, beam 5, batch 64": (BASE, 64, 32, 5),
    "GPT-2 124M, batch 1": (GPT2, 1, 256, 1),
    "GPT-2 124M, batch 64": (GPT2, 64, 256, 1),
}


@torch.no_grad()
def race(case: tuple[ModelConfig, int, int, int], repeats: int) -> dict[str, float]:
    """Tokens per second of both, in turns; the first round of each is not counted."""
    contestants = {"limelight": ours(*case), "hugging face": theirs(*case)}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, play in contestants.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            play()
            torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    written = case[1] * case[2]
    return {name: written / statistics.median(times[1:]) for name, times in seconds.items()}


def main() -> None:
    """All cases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU; benchmarks/decoding_speed.py is for CPUs")
    told = {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in options.cases:
        speeds = race(CASES[name], options.repeats)
        told[name] = speeds
        times = speeds["limelight"] / speeds["hugging face"]
        print(
            f"{name:28} {speeds['limelight']:10,.0f} tokens/s, {times:.1f} x Hugging Face",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=2)


if __name__ == "__main__":
    main()
