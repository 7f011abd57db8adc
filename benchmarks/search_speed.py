"""Search by meaning: how fast, how large, and how much it finds beside BM25.

    python benchmarks/search_speed.py rate RUN FILE [LINES]     embedding 20,000 lines of a text
    python benchmarks/search_speed.py rate minilm-shape FILE    the same, with random weights
    python benchmarks/search_speed.py index [VECTORS]           1,000,000 random vectors of 384
    python benchmarks/search_speed.py recall TATOEBA.tsv [RUN ...]

`index` builds an index of that many lines, changes one of them, and asks; what the model would
take is left out, and the answers are compared with brute force in float64. `recall` searches 20,000
English sentences for another one with the same translation: the share of 1,000 queries that find
one among the first ten.
"""

import math
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch

from limelight.data.input_files import raw_lines
from limelight.data.tokenizer import Tokenizer
from limelight.loading import load
from limelight.model import build, model_config
from limelight.tasks import search as task
from limelight.tasks.text_model import TextModel

LINES, QUERIES, TOP = 20_000, 1_000, 10
WIDTH = 384


def main() -> None:
    what, *words = sys.argv[1:] or ["--help"]
    if what == "rate":
        rate(*words)
    elif what == "index":
        index(int(words[0]) if words else 1_000_000)
    elif what == "recall":
        recall(*words)
    else:
        print(__doc__)


def minilm_shape(lines: list[str]) -> TextModel:
    """6 layers of 384, as all-MiniLM-L6-v2, with random weights; it reads as many tokens."""
    tokenizer = Tokenizer.train("uncased", lines, 30_522)
    shape = {"layers": 6, "d_model": WIDTH, "d_ff": 1536, "heads": 12, "max_len": 256}
    config = model_config(
        family="encoder-only", masked_head=False, vocab=30_522, positions="learned", **shape
    )
    torch.manual_seed(1)
    return TextModel(build(config).eval(), tokenizer, kind="texts")


def read_lines(path: str) -> list[str]:
    lines = (line.decode().strip() for line in raw_lines(Path(path)))
    return [line for line in lines if line]


def rate(run: str, path: str, lines: str = str(LINES)) -> None:
    texts = list(dict.fromkeys(line.split("\t")[0] for line in read_lines(path)))
    texts = random.Random(1).sample(texts, min(int(lines), len(texts)))
    trained = minilm_shape(texts) if run == "minilm-shape" else load(run, device="cpu")
    tokens = sum(map(len, trained.tokenizer.encode_many(texts)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lines.txt").write_text("\n".join(texts))
        list(task.embed(trained, texts[:64]))
        began, worked = time.perf_counter(), time.process_time()
        task.update_index(trained, [f"{folder}/lines.txt"], index=folder)
        took, worked = time.perf_counter() - began, time.process_time() - worked
        began = time.perf_counter()
        task.search(trained, texts[0], [f"{folder}/lines.txt"], index=folder)
        asked = time.perf_counter() - began
    per_line = tokens / len(texts)
    print(f"{run}: {len(texts):,} lines of {per_line:.1f} tokens in {took:.1f} s, "
          f"{len(texts) / took:,.0f} lines/s on {torch.get_num_threads()} threads, "
          f"{len(texts) / worked:,.0f} in a second of CPU time; "
          f"then a query takes {1000 * asked:.0f} ms")  # fmt: skip


def index(count: int) -> None:
    draw = np.random.default_rng(1)
    drawn: list[np.ndarray] = []

    def random_vectors(_, texts):
        made = draw.standard_normal((len(list(texts)), WIDTH)).astype(np.float32)
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        drawn.append(made)
        return iter(made)

    task.embed = random_vectors
    trained = minilm_shape(["a b"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.txt"
        lines = [f"line {i} of a text with some words in it" for i in range(count)]
        file.write_text("\n".join(lines))
        began, worked = time.perf_counter(), time.process_time()
        (found,) = task.update_index(trained, [str(file)], index=folder)
        print(f"build, {count:,} vectors: {time.perf_counter() - began:.1f} s, CPU "
              f"{time.process_time() - worked:.1f} s, with drawing the vectors")  # fmt: skip
        size = sum(f.stat().st_size for part in found.parts for f in part.iterdir())
        print(f"on the disk: {size / 1e6:,.0f} MB, of which vectors {count * WIDTH * 4 / 1e6:,.0f}")
        ask(trained, np.concatenate(drawn), found)
        lines[count // 2] = "another line"
        file.write_text("\n".join(lines))
        began, worked, before = time.perf_counter(), time.process_time(), len(drawn)
        task.update_index(trained, [str(file)], index=folder)
        took, worked = time.perf_counter() - began, time.process_time() - worked
        new = sum(map(len, drawn[before:]))
        print(f"one line changed: {new} embedded, {took:.1f} s, CPU {worked:.1f} s")


def ask(trained: TextModel, vectors: np.ndarray, found: task.FileIndex) -> None:
    times, worked, queries = [], [], np.random.default_rng(2).standard_normal((11, WIDTH))
    for query in queries / np.linalg.norm(queries, axis=1, keepdims=True):
        began = time.perf_counter(), time.process_time()
        rows = task.top_rows(found.vectors(), query, TOP)
        times.append(time.perf_counter() - began[0])
        worked.append(time.process_time() - began[1])
        exact = np.concatenate([
            (part.astype(np.float64) * query).sum(axis=1) for part in np.array_split(vectors, 64)
        ])  # fmt: skip
        best = np.argsort(-exact, kind="stable")[:TOP]
        assert [part * task._PART + row for _, part, row in rows] == best.tolist()
        assert [score for score, *_ in rows] == exact[best].tolist()
    print(f"query: first {times[0] * 1000:.0f} ms, then {np.median(times[1:]) * 1000:.0f} ms "
          f"(median of 10), CPU {np.median(worked[1:]) * 1000:.0f} ms, at best "
          f"{min(times) * 1000:.0f} ms; all equal to brute force in float64")  # fmt: skip


def recall(path: str, *runs: str) -> None:
    queries, partners, corpus = paraphrases(path)
    exact = np.mean([len(p) for p in partners])
    print(f"{len(queries):,} queries, {exact:.1f} partners each, {len(corpus):,} sentences")
    print(f"BM25: recall@{TOP} {bm25_recall(queries, partners, corpus):.3f}", flush=True)
    for run in runs:
        trained = load(run, device="cpu")
        began = time.perf_counter()
        vectors = np.array(list(task.embed(trained, corpus)), np.float32)
        took = time.perf_counter() - began
        place = {text: i for i, text in enumerate(corpus)}
        hits = 0
        for query, own in zip(queries, partners, strict=True):
            best = task.top_rows([vectors], vectors[place[query]], TOP + 1)
            found = [corpus[row] for *_, row in best if corpus[row] != query][:TOP]
            hits += bool(own & {*found})
        print(f"{run}: recall@{TOP} {hits / len(queries):.3f} "
              f"({len(corpus) / took:,.0f} sentences/s)", flush=True)  # fmt: skip


def paraphrases(path: str) -> tuple[list[str], list[set[str]], list[str]]:
    """Queries, the sentences with a translation in common with each, and all to search in.

    Pairs that differ in no word but contractions and punctuation (I'm, I am) are left out.
    """
    by_translation, translations = defaultdict(set), defaultdict(set)
    for line in read_lines(path):
        english, other = line.split("\t")[:2]
        by_translation[other].add(english)
        translations[english].add(other)
    same = {
        text: {p for t in translations[text] for p in by_translation[t] if plain(p) != plain(text)}
        for text in translations
    }
    draw = random.Random(1)
    queries = draw.sample(sorted(text for text, own in same.items() if own), QUERIES)
    partners = [same[text] for text in queries]
    corpus = {*queries}.union(*partners)
    others = sorted(translations.keys() - corpus)
    corpus |= {*draw.sample(others, max(0, LINES - len(corpus)))}
    return queries, partners, sorted(corpus)


SHORT = {"'m": " am", "'re": " are", "n't": " not", "'ll": " will", "'ve": " have", "'s": " is"}


def plain(text: str) -> str:
    text = text.lower().replace("won't", "will not").replace("can't", "cannot")
    for short, long in SHORT.items():
        text = text.replace(short, long)
    return "".join(re.findall(r"\w+", text))


def bm25_recall(queries: list[str], partners: list[set[str]], corpus: list[str]) -> float:
    """Okapi BM25 (k1 1.2, b 0.75) over lower-case words."""
    words = [re.findall(r"\w+", text.lower()) for text in corpus]
    sizes = np.array([len(each) for each in words])
    norm = 1.2 * (0.25 + 0.75 * sizes / sizes.mean())
    postings = defaultdict(list)
    for row, each in enumerate(words):
        for word, times in Counter(each).items():
            postings[word].append((row, times))
    hits = 0
    for query, own in zip(queries, partners, strict=True):
        scores = np.zeros(len(corpus))
        for word in set(re.findall(r"\w+", query.lower())):
            rows, times = np.array(postings[word]).T
            rarity = math.log(1 + (len(corpus) - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += rarity * times * 2.2 / (times + norm[rows])
        best = np.argsort(-scores, kind="stable")[: TOP + 1]
        hits += bool(own & {*[corpus[i] for i in best if corpus[i] != query][:TOP]})
    return hits / len(queries)


if __name__ == "__main__":
    main()
