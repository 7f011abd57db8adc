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
from limelight.tasks.text_model import TextModel, in_batches


@dataclass(frozen=True)
class Scored:
    """The log-probability of every token of a text, the end token's last."""

    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    problem: str = ""  # why there is none

    @property
    def total(self) -> float:
        """The text's own."""
        return sum(self.logprobs)


def score(trained: TextModel, texts: Iterable[tuple[str, ...]], tag: str = "") -> Iterator[Scored]:
    """Of (source, target) the target, given the source; of (text,) the text."""
    trained.require("score")
    asked = trained.tag(tag)
    for window in growing_windows(texts):
        yield from _score_some(trained, window, asked)


def _score_some(trained: TextModel, texts: list[tuple[str, ...]], tag: list[int]) -> list[Scored]:
    """The same for a few, those of like length together."""
    told = [Scored() for _ in texts]
    read: dict[int, _Reading] = {}
    for i, text in enumerate(texts):
        try:
            read[i] = _to_be_read(trained, text, tag)
        except UserError as error:
            told[i] = Scored(problem=str(error))
    places = list(read)
    with torch.inference_mode():
        wholes, sources = [r.whole for r in read.values()], [r.source for r in read.values()]
        for batch, tokens, real in in_batches(trained, wholes, 1024, sources):
            own = [read[places[i]] for i in batch]
            logprobs = _logprobs_of(trained, [r.source for r in own], tokens, real)
            for i, row, r in zip(batch, logprobs.tolist(), own, strict=True):
                pieces = trained.tokenizer.pieces(r.whole[r.first :])
                numbers = row[r.first - 1 : len(r.whole) - 1]
                told[places[i]] = Scored(tuple(pieces), tuple(numbers))
    return told


class _Reading(NamedTuple):
    """A text as a model reads it."""

    source: list[int]  # what the encoder reads
    whole: list[int]  # what the decoder reads and writes
    first: int  # the first token there that is scored


def _to_be_read(trained: TextModel, text: tuple[str, ...], tag: list[int]) -> _Reading:
    """The text as the family reads it, as in training."""
    tokenizer = trained.tokenizer
    wanted = 1 if trained.kind == "texts" else 2
    if len(text) != wanted:
        needed = "a source and a target" if wanted == 2 else "one text"
        count = "1 text" if len(text) == 1 else f"{len(text)} texts"
        raise UserError(
            f"this model scores {needed}, and not {count} (in a line, a tab divides them)"
        )
    *source, target = (tokenizer.encode(side) for side in text)
    ending = [*target, tokenizer.end]
    if trained.kind == "texts":
        whole = [tokenizer.end, *ending]
        given: list[int] = []
        first = 1
    elif trained.family == "encoder-decoder":
        given = [*tag, *source[0], tokenizer.end]
        whole, first = [tokenizer.start, *ending], 1
    else:
        before = [tokenizer.start, *tag, *source[0], tokenizer.separator]
        given, whole, first = [], [*before, *ending], len(before)
    longest = max(len(given), len(whole) - 1)
    if longest > trained.max_len:
        raise UserError(f"{longest} tokens are too many: the model reads {trained.max_len}")
    return _Reading(given, whole, first)


def _logprobs_of(
    trained: TextModel, sources: list[list[int]], tokens: Tensor, real: Tensor
) -> Tensor:
    """The log-probability of each token but the first, B T-1, all in one pass."""
    read, answers = tokens[:, :-1], tokens[:, 1:]
    given = [read, real[:, :-1]]
    if trained.family == "encoder-decoder":
        source, source_real = (x.to(tokens.device) for x in pad_batch(sources, 0))
        given = [source, read, source_real, real[:, :-1]]
    models = [trained.model, *trained.ensemble]
    told = [_precise(model(*given)).log_softmax(dim=-1) for model in models]
    mean = torch.stack(told).logsumexp(dim=0) - math.log(len(told))  # of the probabilities
    return mean.gather(2, answers[..., None])[..., 0]


def _precise(logits: Tensor) -> Tensor:
    """Scores in which a sum of many loses nothing."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def nll_per_text(trained: TextModel, texts: Sequence[str]) -> list[float]:
    """For each text the negative log-probability of all its tokens and its end, in nats.

    A text that is longer than the model reads is taken in stretches; each begins afresh, with the
    last token of the one before.
    """
    trained.require("score")
    tokenizer, longest = trained.tokenizer, trained.max_len
    stretches, owners = [], []
    for owner, text in enumerate(texts):
        whole = [tokenizer.end, *tokenizer.encode(text), tokenizer.end]
        for begin in range(0, len(whole) - 1, longest):
            stretches.append(whole[begin : begin + longest + 1])
            owners.append(owner)
    told = [0.0] * len(texts)
    with torch.inference_mode():
        for batch, tokens, real in in_batches(trained, stretches, 4096):
            logprobs = _logprobs_of(trained, [], tokens, real) * real[:, 1:]
            for i, total in zip(batch, logprobs.sum(dim=1).tolist(), strict=True):
                told[owners[i]] -= total
    return told
