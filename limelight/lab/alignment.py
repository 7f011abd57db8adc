"""Which word belongs to which: IBM Model 1 (Brown et al., 1993), a reference without a network.

Every target token comes from one source token of its pair, by a table of probabilities that
expectation maximisation learns from the pairs alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[Any]  # of any integers, as token stores have them
_Pairs = list[tuple[_Ids, _Ids]]  # source and target tokens
_BASE = 2**32  # above every token
_KNOWN = 0.9  # of the probability; the rest is that of the target token alone


@dataclass(frozen=True)
class Model1:
    """How likely a source token becomes a target token."""

    links: _Ids  # source * _BASE + target, sorted
    probabilities: NDArray[np.float64]
    alone: NDArray[np.float64]  # the target tokens by frequency, add-one smoothed

    def of(self, source: _Ids, target: _Ids) -> NDArray[np.float64]:
        """The probabilities of each target token from each source token, T x S."""
        wanted = _flat([source])[None, :] * _BASE + _flat([target])[:, None]
        found = np.searchsorted(self.links, wanted).clip(max=len(self.links) - 1)
        return np.where(self.links[found] == wanted, self.probabilities[found], 0.0)

    def loss(self, pairs: _Pairs) -> float:
        """Nats per target token."""
        each = [
            np.log(_KNOWN * self.of(*pair).mean(axis=1) + (1 - _KNOWN) * self.alone[pair[1]])
            for pair in pairs
        ]
        return -float(np.concatenate(each).mean())


def fit(pairs: _Pairs, vocab: int, rounds: int = 5) -> Model1:
    """Learn the table; it begins with equal probabilities."""
    source = _flat(np.tile(s, len(t)) for s, t in pairs)
    target = _flat(np.repeat(t, len(s)) for s, t in pairs)
    sizes = [(len(s), len(t)) for s, t in pairs]
    explained = np.repeat(
        np.arange(sum(t for _, t in sizes)), np.repeat([s for s, _ in sizes], [t for _, t in sizes])
    )
    links, link = np.unique(source * _BASE + target, return_inverse=True)
    origin, table = links // _BASE, np.ones(len(links))
    for _ in range(rounds):
        share = table[link] / np.bincount(explained, table[link])[explained]
        count = np.bincount(link, share)
        table = count / np.bincount(origin, count)[origin]
    counts = np.bincount(_flat(t for _, t in pairs), minlength=vocab) + 1.0
    return Model1(links, table, counts / counts.sum())


def _flat(parts: Iterable[_Ids]) -> _Ids:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
