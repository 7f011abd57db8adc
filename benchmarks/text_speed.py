"""How fast text becomes batches, beside the bare `tokenizers` library, in the same run.

    python benchmarks/text_speed.py [FILE ...]      plain text; without one, made-up captions

Tokenising: megabytes a second into a store on disk, against the library encoding the same lines and
keeping nothing; the same lines as .csv and .parquet, against .txt. Batches: tokens a second
delivered from the store, on one core. Memory: the peak of preparing a corpus and one four times as
large.
"""

import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from limelight.data.batching import BatchPlan
from limelight.data.config import DataConfig
from limelight.data.datasets import Seq2SeqDataset
from limelight.data.input_files import open_packed
from limelight.data.token_store import chunks, open_or_build
from limelight.data.tokenizer import Tokenizer

WORDS = [f"w{'aeiou'[i % 5]}{chr(97 + i % 26)}{i % 97}" for i in range(5000)]


def made_up(lines: int) -> list[str]:
    draw = np.random.default_rng(0)
    ranks = np.minimum(draw.zipf(1.3, (lines, 24)) - 1, len(WORDS) - 1)
    sizes = draw.integers(5, 25, lines)
    return [" ".join(WORDS[i] for i in row[:n]) for row, n in zip(ranks, sizes, strict=True)]


def write_forms(folder: Path, name: str, lines: list[str]) -> None:
    """The same lines as .txt, .csv and .parquet."""
    (folder / f"{name}.txt").write_text("\n".join(lines))
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([line] for line in lines)])
    parquet.write_table(pyarrow.table({"text": lines}), folder / f"{name}.parquet")


def prepare(folder: Path, file: str, tokenizer: Tokenizer) -> float:
    """Seconds to make a store of this file."""
    began = time.perf_counter()
    data = DataConfig(kind="texts", train=(str(folder / file),))
    open_or_build(data, "train", tokenizer, folder / f"store of {file}")
    return time.perf_counter() - began


def peak_of_preparing(folder: Path, file: str) -> float:
    """Megabytes, in a process of its own, read on Linux: ru_maxrss begins at the parent's."""
    code = (
        "from pathlib import Path; from limelight.data.config import DataConfig;"
        "from limelight.data.token_store import open_or_build;"
        "from limelight.data.tokenizer import Tokenizer;"
        f"f = Path({str(folder)!r}); t = Tokenizer.load(f / 'tokenizer.json');"
        f"data = DataConfig(kind='texts', train=(str(f / '{file}'),));"
        f"open_or_build(data, 'train', t, f / 's{file}');"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e3


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    lines = [line.decode().rstrip("\n") for f in files for line in open_packed(f)] or made_up(
        200_000
    )
    lines = [line for line in lines if line.strip()]
    size = sum(len(line.encode()) for line in lines) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = Tokenizer.train("bpe", lines[:50_000], 8000)
        tokenizer.save(folder / "tokenizer.json")
        (folder / "pairs.tsv").write_text("".join(f"{x}\t{x}\n" for x in lines if "\t" not in x))
        for copies in (1, 4):
            write_forms(folder, str(copies), lines * copies)

        began = time.perf_counter()
        for chunk in chunks(iter([(line,) for line in lines])):
            tokenizer.core.encode_batch_fast([line for (line,) in chunk], add_special_tokens=False)
        bare = time.perf_counter() - began
        ours = prepare(folder, "1.txt", tokenizer)
        print(f"tokenising {size:.1f} MB: {size / ours:.1f} MB/s into a store, ", end="")
        print(f"the bare library {size / bare:.1f} MB/s, ratio {bare / ours:.2f}")
        for form in ("csv", "parquet"):
            taken = prepare(folder, f"1.{form}", tokenizer)
            print(f"from .{form}: {size / taken:.1f} MB/s, {ours / taken:.2f} of .txt")

        store = open_or_build(
            DataConfig(train=(str(folder / "pairs.tsv"),)), "train", tokenizer, folder / "p"
        )
        batches = BatchPlan(Seq2SeqDataset(store, tokenizer), batch_tokens=4096, seed=0)
        began = time.perf_counter()
        tokens = sum(int(b.source_real.sum() + b.target_real.sum()) for b in batches.epoch(0) if b)
        print(f"batches: {tokens / (time.perf_counter() - began) / 1e6:.1f} million tokens/s")
        for form in ("txt", "csv", "parquet"):
            small, large = (peak_of_preparing(folder, f"{copies}.{form}") for copies in (1, 4))
            print(f"peak memory, .{form}: {small:.0f} MB, for four times the corpus {large:.0f} MB")


if __name__ == "__main__":
    main()
