"""Beam search where the model ranks: all of a step stays on the GPU, so that it can be recorded.

A plain search needs the few likeliest tokens of each text and nothing else. What it keeps between
two steps lies at the model's side, in tensors that are changed where they are, and this side only
looks at what was told: which place was extended by which token. Texts are put together in the end,
from the last token of the best ones back to their beginning.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.decode.async_copy import copy_to_device_async, copy_to_host_async
from limelight.decode.beam import BeamSearch, PendingStep, length_penalty
from limelight.decode.request import DAMAGED, Hypothesis, device_of, encode_sources, prefill
from limelight.decode.sampling import NEG_INF
from limelight.errors import UserError


class BeamBuffers:
    """What a search keeps between two steps, with a line for each of B beams of K places."""

    def __init__(self, count: int, width: int, end: int, like: Tensor) -> None:
        self.shape, self.end = (count, width), end
        self.scores = torch.full_like(like[:1, :1], NEG_INF).repeat(count, width)  # no text yet
        self.newest = torch.zeros(self.shape, dtype=torch.long, device=like.device)
        self.open = torch.full((count, 1), width, device=like.device)  # places, the first ones
        self.left = torch.zeros(count, 1, dtype=torch.long, device=like.device)  # tokens to write
        self.outputs = torch.zeros(4, *self.shape, dtype=torch.float64, device=like.device)
        self.places = torch.arange(width, device=like.device)
        self.first_rows = torch.arange(0, count * width, width, device=like.device)[:, None]

    def extend(self, logprobs: Tensor, tokens: Tensor) -> Tensor:
        """All texts by their likeliest tokens, B*K C: the best take the places.

        Tells parents, tokens, their log-probabilities and the sums of these, each B K; returns
        which rows the places have now, B*K.
        """
        beams, places = self.shape
        totals = self.scores[..., None] + logprobs.view(beams, places, -1)
        scores, best = totals.flatten(1).topk(places, dim=1)
        scores.masked_fill_(self.places >= self.open, NEG_INF)
        parents = best // totals.size(2)
        torch.gather(tokens.view(beams, -1), 1, best, out=self.newest)
        chosen = logprobs.view(beams, -1).gather(1, best)
        for told, numbers in zip(self.outputs, (parents, self.newest, chosen, scores), strict=True):
            told.copy_(numbers)
        ended = (scores > NEG_INF) & (self.newest == self.end)
        self.open -= ended.sum(dim=1, keepdim=True)
        self.left -= 1
        self.scores.copy_(scores.masked_fill_(ended | (self.left <= 0), NEG_INF))
        return (parents + self.first_rows).flatten()

    def keep(self, beams: Tensor) -> "BeamBuffers":
        """These alone, elsewhere."""
        kept = BeamBuffers(len(beams), self.shape[1], self.end, self.scores)
        for ours, theirs in zip(self.lines(), kept.lines(), strict=True):
            torch.index_select(ours, 0, beams, out=theirs)
        return kept

    def load(self, others: "BeamBuffers") -> None:
        """Take over others, which may be fewer: the last lines have no texts then."""
        self.scores[others.shape[0] :] = NEG_INF
        for ours, theirs in zip(self.lines(), others.lines(), strict=True):
            ours[: len(theirs)] = theirs

    def lines(self) -> tuple[Tensor, ...]:
        """All that lasts."""
        return self.scores, self.newest, self.open, self.left


class _FinishedBeam(NamedTuple):
    """A text that has ended, by where it did."""

    score: float
    step: int
    place: int


class DeviceBeamSearch(BeamSearch):
    """A search whose beams are where the model is; this side follows behind."""

    def prefill(self) -> None:
        """Read sources and prompts; prompts of one token are left to the first step."""
        requests, width, pad = self.requests, self.config.beam, self.tokenizer.pad
        device = device_of(self.model)
        self.ends: list[list[_FinishedBeam]] = [[] for _ in requests]
        # Of every step: which beams the rows had; parents, tokens and their log-probabilities.
        self.steps: list[tuple[dict[int, int], Any, Any, Any]] = []
        self.ranked: Any = None  # the likeliest tokens after a prompt, if there are some already
        kind = next(iter(self.model.parameters())).dtype
        if all(len(request.prompt) == 1 for request in requests):
            self.state = encode_sources(self.model, requests, pad)
        else:
            logits, self.state = prefill(self.model, requests, pad)
            own = logits.to(torch.promote_types(kind, torch.float32)).log_softmax(dim=-1)
            best = own.topk(min(width, own.size(1)), dim=1)
            self.ranked = [part.repeat_interleave(width, dim=0) for part in best]
        every = torch.arange(len(requests), device=device).repeat_interleave(width)
        self.state.select(every)
        nothing = torch.zeros(1, 1, dtype=torch.promote_types(kind, torch.float32), device=device)
        self.beams = BeamBuffers(len(requests), width, self.tokenizer.end, nothing)
        self.beams.scores[:, 0] = 0  # one empty text
        given = [[request.prompt[-1], request.limit] for request in requests]
        self.beams.newest[:], self.beams.left[:] = copy_to_device_async(
            torch.tensor(given), device
        ).T[..., None]

    def extend(self) -> None:
        """All texts by their likeliest tokens; the model has then chosen, and is ready to go on."""
        if self.ranked is None:
            model: Any = self.model
            self.beams = model.step_beams(self.beams, self.state)
        else:  # all rows of a beam are the same still
            self.beams.extend(*self.ranked)
            self.ranked = None
        self.scores = self.beams.scores[: len(self.rows)]

    def mark_finished(self) -> None:
        """The beams have done that; what they tell is read when it comes."""
        self.in_flight.append(
            PendingStep(self.rows, self.length, copy_to_host_async(self.beams.outputs))
        )

    def advance_model(self) -> None:
        """The next step begins with it."""

    def collect(self, step: PendingStep) -> None:
        """Note what was written, where texts have ended, and what the others may come to."""
        told = step.read()[0][:, : len(step.rows)].numpy()
        if np.isnan(told[2]).any():
            raise UserError(DAMAGED)
        places, totals = told[:2].astype(int), told[3]
        limits = np.array([[self.requests[row].limit] for row in step.rows])
        found = (totals > NEG_INF) & ((places[1] == self.tokenizer.end) | (limits <= step.length))
        penalty = length_penalty(step.length, self.config.length_penalty)
        for beam, place in np.argwhere(found).tolist():
            score = float(totals[beam, place]) / penalty
            self.ends[step.rows[beam]].append(_FinishedBeam(score, len(self.steps), place))
        hopes = np.where(found, NEG_INF, totals).max(axis=1)
        self.upper_bounds.update(zip(step.rows, hopes.tolist(), strict=True))
        beams = {row: beam for beam, row in enumerate(step.rows)}
        self.steps.append((beams, *places.tolist(), told[2].tolist()))

    def keep(self, beams: Tensor) -> None:
        """Only these beams stay."""
        if self.rows:
            self.state.select((beams[:, None] * self.config.beam + self.beams.places).flatten())
            self.beams = self.beams.keep(beams)

    def scores_of(self, row: int) -> list[float]:
        """Of the texts that were found."""
        return [text.score for text in self.ends[row]]

    def best_of(self, row: int) -> list[Hypothesis]:
        """The best texts found."""
        ranked = sorted(self.ends[row], key=lambda text: -text.score)
        return [self.backtrack(row, text) for text in ranked[: self.nbest]]

    def backtrack(self, row: int, end: _FinishedBeam) -> Hypothesis:
        """A text from its end to its beginning."""
        text, numbers, place = [], [], end.place
        for beams, parents, tokens, logprobs in reversed(self.steps[: end.step + 1]):
            beam = beams[row]
            text.append(tokens[beam][place])
            numbers.append(logprobs[beam][place])
            place = parents[beam][place]
        text.reverse()
        numbers.reverse()
        done = text[-1] == self.tokenizer.end
        return Hypothesis(text[:-1] if done else text, numbers, done, end.score)
