"""`limelight data check`: what is in a corpus and what is wrong with it; nothing is changed."""

import math
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from limelight.data.batching import plan_epoch
from limelight.data.config import NO_DATA, SPLITS, DataConfig, num_columns
from limelight.data.corpora import corpora_for_split, read_split, train_tokenizer
from limelight.data.datasets import lengths_of
from limelight.data.lines import Fragment, LineStats
from limelight.data.progress import counting
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
_SHOWN = 5  # examples of each finding
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
    there = [split for split in SPLITS if corpora_for_split(data, split)]
    examined = {split: _examine(data, split) for split in there}
    if not examined:
        raise UserError(NO_DATA)
    splits = {split: report for split, (report, _) in examined.items()}
    seen = {split: digests for split, (_, digests) in examined.items()}
    report: dict[str, Any] = {"kind": data.kind, "splits": splits, "leaks": _leaks(seen)}
    for split, facts in splits.items():
        facts["examples"] |= _located(data, split, seen, facts.pop("rows"))
    if "train" in splits and splits["train"]["tally"]["used"]:
        report["tokens"] = _tokens(data, tokenizer, batch_tokens, max_len, joined)
    report["warnings"] = list(_warnings(report))
    return report


class _Digests:
    """What the examples of a split are equal to, and where each stands: 40 bytes an example."""

    def __init__(self) -> None:
        self.exact, self.near, self.sources, self.lines = (array("Q") for _ in range(4))
        self.files, self.names = array("L"), dict[str, int]()

    def add(self, example: tuple[str, ...], tally: LineStats) -> None:
        self.exact.append(_digest(example))
        self.near.append(_digest(map(plain, example)))
        self.sources.append(_digest([plain(example[0])]))
        self.lines.append(tally.line)
        self.files.append(self.names.setdefault(tally.file, len(self.names)))

    def where(self, row: int) -> dict[str, Any]:
        return {"file": [*self.names][self.files[row]], "line": self.lines[row]}


def _examine(data: DataConfig, split: str) -> tuple[dict[str, Any], _Digests]:
    tally, digests, before = LineStats(), _Digests(), 0
    lengths, labels = array("Q"), Counter[str]()
    for example in read_split(data, split, tally):
        if isinstance(example, Fragment):
            before += len(example[0])
            continue
        lengths.extend(before + len(text) for text in example[: num_columns(data)])
        digests.add(example, tally)
        before = 0
        if data.kind == "labelled":
            labels[example[1]] += 1
    sizes = np.array(lengths, np.int64).reshape(-1, num_columns(data))
    exact, near = _repeated(digests.exact), _repeated(digests.near)
    only_near = near[~np.isin(near[:, 0], exact[:, 0])]
    rows = {"duplicate": exact[:_SHOWN].tolist(), "near duplicate": only_near[:_SHOWN].tolist()}
    report: dict[str, Any] = {
        "tally": tally.counts,
        "characters": dict(zip(("source", "target"), map(_percentiles, sizes.T), strict=False)),
        "duplicates": len(exact),
        "near_duplicates": len(near) - len(exact),
        "examples": tally.examples,
        "rows": rows,
    }
    if labels:
        report["labels"] = dict(labels.most_common())
    if data.kind == "pairs" and not data.toy:
        report["shifted"] = misaligned_blocks(sizes)
        mixups = find_mixups(lambda: read_split(data, split))
        report["mixups"] = {kind: getattr(mixups, kind) for kind in _MIXED_UP}
        rows |= {kind: [(row, None) for row in some] for kind, some in mixups.rows.items()}
    return report, digests


def _repeated(digests: "array[int]") -> NDArray[np.int64]:
    """The examples that occurred before, each with the first of its kind: n x 2."""
    _, first, kind = np.unique(np.array(digests), return_index=True, return_inverse=True)
    pairs = np.stack([np.arange(len(digests)), first[kind]], axis=1)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def _located(
    data: DataConfig, split: str, seen: dict[str, _Digests], rows: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Examples of what is suspected, duplicated or leaked: file, line, text, and what it equals."""
    ours, equal = seen[split], dict.fromkeys(rows, seen[split])
    for other in seen if split != "train" else ():
        if other == "train" or (split, other) == ("test", "valid"):
            common = np.intersect1d(seen[other].sources, ours.sources)[: 4 * _SHOWN]
            found = np.flatnonzero(np.isin(ours.sources, common))[:_SHOWN].tolist()
            theirs = [seen[other].sources.index(ours.sources[row]) for row in found]
            rows[f"also in {other}"] = list(zip(found, theirs, strict=True))
            equal[f"also in {other}"] = seen[other]
    wanted = {row for some in rows.values() for row, _ in some}
    texts = dict[int, str]()
    read = (e for e in read_split(data, split) if not isinstance(e, Fragment))
    for row, example in enumerate(read if wanted else ()):
        if row in wanted:
            texts[row] = " | ".join(example)[:80]
        if len(texts) == len(wanted):
            break

    def entry(name: str, row: int, other: int | None) -> dict[str, Any]:
        same = {} if other is None else {"same_as": equal[name].where(other)}
        return {**ours.where(row), "text": texts[row], **same}

    return {name: [entry(name, *pair) for pair in some] for name, some in rows.items() if some}


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
    rows: dict[str, list[int]] = field(default_factory=dict, compare=False)  # the first of each


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
    found: dict[str, list[int]] = {kind: [] for kind in _MIXED_UP}
    typical, judged = np.zeros(2), np.zeros(2)
    for row, (source, target, *_) in enumerate(read()):
        # Above 0: typical of its own side.
        lean = np.array([-_language_score(source, odds), _language_score(target, odds)])
        typical, judged = typical + (lean > _SURE), judged + (lean != 0)
        wrong = lean < -_SURE
        if source == target and len(source.split()) > 2:
            found["copied"].append(row)
        elif any(wrong):
            found["swapped" if all(wrong) else "source" if wrong[0] else "target"].append(row)
    if any(typical < _TWO_LANGUAGES * judged):
        found |= {"swapped": [], "source": [], "target": []}
    numbers = {kind: len(rows) for kind, rows in found.items()}
    return LanguageMixups(**numbers, rows={kind: rows[:_SHOWN] for kind, rows in found.items()})


def _language_score(text: str, odds: NDArray[np.float64]) -> float:
    found = _trigrams(text)
    return float(odds[found].mean()) if len(found) >= _ENOUGH else 0.0


def _trigrams(text: str) -> NDArray[np.int64]:
    codes = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", "replace"), "<u4")
    codes = codes.astype(np.int64)
    return (codes[:-2] * 1_000_003 + codes[1:-1] * 10_007 + codes[2:] * 101) % _BUCKETS


def _leaks(seen: dict[str, _Digests]) -> dict[str, int]:
    pairs = [("train", "valid"), ("train", "test"), ("valid", "test")]
    both = [(a, b) for a, b in pairs if a in seen and b in seen]
    return {f"{b} in {a}": len(np.intersect1d(seen[a].sources, seen[b].sources)) for a, b in both}


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
        stream = data.stream or data.valid_tail  # whose examples are parts of one text
        for i, example in enumerate(read_split(data, "train")):
            for column, text in zip(store.columns, example, strict=False):  # a label is no column
                words += len(text.split())
                ids = tokenizer.encode(text) if stream else column[i].tolist()
                lost += tokenizer.decode(ids) != tokenizer.normalize(text)
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
    console.print(f"read as {report['kind']}; --data.kind changes that")
    for split, facts in report["splits"].items():
        tally, examples = facts["tally"], dict(facts["examples"])
        console.print(f"[bold]{split}[/]  {tally['read']:,} read, {tally['used']:,} used")
        for kind in ("rejected", "repaired"):
            for reason, count in sorted(tally[kind].items()):
                console.print(Text(f"  {count:>12,} {kind}: {reason}"))
                _show_examples(examples.pop(reason, ()), console)
        console.print(f"  {facts['duplicates']:>12,} duplicates")
        _show_examples(examples.pop("duplicate", ()), console)
        console.print(f"  {facts['near_duplicates']:>12,} more, ignoring {_NEARLY}")
        _show_examples(examples.pop("near duplicate", ()), console)
        for finding, some in examples.items():
            console.print(Text(f"{'':15}{finding}:"))
            _show_examples(some, console)
        _show_labels(facts.get("labels", {}), console)
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


def _show_examples(examples: Iterable[dict[str, Any]], console: Console) -> None:
    for one in examples:
        same = f", as {_position(one['same_as'], one['file'])}" if "same_as" in one else ""
        line = Text(f"{'':17}{_position(one)}{same}: {' '.join(one['text'].split())}", "dim")
        console.print(line, no_wrap=True, overflow="ellipsis")


def _position(found: dict[str, Any], beside: str = "") -> str:
    file = Path(found["file"])
    what = "row" if file.suffix in ("", ".json", ".parquet") else "line"
    known = not file.name or found["file"] == beside
    return f"{what} {found['line']}" + ("" if known else f" of {file.name}")


def _show_labels(labels: dict[str, int], console: Console) -> None:
    total = sum(labels.values())
    for label, count in list(labels.items())[:20]:
        console.print(Text(f"  {count:>12,} {count / total:6.1%} {label[:50]}"))
    if len(labels) > 20:
        console.print(f"  {'':12} and {len(labels) - 20:,} other labels")


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
        yield from _column_warnings(split, facts)
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


def _column_warnings(split: str, facts: dict[str, Any]) -> Iterable[str]:
    yield from LineStats(examples=facts["examples"]).headers
    labels = facts.get("labels", {})
    if len(labels) > 100 and 2 * len(labels) > facts["tally"]["used"]:
        yield f"{split} has {len(labels):,} different labels: is the column right?"
    elif rare := [label for label, count in labels.items() if count < 5]:
        yield f"{split} has fewer than 5 examples of {', '.join(rare[:5])}"
