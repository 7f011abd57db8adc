"""`limelight data check`: what is in a corpus and what is wrong with it; nothing is changed."""

import math
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from limelight.data.batching import plan_epoch
from limelight.data.config import DataConfig, num_columns
from limelight.data.corpora import corpora_for_split, read_split, train_tokenizer
from limelight.data.datasets import lengths_of
from limelight.data.progress import counting
from limelight.data.readers import LineStats
from limelight.data.token_store import open_or_build
from limelight.data.tokenizer import TokenizerConfig, valid_unicode
from limelight.errors import UserError

_MIXED_UP = {
    "copied": "have the source as their target: not translated?",
    "swapped": "look as if source and target were swapped",
    "source": "have a source that looks like the target's language",
    "target": "have a target that looks like the source's language",
}
_NEARLY = "case, accents, digits, punctuation and spaces"  # what `plain` leaves out
_BLOCK = 400  # lines in which an offset between two files is looked for
_AT_ONCE = 2**16  # characters of a long text
_BUCKETS = 2**16  # that the trigrams are counted in; a few share one
_ENOUGH = 12  # trigrams: shorter lines (names, numbers) can be anything
_TWO_LANGUAGES = 0.75  # of the lines must be typical of their side: of two languages 0.97 are
_SURE = 0.7  # of the mean logarithm of the odds, for one language against the other


def check(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    batch_tokens: int,
    max_len: int,
    joined: bool = False,
) -> dict[str, Any]:
    """All that `limelight data check` reports, as plain data.

    `joined` is for decoder-only models: source and target are one sequence.
    """
    there = [split for split in ("train", "valid", "test") if corpora_for_split(data, split)]
    splits = {split: _examine(data, split) for split in there}
    if not splits:
        raise UserError("the recipe names no data: say --data.train FILE ..., or --data.name")
    seen = {split: report.pop("sources") for split, report in splits.items()}
    report: dict[str, Any] = {"splits": splits, "leaks": _leaks(seen)}
    if "train" in splits and splits["train"]["tally"]["used"]:
        report["tokens"] = _tokens(data, tokenizer, batch_tokens, max_len, joined)
    report["warnings"] = list(_warnings(report))
    return report


def _examine(data: DataConfig, split: str) -> dict[str, Any]:
    tally = LineStats()
    lengths, exact, near, sources = (array("Q") for _ in range(4))  # eight bytes an example each
    for example in read_split(data, split, tally):
        lengths.extend(len(text) for text in example[: num_columns(data)])
        exact.append(_digest(example))
        near.append(_digest(map(plain, example)))
        sources.append(_digest([plain(example[0])]))
    sizes = np.array(lengths, np.int64).reshape(-1, num_columns(data))
    repeated = len(exact) - len(np.unique(exact))
    report: dict[str, Any] = {
        "tally": {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(tally).items()},
        "characters": dict(zip(("source", "target"), map(_percentiles, sizes.T), strict=False)),
        "duplicates": repeated,
        "near_duplicates": len(near) - len(np.unique(near)) - repeated,
        "sources": np.unique(sources),
    }
    if data.kind == "pairs" and not data.toy:
        report["shifted"] = misaligned_blocks(sizes)
        report["mixups"] = asdict(find_mixups(lambda: read_split(data, split, LineStats())))
    return report


def _digest(texts: Iterable[str]) -> int:
    content = "\0".join(map(valid_unicode, texts)).encode()
    return int.from_bytes(blake2b(content, digest_size=8).digest())


def plain(text: str) -> str:
    """A text without case, accents, digits, punctuation and spaces, to find near duplicates."""
    parts = (text[i : i + _AT_ONCE] for i in range(0, len(text), _AT_ONCE))
    small = (unicodedata.normalize("NFKD", part.casefold()) for part in parts)
    return "".join("".join(filter(str.isalpha, part)) for part in small) or text


def _percentiles(sizes: NDArray[np.int64]) -> dict[str, int]:
    percents = (5, 50, 95, 99, 100) if len(sizes) else ()
    return {str(p): int(np.percentile(sizes, p, method="lower")) for p in percents}


def misaligned_blocks(sizes: NDArray[np.int64]) -> list[int]:
    """First lines of blocks whose lengths fit the line before or after better than their own.

    The longer a sentence, the longer its translation: in an aligned block the logarithms of the
    lengths correlate; shift one side by a line, and they correlate there instead.
    """
    logs = np.log(np.maximum(sizes, 1))
    suspects = []
    for begin in range(0, len(logs) - 50, _BLOCK):
        source, target = logs[begin : begin + _BLOCK].T
        if len(source) < 50:
            break
        beside = max(_correlation(source[1:], target[:-1]), _correlation(source[:-1], target[1:]))
        if beside > _correlation(source, target) + 0.25:
            suspects.append(begin + 1)
    return suspects


def _correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0


@dataclass(frozen=True)
class LanguageMixups:
    """Numbers of suspicious pairs."""

    copied: int  # the target is the source: not translated
    swapped: int  # each side looks like the other's language
    source: int  # only the source looks like the target's language
    target: int  # only the target looks like the source's


def find_mixups(read: Callable[[], Iterable[tuple[str, ...]]]) -> LanguageMixups:
    """Count lines in the wrong language, with no model and no list of languages.

    Three letters in a row are typical of one side or of the other, and what most lines say about
    them judges every single line. The pairs are read twice: to count, and to judge. Where few lines
    are typical of their side, as in questions and answers, there is one language.
    """
    counts = np.ones((2, _BUCKETS))  # no trigram is impossible
    for pair in read():
        for side in (0, 1):
            np.add.at(counts[side], _trigrams(pair[side]), 1)
    odds = np.diff(np.log(counts / counts.sum(axis=1, keepdims=True)), axis=0)[0]
    found = {"copied": 0, "swapped": 0, "source": 0, "target": 0}
    typical, judged = np.zeros(2), np.zeros(2)
    for source, target in read():
        # Above 0: typical of its own side.
        lean = np.array([-_language_score(source, odds), _language_score(target, odds)])
        typical, judged = typical + (lean > _SURE), judged + (lean != 0)
        wrong = lean < -_SURE
        if source == target and len(source.split()) > 2:
            found["copied"] += 1
        elif any(wrong):
            found["swapped" if all(wrong) else "source" if wrong[0] else "target"] += 1
    if any(typical < _TWO_LANGUAGES * judged):
        return LanguageMixups(found["copied"], 0, 0, 0)
    return LanguageMixups(**found)


def _language_score(text: str, odds: NDArray[np.float64]) -> float:
    found = _trigrams(text)
    return float(odds[found].mean()) if len(found) >= _ENOUGH else 0.0


def _trigrams(text: str) -> NDArray[np.int64]:
    codes = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", "replace"), "<u4")
    codes = codes.astype(np.int64)
    return (codes[:-2] * 1_000_003 + codes[1:-1] * 10_007 + codes[2:] * 101) % _BUCKETS


def _leaks(seen: dict[str, NDArray[np.uint64]]) -> dict[str, int]:
    pairs = [("train", "valid"), ("train", "test"), ("valid", "test")]
    both = [(a, b) for a, b in pairs if a in seen and b in seen]
    return {f"{b} in {a}": len(np.intersect1d(seen[a], seen[b])) for a, b in both}


def _tokens(
    data: DataConfig, config: TokenizerConfig, batch_tokens: int, max_len: int, joined: bool
) -> dict[str, Any]:
    tokenizer = train_tokenizer(data, config)
    with TemporaryDirectory() as folder:
        with counting("tokenising") as progress:
            store = open_or_build(data, "train", tokenizer, Path(folder), progress)
        total = sum(len(column.tokens) for column in store.columns)
        report: dict[str, Any] = {"vocabulary": len(tokenizer), "tokens": total}
        words, lost = 0, 0
        for i, example in enumerate(read_split(data, "train", LineStats())):
            for column, text in zip(store.columns, example, strict=False):  # a label is no column
                words += len(text.split())
                lost += tokenizer.decode(column[i].tolist()) != tokenizer.normalize(text)
        report |= {"tokens_per_word": round(total / max(1, words), 3), "not_round_trip": lost}
        lengths = lengths_of(store)
        if joined:
            lengths = lengths.sum(axis=1, keepdims=True)
        if data.kind != "texts":  # those are cut into blocks
            labelled = data.kind == "labelled"
            lengths = lengths + labelled  # a classifier reads a start token too
            report["over_max_len"] = int((lengths > max_len).any(axis=1).sum())
            report["truncated"] = report["over_max_len"] if labelled else 0
        if num_columns(data) == 2:
            plan = plan_epoch(lengths, batch_tokens, seed=0, epoch=0)
            padded = sum(len(rows) * int(lengths[rows].max(axis=0).sum()) for rows in plan)
            padding = round(1 - float(lengths.sum()) / max(1, padded), 4)
            report |= {"batches": len(plan), "padding": padding}
    return report


def show(report: dict[str, Any], console: Console) -> None:
    """Print a report for people."""
    for split, facts in report["splits"].items():
        tally = facts["tally"]
        console.print(f"[bold]{split}[/]  {tally['read']:,} read, {tally['used']:,} used")
        for kind in ("rejected", "repaired"):
            for reason, count in sorted(tally[kind].items()):
                console.print(Text(f"  {count:>12,} {kind}: {reason}"))
        console.print(f"  {facts['duplicates']:>12,} duplicates")
        console.print(f"  {facts['near_duplicates']:>12,} more, ignoring {_NEARLY}")
        _show_lengths(facts["characters"], console)
    if "tokens" in report:
        facts = report["tokens"]
        console.print(f"[bold]tokens[/]  {facts['tokens']:,} in training, ", end="")
        console.print(f"{facts['tokens_per_word']} to a word, vocabulary {facts['vocabulary']:,}")
        if "batches" in facts:
            console.print(
                f"  {facts['batches']:,} batches an epoch, {facts['padding']:.1%} padding"
            )
    for warning in report["warnings"]:
        console.print(Text("warning: ", "yellow") + Text(warning, "default"))
    if not report["warnings"]:
        console.print("[green]no warnings[/]")


def _show_lengths(characters: dict[str, dict[str, int]], console: Console) -> None:
    longest = max((at for sizes in characters.values() for at in sizes.values()), default=1)
    for side, sizes in characters.items():
        for percent, at in sizes.items():
            bar = "█" * max(1, round(40 * at / longest))
            console.print(f"  {side:>8} {percent:>3}% {bar} {at:,} characters")


def _warnings(report: dict[str, Any]) -> Iterable[str]:
    for split, facts in report["splits"].items():
        tally = facts["tally"]
        rejected = sum(n for why, n in tally["rejected"].items() if why != "in another split")
        if not tally["used"]:
            yield f"{split} has no example that can be used"
        elif rejected > 0.05 * tally["read"]:
            share = math.ceil(100 * rejected / tally["read"])
            yield f"{share}% of {split} is rejected: see the reasons"
        for kind, count in facts.get("mixups", {}).items():
            if count:
                yield f"{count} pairs of {split} {_MIXED_UP[kind]}"
        if blocks := facts.get("shifted"):
            yield (
                f"{split} seems shifted by a line from about example {blocks[0]} on "
                f"({len(blocks)} blocks): is a line missing on one side?"
            )
    for leak, count in report["leaks"].items():
        if count:
            there, here = leak.split(" in ")
            same = f"{count} different sources of {there} are also in {here} ({_NEARLY} ignored)"
            yield f"{same}: scores on them mean little"
    tokens = report.get("tokens", {})
    if tokens.get("not_round_trip"):
        yield "some texts are changed by encoding and decoding"
    if long := tokens.get("over_max_len"):
        fate = "cut to it" if tokens["truncated"] else "left out"
        yield f"{long} examples are longer than the model's max_len in tokens, and are {fate}"
