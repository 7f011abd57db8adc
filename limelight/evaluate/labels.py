"""How well a classifier sorts."""

from collections import Counter
from collections.abc import Sequence

from limelight.errors import UserError, unknown_name
from limelight.evaluate.language import accuracy
from limelight.evaluate.metrics import Measure, check_lines


def score_labels(
    outputs: Sequence[str], references: Sequence[str], positive: str = ""
) -> list[Measure]:
    """Accuracy, F1 of every class and their plain mean; of two classes also the positive one's.

    The classes are those that occur, given or wanted. Which of two is the positive one is the
    user's to say; otherwise it is the later in the alphabet ("1" of "0" and "1").
    """
    check_lines(outputs, references, "labels")
    right = sum(a == b for a, b in zip(outputs, references, strict=True))
    each = f1_by_class(outputs, references)
    if positive and positive not in each:
        raise unknown_name("class", positive, each)
    if positive and len(each) > 2:
        raise UserError(f"positive={positive!r} is for two classes, and there are {len(each)}")
    scores = [
        Measure("accuracy", accuracy(right, len(outputs))),
        Measure("macro F1", sum(each.values()) / len(each), signature=f"classes:{len(each)}"),
    ]
    if len(each) == 2:
        positive = positive or max(each)
        scores.append(Measure("F1", each[positive], signature=f"positive:{positive}"))
    return [*scores, *(Measure(f"F1 of {name}", f1) for name, f1 in each.items())]


def f1_by_class(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """F1, the harmonic mean of precision and recall, of every class that occurs.

    With p = hits / given and r = hits / wanted, 2pr / (p + r) = 2 hits / (given + wanted). It is 0
    where nothing was hit, also if the class was never given and precision alone means nothing.
    """
    given, wanted = Counter(outputs), Counter(references)
    hits = Counter(a for a, b in zip(outputs, references, strict=True) if a == b)
    return {
        name: 2 * hits[name] / (given[name] + wanted[name])
        for name in sorted(given.keys() | wanted.keys())
    }
