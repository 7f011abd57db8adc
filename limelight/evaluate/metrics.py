"""Scores with their signatures: accuracy, F1, bits per byte."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limelight.errors import UserError, unknown_name

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Measure:
    """One score of one system; only scores with the same signature can be compared."""

    name: str
    score: float
    better: Better = "higher"
    signature: str = ""


def check_lines(outputs: Sequence[str], wanted: Sequence[str], kind: str = "references") -> None:
    """Reject outputs and references of different counts: a missing line would shift all others."""
    if len(outputs) != len(wanted):
        raise UserError(
            f"there are {len(outputs):,} outputs and {len(wanted):,} {kind}: "
            "there must be one for each"
        )
    if not outputs:
        raise UserError(f"there is nothing to score: no outputs and no {kind}")


def bits_per_byte(nll: float, text_bytes: int) -> float:
    """The size of a text compressed with the model; `nll` in nats, summed over all of it."""
    _check_count(text_bytes, "bytes")
    return nll / math.log(2) / text_bytes


def accuracy(correct: int, total: int) -> float:
    """The share of predictions that were correct."""
    _check_count(total, "answers")
    if not 0 <= correct <= total:
        raise UserError(f"{correct:,} of {total:,} answers cannot be right")
    return correct / total


def count_bytes(texts: Iterable[str]) -> int:
    """The length of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _check_count(count: int, kind: str) -> None:
    if count < 1:
        raise UserError(f"there is nothing to score: {count} {kind}")


def score_labels(
    outputs: Sequence[str], references: Sequence[str], positive: str = ""
) -> list[Measure]:
    """Accuracy, F1 of every class and their plain mean; of two classes also the positive one's.

    The classes are those that occur, predicted or wanted. Of two classes, `positive` names the
    positive one; by default it is the later in the alphabet ("1" of "0" and "1").
    """
    check_lines(outputs, references, "labels")
    correct = sum(a == b for a, b in zip(outputs, references, strict=True))
    each = {name: own["f1"] for name, own in scores_by_class(outputs, references).items()}
    if positive and positive not in each:
        raise unknown_name("class", positive, each)
    if positive and len(each) > 2:
        raise UserError(f"positive={positive!r} is for two classes, and there are {len(each)}")
    scores = [
        Measure("accuracy", accuracy(correct, len(outputs))),
        Measure("macro F1", sum(each.values()) / len(each), signature=f"classes:{len(each)}"),
    ]
    if len(each) == 2:
        positive = positive or max(each)
        scores.append(Measure("F1", each[positive], signature=f"positive:{positive}"))
    return [*scores, *(Measure(f"F1 of {name}", f1) for name, f1 in each.items())]


def scores_by_class(
    outputs: Sequence[str], references: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F1, their harmonic mean, of every class that occurs; and its texts.

    With p = hits / given and r = hits / wanted, 2pr / (p + r) = 2 hits / (given + wanted). It is 0
    where nothing was hit, also if the class was never given and precision alone is undefined.
    """
    given, wanted = Counter(outputs), Counter(references)
    hits = Counter(a for a, b in zip(outputs, references, strict=True) if a == b)
    return {
        name: {
            "precision": hits[name] / max(1, given[name]),
            "recall": hits[name] / max(1, wanted[name]),
            "f1": 2 * hits[name] / (given[name] + wanted[name]),
            "texts": wanted[name],
        }
        for name in sorted(given.keys() | wanted.keys())
    }


def confusion_matrix(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """How often each class (a row) was taken for each (a column)."""
    pairs = Counter(zip(references, outputs, strict=True))
    classes = sorted({*outputs, *references})
    return {"classes": classes, "counts": [[pairs[a, b] for b in classes] for a in classes]}
