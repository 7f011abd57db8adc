"""Is one run better than another, or is it chance?

The bootstrap resamples the test set with replacement and scores both runs on each sample: the more
the difference varies, the less it can be relied on. Both are always scored on the same sample
("paired"), since lines that are hard for one are mostly hard for the other. Of several runs, each
is compared with the first.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.errors import UserError
from limelight.evaluate.bleu import BETTER, References, metrics, streams_of
from limelight.evaluate.metrics import Better, check_lines

SAMPLES, SEED = 1000, 12345  # sacrebleu's own
_Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class _Estimate:
    """A run's score with its 95% confidence interval, by percentiles of the resampled scores.

    So an interval has only values that a score can have; a mean with a margin would exceed 100.
    """

    run: str
    score: float
    low: float
    high: float


@dataclass(frozen=True)
class _Other(_Estimate):
    """A third run, or a later one, against the first."""

    p_value: float


@dataclass(frozen=True)
class Comparison:
    """Runs by one metric; p says how often chance alone makes such a difference of two."""

    name: str
    better: Better
    first: _Estimate
    second: _Estimate
    p_value: float
    signature: str
    others: list[_Other] = field(default_factory=list)


def compare_translations(
    runs: Sequence[str],
    outputs: Sequence[Sequence[str]],
    references: References,
    samples: int = SAMPLES,
) -> list[Comparison]:
    """BLEU, chrF2 and TER of runs on the same references, with sacrebleu's paired bootstrap.

    Draws, p-values and widths of the intervals are sacrebleu's, which has no percentiles.
    """
    streams = streams_of(references)
    for stream in streams:
        for texts in outputs:
            check_lines(texts, stream)
    return [
        _compare_by(name, metric, runs, outputs, streams, samples)
        for name, metric in metrics().items()
    ]


def _compare_by(
    name: str,
    metric: Any,
    runs: Sequence[str],
    outputs: Sequence[Sequence[str]],
    streams: list[Sequence[str]],
    samples: int,
) -> Comparison:
    stats = [np.array(metric._extract_corpus_statistics(texts, streams)) for texts in outputs]

    def score(rows: Any) -> list[float]:
        return [metric._compute_score_from_stats(each[rows].sum(0)).score for each in stats]

    wanted = os.environ.get("SACREBLEU_SEED", "")
    seed = int(wanted) if wanted.isdecimal() else SEED
    scores, drawn = _bootstrap(score, len(streams[0]), samples, seed)
    signature = metric.get_signature()
    signature.update("seed", str(seed))
    signature.update("bs", samples)
    how = (name, BETTER[name], str(signature))
    return _comparison(*how, runs, scores, drawn, _sacrebleu_p_value)


def _comparison(
    name: str,
    better: Better,
    signature: str,
    runs: Sequence[str],
    scores: Sequence[float],
    drawn: _Numbers,
    p_value: Callable[[_Numbers, float], float],
) -> Comparison:
    first, second, *rest = map(_estimate, runs, scores, drawn.T)
    differences = zip((drawn[:, 1:] - drawn[:, :1]).T, scores[1:], strict=True)
    p, *others = (p_value(moved, score - scores[0]) for moved, score in differences)
    more = [_Other(**asdict(e), p_value=q) for e, q in zip(rest, others, strict=True)]
    return Comparison(name, better, first, second, p, signature, more)


def _sacrebleu_p_value(drawn: _Numbers, difference: float) -> float:
    """How often chance exceeds the difference.

    Between equal runs it never does, which sacrebleu would call significant: but no difference at
    all is no evidence.
    """
    if not difference:
        return 1.0
    moved = np.abs(drawn)
    exceeding = int((moved - moved.mean() > abs(difference)).sum())
    return (exceeding + 1) / (len(drawn) + 1)


def _estimate(run: str, score: float, drawn: _Numbers) -> _Estimate:
    cut = len(drawn) // 40  # sacrebleu's 2.5%
    low, high = np.sort(drawn)[[cut, -1 - cut]].tolist()
    # A score that is no mean may lie beside those of its samples, if there are few lines.
    return _Estimate(run, score, min(low, score), max(high, score))


def compare_examples(
    name: str,
    runs: Sequence[str],
    totals: Sequence[Sequence[float]],
    counts: Sequence[float] | None = None,
    better: Better = "higher",
    signature: str = "",
    samples: int = SAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Compare means over examples: for accuracy, `totals` are 1 or 0 for each.

    For a loss, `totals` are the negative log-likelihoods of the examples and `counts` their tokens
    or bytes, the same for all runs; then all tokens weigh the same, and not all examples.
    """
    *each, sizes = _check_examples(totals, counts)

    def score(rows: Any) -> list[float]:
        return [values[rows].sum() / sizes[rows].sum() for values in each]

    scores, drawn = _bootstrap(score, len(sizes), samples, seed)
    drawing = f"examples:{len(sizes)}|bs:{samples}|seed:{seed}"
    signature = f"{signature}|{drawing}" if signature else drawing
    return _comparison(name, better, signature, runs, scores, drawn, _chance_of)


def _check_examples(
    totals: Sequence[Sequence[float]], counts: Sequence[float] | None
) -> list[_Numbers]:
    each = [np.asarray(values, np.float64) for values in totals]
    sizes = np.ones_like(each[0]) if counts is None else np.asarray(counts, np.float64)
    lengths = [len(values) for values in (*each, sizes)]
    if len(set(lengths)) > 1:
        *many, counted = (f"{length:,}" for length in lengths)
        raise UserError(
            f"the runs have {' and '.join(many)} examples with {counted} counts: "
            "only scores of the same examples can be compared"
        )
    if not len(sizes):
        raise UserError("there is nothing to compare: no examples")
    if not np.isfinite([*each, sizes]).all():
        raise UserError("the runs cannot be compared: some scores are not finite")
    if sizes.min() <= 0:
        raise UserError(f"every example needs a count above 0, and there is one of {sizes.min():g}")
    return [*each, sizes]


def _bootstrap(
    score: Callable[[Any], list[float]], lines: int, samples: int, seed: int
) -> tuple[list[float], _Numbers]:
    """The scores of all runs on all lines, and on each sample of as many lines, samples x runs."""
    if samples < 100:
        raise UserError(f"samples={samples} are too few for a significance test: at least 100")
    random = np.random.default_rng(seed)
    # One sample at a time: together they would be samples x lines large.
    drawn = [score(random.integers(lines, size=lines)) for _ in range(samples)]
    return list(map(float, score(slice(None)))), np.array(drawn)


def _chance_of(drawn: _Numbers, difference: float) -> float:
    """How often chance alone moves the difference, either way, by as much as it is.

    The resampled differences scatter around the measured one as that scatters around the true one.
    If the true one were zero, the measured one would be such a move.
    """
    moved = np.abs(drawn - difference)
    as_far = int((moved >= abs(difference) * (1 - 1e-9)).sum())  # rounding must not break a tie
    return (as_far + 1) / (len(drawn) + 1)  # never 0: the set that was found is one of them


def welch_p_value(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Welch's t-test of two groups of runs with other seeds; None if one has a single run."""
    sizes = len(first), len(second)
    if min(sizes) < 2:
        return None
    errors = [float(np.var(own, ddof=1)) / len(own) for own in (first, second)]
    difference, error = abs(float(np.mean(first)) - float(np.mean(second))), sum(errors)
    if not error:
        return 1.0 if not difference else 0.0
    freedom = error**2 / sum(e**2 / (n - 1) for e, n in zip(errors, sizes, strict=True))
    return _student_tails(difference / math.sqrt(error), freedom)


def _student_tails(t: float, freedom: float) -> float:
    """The probability of both tails of Student's t distribution.

    With t = sqrt(freedom) tan(angle) its density is a power of a cosine, on a finite interval.
    """
    angle = math.atan(t / math.sqrt(freedom))
    nodes, weights = np.polynomial.legendre.leggauss(50)
    half = (math.pi / 2 - angle) / 2
    tail = half * float(weights @ np.cos(angle + half * (nodes + 1)) ** (freedom - 1))
    both = math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    return 2 * tail / (math.sqrt(math.pi) * math.exp(both))
