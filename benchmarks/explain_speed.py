"""How long it takes to look inside the paper's base model, and how much a page has to fetch first.

    python benchmarks/explain_speed.py

The model is 6+6 layers of d_model 512 with 8,000 tokens and random weights, the text 64 tokens long
on both sides. The budgets: a manifest under 150 KB, a trace under 2 seconds on two cores.
"""

import gzip
import random
import time
from statistics import median

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.explain.explanation import Explanation, explain
from limelight.explain.render import serialize
from limelight.explain.stages import main_stages
from limelight.model import ModelConfig, build
from limelight.tasks.text_model import TextModel

TOKENS = 64
LARGEST = 150_000  # bytes of the manifest
LONGEST = 2.0  # seconds


def made_up_words(count: int, seed: int = 1) -> list[str]:
    """Words of a few syllables, as many as it takes to fill a vocabulary."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    return ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(count)]


def base() -> tuple[TextModel, str, str]:
    torch.manual_seed(1)
    words = made_up_words(60_000)
    texts = [" ".join(words[i : i + 20]) for i in range(0, len(words), 20)]
    tokenizer = Tokenizer.train("bpe", texts, 8000)
    model = build(ModelConfig(vocab=len(tokenizer), dropout=0.0)).eval()
    ids = tokenizer.encode(" ".join(words))
    source = tokenizer.decode(ids[: TOKENS - 1])
    target = tokenizer.decode(ids[TOKENS : 2 * TOKENS - 1])
    return TextModel(model, tokenizer), source, target


def timed(work) -> tuple[float, Explanation]:
    work()
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - begin)
    return median(seconds), found


def main() -> None:
    trained, source, target = base()
    greedy = DecodeConfig(beam=1, max_tokens=TOKENS)
    beam = DecodeConfig(beam=4, max_tokens=TOKENS)
    ways = {
        "a given target": lambda: explain(trained, source, target),
        "greedy decoding": lambda: explain(trained, source, config=greedy),
        "a beam of 4": lambda: explain(trained, source, config=beam),
    }
    print(f"base model, 6+6 layers, {TOKENS}+{TOKENS} tokens, {torch.get_num_threads()} threads")
    for name, work in ways.items():
        seconds, trace = timed(work)
        text = serialize.as_json(serialize.manifest(trace)).encode()
        numbers = sum(value.numel() for value in trace.values.values())
        verdict = "   OVER BUDGET" if len(text) >= LARGEST or seconds >= LONGEST else ""
        print(
            f"  {name:16} {len(trace.source)}+{len(trace.target)} tokens   {seconds:5.2f} s   "
            f"{numbers / 1e6:.1f}M numbers   manifest {len(text) / 1000:.0f} KB "
            f"({len(gzip.compress(text)) / 1000:.0f} KB compressed){verdict}"
        )
    seconds, _ = timed(lambda: serialize.manifest(trace))
    print(f"  making the manifest  {seconds:.2f} s")
    seconds, stages = timed(trace.walk)
    print(
        f"  all {len(stages)} stages        {seconds:.2f} s ({len(main_stages(trace))} and extras)"
    )
    thumbnails = len(serialize.thumbnails(trace).data)
    head = len(serialize.attention_head(trace, "decoder.2.cross", 3).data)
    print(f"  thumbnails {thumbnails / 1000:.0f} KB, one head {head / 1000:.0f} KB")


if __name__ == "__main__":
    main()
