"""How fast a translator writes on one thread of a CPU, beside other people's on the same work.

    python benchmarks/decoding_speed.py

One set of random weights (3 + 3 layers, 256, 1024, 4 heads, vocabulary 8,000) in everybody's form;
64 sources of 10 to 30 tokens, 20 tokens for each: a bias keeps the end token away. Everybody's
tokens are compared before anything is timed. They take turns at every batch. A speed is that
of the median batch, in CPU time of all threads together; a ratio is the median over the batches,
because a machine's speed wavers.
Ours and CTranslate2's texts come with their log-probabilities; with "engine ctranslate2", as with
CTranslate2 itself, with the sum of them. Everybody reads and writes texts, whose words are numbers.
Our model is private, as `limelight.load` keeps it; a model "handed out" is one that somebody may
have changed, so its weights are compared before each search.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch and CTranslate2 are loaded

import torch

from limelight.decode.accel.changes import keep_private
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import Engine
from limelight.decode.request import Request, pad_batch
from limelight.model import ModelConfig, build

try:
    import ctranslate2
    import transformers
    from ctranslate2.converters.transformers import BartLoader
except ImportError as missing:
    sys.exit(f"{missing}: for the comparison, install it with pip install ctranslate2 transformers")

LAYERS, D, D_FF, HEADS, VOCAB = 3, 256, 1024, 4, 8000
PAD, START, END, SENTENCES, LENGTH, BEAM = 0, 1, 2, 64, 20, 5
MARIAN_LAYER = {
    "self_attn.q_proj": "self_attention.query",
    "self_attn.k_proj": "self_attention.key",
    "self_attn.v_proj": "self_attention.value",
    "self_attn.out_proj": "self_attention.output",
    "self_attn_layer_norm": "self_residual.norm",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.output",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_residual.norm",
}
BESIDE = [
    ("limelight, lean", "HF Marian generate"),
    ("limelight, lean", "CTranslate2 float32"),
    ("limelight, engine ctranslate2 float32", "limelight, lean"),
    ("limelight, engine ctranslate2 float32", "CTranslate2 float32"),
    ("limelight, engine ctranslate2 int8", "CTranslate2 int8"),
    ("limelight, engine ctranslate2 int8, handed out", "CTranslate2 int8"),
]
Texts = list[str]
Write = Callable[[Texts], Texts]  # sources in, texts out


class Numbers:
    """All that a search asks of a tokenizer: the words of a text are its tokens' numbers."""

    pad, start, end = PAD, START, END
    special_ids, ends = frozenset((PAD, START, END)), frozenset((END,))

    def is_text(self, i: int) -> bool:
        """All but the special tokens."""
        return i not in self.special_ids

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


NUMBERS: Any = Numbers()


def make_marian() -> Any:
    """Hugging Face's model with random weights, none of them left at zero or one.

    Norms flip the signs of half of their numbers: otherwise every token would repeat itself,
    because the table that reads it is the one that scores it.
    """
    both = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in {"layers": LAYERS, "ffn_dim": D_FF, "attention_heads": HEADS}.items()
    }
    special = {"pad_token_id": PAD, "decoder_start_token_id": START, "bos_token_id": START}
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        d_model=D,
        max_position_embeddings=64,
        scale_embedding=True,
        activation_function="relu",
        eos_token_id=END,
        forced_eos_token_id=None,
        **special,
        **both,
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
            if name.endswith("layer_norm.weight"):
                parameter.mul_(torch.randn_like(parameter).sign())
        model.final_logits_bias[:, [END, PAD]] = -1e9
    return model


def ours_from(marian: Any) -> Any:
    """The same weights in our model. Their waves are sines, then cosines; ours alternate."""
    theirs = dict(marian.named_parameters(remove_duplicate=False))
    ours = {
        f"{side}.layers.{i}.{new}.{kind}": theirs[f"model.{side}.layers.{i}.{old}.{kind}"].detach()
        for side in ("encoder", "decoder")
        for i in range(LAYERS)
        for old, new in MARIAN_LAYER.items()
        if side == "decoder" or "cross" not in new
        for kind in ("weight", "bias")
    }
    ours["classifier.bias"] = marian.final_logits_bias[0]
    ours["target.tokens.weight"] = theirs["model.shared.weight"].detach()
    alternating = torch.arange(D).view(2, D // 2).T.flatten()
    reads = ("tokens.weight", "query.weight", "key.weight", "value.weight", "inner.weight")
    writes = (".output.weight", ".output.bias", "outer.weight", "outer.bias", "norm.weight")
    for name, value in ours.items():
        if name.endswith(reads):
            ours[name] = value[:, alternating]
        elif name.endswith((*writes, "norm.bias")):
            ours[name] = value[alternating]
    sizes = {"layers": LAYERS, "d_model": D, "d_ff": D_FF, "heads": HEADS, "max_len": 64}
    model = build(ModelConfig(vocab=VOCAB, **sizes)).eval()
    model.load_state_dict(ours, strict=False)  # tied weights have more names than one
    return model


def ctranslate2_from(marian: Any, folder: str, precision: str) -> Any:
    """The same weights in CTranslate2's form."""
    marian = deepcopy(marian)  # its converter changes weights in place
    marian.config.normalize_before = marian.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(marian)
    words = [str(i) for i in range(VOCAB)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token, spec.config.bos_token = str(START), str(START)
    spec.config.eos_token, spec.config.unk_token = str(END), str(PAD)
    spec.validate()
    spec.optimize(quantization=precision)
    Path(folder).mkdir()
    spec.save(folder)
    return ctranslate2.Translator(
        folder, compute_type=precision, inter_threads=1, intra_threads=1, max_queued_batches=-1
    )


def write_with_ours(engine: Engine, config: DecodeConfig, sources: Texts) -> Texts:
    """As `limelight translate` does."""
    requests = [Request([START], LENGTH, NUMBERS.encode(source)) for source in sources]
    found = engine.generate(requests, config, logprobs=False)
    return [NUMBERS.decode(best.tokens) for best, *_ in found]


def write_with_marian(model: Any, beam: int, sources: Texts) -> Texts:
    tokens, real = pad_batch([NUMBERS.encode(source) for source in sources], PAD)
    written = model.generate(
        input_ids=tokens,
        attention_mask=real.long(),
        num_beams=beam,
        do_sample=False,
        max_new_tokens=LENGTH,
    )
    return [NUMBERS.decode(row) for row in written[:, 1:].tolist()]


def write_with_ctranslate2(model: Any, beam: int, sources: Texts) -> Texts:
    results = model.translate_batch(
        [source.split() for source in sources],
        beam_size=beam,
        max_decoding_length=LENGTH,
        return_scores=True,
    )
    return [" ".join(result.hypotheses[0]) for result in results]


class PlainEngine(Engine):
    """The model itself, without accelerators."""

    model = property(lambda self: self.accelerated[0].original)


def contestants(folder: str) -> dict[str, tuple[Write, Write]]:
    """How everybody writes, greedily and with beams."""
    marian = make_marian()
    ours = ours_from(marian)
    keep_private(ours)
    lean, chosen = DecodeConfig(beam=1), DecodeConfig(beam=1, engine="ctranslate2")
    forms = {
        "the model itself": (PlainEngine([ours], NUMBERS), lean),
        "lean": (Engine([ours], NUMBERS), lean),
        "engine ctranslate2 float32": (Engine([ours], NUMBERS), chosen),
        "engine ctranslate2 int8": (Engine([ours], NUMBERS, int8=True), chosen),
        "engine ctranslate2 int8, handed out": (
            Engine([deepcopy(ours)], NUMBERS, int8=True),
            chosen,
        ),
    }
    everybody: dict[str, tuple[Write, Write]] = {}
    for name, (engine, config) in forms.items():
        everybody[f"limelight, {name}"] = (
            partial(write_with_ours, engine, config),
            partial(write_with_ours, engine, replace(config, beam=BEAM)),
        )
    everybody["HF Marian generate"] = (
        partial(write_with_marian, marian, 1),
        partial(write_with_marian, marian, BEAM),
    )
    for precision in ("float32", "int8"):
        model = ctranslate2_from(marian, f"{folder}/{precision}", precision)
        everybody[f"CTranslate2 {precision}"] = (
            partial(write_with_ctranslate2, model, 1),
            partial(write_with_ctranslate2, model, BEAM),
        )
    return everybody


def race(
    works: dict[str, Write], batches: list[Texts], repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of everybody's batches, of the processor and on the clock.

    They take turns at every batch, so that a slow moment is everybody's, in an order that is drawn
    anew, so that nobody always comes after the same one; the first round warms up.
    """
    drawn = random.Random(0)
    clocks = {"CPU": time.process_time, "clock": time.perf_counter}
    times = {kind: {name: list[float]() for name in works} for kind in clocks}
    for i in range(repeats + 1):
        for batch in batches:
            for name, write in drawn.sample([*works.items()], len(works)):
                began = {kind: clock() for kind, clock in clocks.items()}
                write(batch)
                for kind, clock in clocks.items():
                    if i:
                        times[kind][name].append(clock() - began[kind])
    return times


def ratio(ours: list[float], theirs: list[float]) -> float:
    """How many times as fast we are, in the middle of all batches: a machine's speed wavers."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of contestants' names")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lengths = torch.randint(10, 31, (SENTENCES,)).tolist()
    sources = [NUMBERS.decode(torch.randint(3, VOCAB, (length,)).tolist()) for length in lengths]
    names = ("torch", "transformers", "ctranslate2")
    facts = {"date": str(date.today()), "machine": platform.processor() or platform.machine()}
    facts |= {name: version(name) for name in names}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        everybody = contestants(folder)
        everybody = {n: w for n, w in everybody.items() if any(part in n for part in options.only)}
        cases = {
            "batch 1, greedy": (0, sources[:8], 1),
            f"batch 1, beam {BEAM}": (1, sources[:8], 1),
            "batch 64, greedy": (0, sources, SENTENCES),
            f"batch 64, beam {BEAM}": (1, sources, SENTENCES),
        }
        for case, (way, rows, size) in cases.items():
            batches = [rows[i : i + size] for i in range(0, len(rows), size)]
            works = {name: writes[way] for name, writes in everybody.items()}
            results[case] = report(case, works, batches, options.repeats)
    if options.json:
        options.json.write_text(json.dumps({**facts, "cases": results}, indent=1))


def report(
    case: str, works: dict[str, Write], batches: list[Texts], repeats: int
) -> dict[str, float]:
    """Say who wrote the same, and how fast by the processor's time."""
    texts = {name: [t for batch in batches for t in write(batch)] for name, write in works.items()}
    truth = next(iter(texts.values()))
    times, size = race(works, batches, repeats), len(batches[0])
    seconds = {name: statistics.median(taken) for name, taken in times["CPU"].items()}
    print(case)
    for name, taken in seconds.items():
        same = sum(a == b for a, b in zip(texts[name], truth, strict=True))
        print(f"  {name:46}{size / taken:9.1f} sentences/s", end="")
        print(f"   {same} of {len(truth)} texts as the first")
    for ours, theirs in BESIDE:
        if {ours, theirs} <= works.keys():
            cpu, clock = (ratio(own[ours], own[theirs]) for own in times.values())
            print(f"  {ours} is {cpu:.2f} x {theirs} ({clock:.2f} x on the clock)", flush=True)
    return {name: round(size / taken, 1) for name, taken in seconds.items()}


if __name__ == "__main__":
    main()
