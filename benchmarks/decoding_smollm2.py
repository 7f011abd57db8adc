"""How fast SmolLM2-135M writes on one thread of a CPU, beside other people's with the same weights.

    limelight import SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    python benchmarks/decoding_smollm2.py smollm2

One text of 16 tokens, 32 written greedily. Whoever computes in float32 must write the same tokens.
They take turns; the table shows each one's median round in CPU time. CTranslate2 alone
has the folder that its own converter makes. `--compile` adds transformers with a compiled step.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch and CTranslate2 are loaded

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

import limelight
from limelight.decode.config import DecodeConfig
from limelight.decode.request import Request
from limelight.interop.export_model import export_model

TEXT = "The history of the city begins long before the first king built his tower on the hill above"
READ, WRITTEN = 16, 32
Write = Callable[[], list[int]]


def ours(run: str, prompt: list[int], **how: Any) -> Write:
    """As a command decodes: `loaded.model` is never read, so nothing can have changed it."""
    loaded = limelight.load(run)
    if how.get("precision"):
        loaded = loaded.to(precision="int8")
    request = Request(prompt, WRITTEN)
    greedy = DecodeConfig(beam=1, engine=how.get("engine", "auto"))
    return lambda: list(loaded.engine.generate([request], greedy, logprobs=False)[0][0].tokens)


def theirs(folder: str, prompt: list[int], compiled: bool = False, **cache: Any) -> Write:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if compiled:
        model.forward = torch.compile(model.forward)
    tokens = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, **cache}

    def write() -> list[int]:
        found = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        return found[0, len(prompt) :].tolist()

    return write


def of_ctranslate2(made: str, prompt: list[int], precision: str) -> Write:
    model = ctranslate2.Generator(f"{made}/ct2", compute_type=precision, intra_threads=1)
    words = transformers.AutoTokenizer.from_pretrained(f"{made}/hf").convert_ids_to_tokens(prompt)

    def write() -> list[int]:
        options = {"max_length": WRITTEN, "sampling_topk": 1, "include_prompt_in_result": False}
        (found,) = model.generate_batch([words], **options)
        return list(found.sequences_ids[0])

    return write


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    loaded = limelight.load(options.run)
    prompt = loaded.tokenizer.encode(TEXT)[:READ]
    with tempfile.TemporaryDirectory() as made:
        export_model(options.run, f"{made}/hf", to="huggingface")
        TransformersConverter(f"{made}/hf").convert(f"{made}/ct2")  # its own way there
        static = {"cache_implementation": "static"}
        works = {
            "limelight": ours(options.run, prompt),
            "limelight, engine ctranslate2": ours(options.run, prompt, engine="ctranslate2"),
            "limelight, int8": ours(options.run, prompt, precision="int8"),
            "transformers": theirs(f"{made}/hf", prompt),
            "transformers, static cache": theirs(f"{made}/hf", prompt, **static),
            "CTranslate2, float32": of_ctranslate2(made, prompt, "float32"),
            "CTranslate2, int8": of_ctranslate2(made, prompt, "int8"),
        }
        if options.compile:
            compiled = theirs(f"{made}/hf", prompt, compiled=True, **static)
            works["transformers, static cache, compiled"] = compiled
        seconds: dict[str, list[float]] = {name: [] for name in works}
        written: dict[str, list[int]] = {}
        for _ in range(options.repeats + 1):  # the first round warms up, and compiles
            for name, write in works.items():
                began = time.process_time()
                written[name] = write()[:WRITTEN]
                seconds[name].append(time.process_time() - began)
    packages = ("torch", "transformers", "ctranslate2")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    print(loaded.tokenizer.decode(written["limelight"]))
    for name, rounds in seconds.items():
        same = "the same tokens" if written[name] == written["limelight"] else "other tokens"
        assert same == "the same tokens" or "int8" in name, (name, written)
        middle = statistics.median(rounds[1:])
        print(f"{name:38} {middle:6.2f} CPU s  {WRITTEN / middle:6.1f} tokens/CPU s  {same}")


if __name__ == "__main__":
    main()
