"""Score: how likely does a model find a text, or a translation of a source?"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.decode.engine import growing_windows
from limelight.decode.request import pad_batch
from limelight.errors import UserError
from limelight.tasks.text_model import TextModel, in_batches, networks_of


@dataclass(frozen=True)
class Scored:
    """The log-probability of every token of a text, the end token's last."""

    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    problem: str = ""  # why it could not be scored

    @property
    def total(self) -> float:
        return sum(self.logprobs)


def score(trained: TextModel, texts: Iterable[tuple[str, ...]], tag: str = "") -> Iterator[Scored]:
    """Of (source, target) the target, given the source; of (text,) the text."""
    trained.require("score")
    asked = trained.tag(tag)
    for window in growing_windows(texts):
        yield from _score_some(trained, window, asked)


def _score_some(trained: TextModel, texts: list[tuple[str, ...]], tag: list[int]) -> list[Scored]:
    found = [Scored() for _ in texts]
    read: dict[int, _Reading] = {}
    for i, text in enumerate(texts):
        try:
            read[i] = _encode(trained, text, tag)
        except UserError as error:
            found[i] = Scored(problem=str(error))
    indices = list(read)
    with torch.inference_mode():
        targets, sources = [r.target for r in read.values()], [r.source for r in read.values()]
        for batch, tokens, real in in_batches(trained, targets, 1024, sources):
            own = [read[indices[i]] for i in batch]
            logprobs = _logprobs(trained, [r.source for r in own], tokens, real)
            for i, row, r in zip(batch, logprobs.tolist(), own, strict=True):
                pieces = trained.tokenizer.pieces(r.target[r.first :])
                numbers = row[r.first - 1 : len(r.target) - 1]
                found[indices[i]] = Scored(tuple(pieces), tuple(numbers))
    return found


class _Reading(NamedTuple):
    source: list[int]  # what the encoder reads
    target: list[int]  # what the decoder reads and writes
    first: int  # the first token there that is scored


def _encode(trained: TextModel, text: tuple[str, ...], tag: list[int]) -> _Reading:
    tokenizer = trained.tokenizer
    wanted = 1 if trained.kind == "texts" else 2
    if len(text) != wanted:
        needed = "a source and a target" if wanted == 2 else "one text"
        count = "1 text" if len(text) == 1 else f"{len(text)} texts"
        raise UserError(f"this model scores {needed}, got {count} (a tab separates two)")
    source = [tokenizer.source.encode(side) for side in text[:-1]]
    ending = [*tokenizer.encode(text[-1]), tokenizer.end]
    if trained.kind == "texts":  # the first token of all has nothing before it
        decoded = [*tokenizer.text_start, *ending]
        given, first = list[int](), max(1, len(tokenizer.text_start))
    elif trained.family == "encoder-decoder":
        given = [*tag, *source[0], tokenizer.source.end]
        decoded, first = [tokenizer.start, *ending], 1
    else:
        before = [tokenizer.start, *tag, *source[0], tokenizer.separator]
        given, decoded, first = [], [*before, *ending], len(before)
    longest = max(len(given), len(decoded) - 1)
    if longest > trained.max_len:
        raise UserError(f"{longest} tokens are too many: the model reads {trained.max_len}")
    return _Reading(given, decoded, first)


def _logprobs(trained: TextModel, sources: list[list[int]], tokens: Tensor, real: Tensor) -> Tensor:
    """The log-probability of each token but the first, B T-1, all in one pass."""
    read, answers = tokens[:, :-1], tokens[:, 1:]
    given = [read, real[:, :-1]]
    if trained.family == "encoder-decoder":
        source, source_real = (x.to(tokens.device) for x in pad_batch(sources, 0))
        given = [source, read, source_real, real[:, :-1]]
    logits = [model(*given) for model in networks_of(trained)]
    precise = torch.promote_types(logits[0].dtype, torch.float32)
    each = torch.stack([some.log_softmax(dim=-1, dtype=precise) for some in logits])
    mean = each.logsumexp(dim=0) - math.log(len(each))  # of the probabilities
    return mean.gather(2, answers[..., None])[..., 0]


def nll_per_text(trained: TextModel, texts: Sequence[str]) -> list[float]:
    """For each text the negative log-probability of all its tokens and its end, in nats.

    A text that is longer than the model reads is read in stretches; each begins without context,
    at the last token of the one before.
    """
    trained.require("score")
    tokenizer, longest = trained.tokenizer, trained.max_len
    stretches, owners = [], []
    for owner, text in enumerate(texts):
        tokens = [*tokenizer.text_start, *tokenizer.encode(text), tokenizer.end]
        for begin in range(0, len(tokens) - 1, longest):
            stretches.append(tokens[begin : begin + longest + 1])
            owners.append(owner)
    found = [0.0] * len(texts)
    with torch.inference_mode():
        for batch, padded, real in in_batches(trained, stretches, 4096):
            logprobs = _logprobs(trained, [], padded, real) * real[:, 1:]
            for i, total in zip(batch, logprobs.sum(dim=1).tolist(), strict=True):
                found[owners[i]] -= total
    return found
