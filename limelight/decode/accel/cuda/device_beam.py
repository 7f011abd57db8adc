"""Beam search on the device: a step and its choices are captured together in one CUDA graph.

An unconstrained search needs the few most likely tokens of each text and nothing else. Its buffers
stay on the device and change in place; Python only reads, a step behind, which slot was extended by
which token. Texts are put together in the end, from their last token back to their first.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from limelight.decode.beam import BeamSearch, PendingStep, length_penalty
from limelight.decode.request import (
    DAMAGED,
    Hypothesis,
    StepModel,
    device_of,
    encode_sources,
    finalize,
    prefill,
)
from limelight.decode.sampling import NEG_INF
from limelight.device import copy_to_device_async, copy_to_host_async
from limelight.errors import UserError


class BeamBuffers:
    """What a search keeps between two steps, with a row for each of B beams of K slots."""

    def __init__(self, count: int, width: int, end: int, like: Tensor) -> None:
        self.shape, self.end = (count, width), end
        self.scores = torch.full_like(like[:1, :1], NEG_INF).repeat(count, width)  # empty slots
        self.newest = torch.zeros(self.shape, dtype=torch.long, device=like.device)
        self.open = torch.full((count, 1), width, device=like.device)  # slots, the first ones
        self.left = torch.zeros_like(self.open)  # new tokens to come
        self.outputs = torch.zeros(4, *self.shape, dtype=torch.float64, device=like.device)
        self.slots = torch.arange(width, device=like.device)
        self.first_rows = torch.arange(0, count * width, width, device=like.device)[:, None]

    def extend(self, logprobs: Tensor, tokens: Tensor) -> Tensor:
        """Extend all texts by their most likely tokens, B*K C; the best fill the slots.

        Writes parents, tokens, their log-probabilities and the sums of these, each B K, to
        `outputs`; returns the rows of the state that the slots continue, B*K.
        """
        beams, slots = self.shape
        totals = self.scores[..., None] + logprobs.view(beams, slots, -1)
        scores, best = totals.flatten(1).topk(slots, dim=1)
        scores.masked_fill_(self.slots >= self.open, NEG_INF)
        parents = best // totals.size(2)
        torch.gather(tokens.view(beams, -1), 1, best, out=self.newest)
        chosen = logprobs.view(beams, -1).gather(1, best)
        found = (parents, self.newest, chosen, scores)
        for output, numbers in zip(self.outputs, found, strict=True):
            output.copy_(numbers)
        ended = (scores > NEG_INF) & (self.newest == self.end)
        self.open -= ended.sum(dim=1, keepdim=True)
        self.left -= 1
        self.scores.copy_(scores.masked_fill_(ended | (self.left <= 0), NEG_INF))
        return (parents + self.first_rows).flatten()

    def keep(self, beams: Tensor) -> "BeamBuffers":
        copy = BeamBuffers(len(beams), self.shape[1], self.end, self.scores)
        for ours, theirs in zip(self.kept(), copy.kept(), strict=True):
            torch.index_select(ours, 0, beams, out=theirs)
        return copy

    def load(self, others: "BeamBuffers") -> None:
        """Copy other beams in; if they are fewer, the last rows stay empty."""
        self.scores[others.shape[0] :] = NEG_INF
        for ours, theirs in zip(self.kept(), others.kept(), strict=True):
            ours[: len(theirs)] = theirs

    def kept(self) -> tuple[Tensor, ...]:
        """What one step needs of the last one."""
        return self.scores, self.newest, self.open, self.left


class _BeamStepModel(StepModel, Protocol):
    def step_beams(self, beams: BeamBuffers, state: Any) -> BeamBuffers: ...


class _FinishedBeam(NamedTuple):
    score: float
    step: int
    slot: int


class DeviceBeamSearch(BeamSearch):
    """A search whose beams live on the device; Python reads them one step behind."""

    model: "_BeamStepModel"

    def prefill(self) -> None:
        """Read sources and prompts; the first step reads prompts of one token."""
        requests, width, pad = self.requests, self.config.beam, self.tokenizer.pad
        device = device_of(self.model)
        self.ends: list[list[_FinishedBeam]] = [[] for _ in requests]
        # Of every step: the beam of each request; parents, tokens and their log-probabilities.
        self.steps: list[tuple[dict[int, int], Any, Any, Any]] = []
        self.after_prompt: Any = None  # the most likely tokens, if prompts were read already
        kind = next(iter(self.model.parameters())).dtype
        if all(len(request.prompt) == 1 for request in requests):
            self.state = encode_sources(self.model, requests, pad)
        else:
            logits, self.state = prefill(self.model, requests, pad)
            own = logits.to(torch.promote_types(kind, torch.float32)).log_softmax(dim=-1)
            best = own.topk(min(width, own.size(1)), dim=1)
            self.after_prompt = [part.repeat_interleave(width, dim=0) for part in best]
        every = torch.arange(len(requests), device=device).repeat_interleave(width)
        self.state.select(every)
        nothing = torch.zeros(1, 1, dtype=torch.promote_types(kind, torch.float32), device=device)
        self.beams = BeamBuffers(len(requests), width, self.tokenizer.end, nothing)
        self.beams.scores[:, 0] = 0
        given = torch.tensor([[request.prompt[-1], request.limit] for request in requests])
        given = copy_to_device_async(given, device)
        self.beams.newest[:], self.beams.left[:] = given.T[..., None]

    def extend(self) -> None:
        if self.after_prompt is None:
            self.beams = self.model.step_beams(self.beams, self.state)
        else:  # all rows of a beam are still equal, so none is moved
            self.beams.extend(*self.after_prompt)
            self.after_prompt = None
        self.scores = self.beams.scores[: len(self.rows)]

    def mark_finished(self) -> None:
        """The device has done that; start copying its outputs."""
        outputs = copy_to_host_async(self.beams.outputs)
        self.in_flight.append(PendingStep(self.rows, self.length, outputs))

    def advance_model(self) -> None:
        """The next step begins with that."""

    def collect(self, step: PendingStep) -> None:
        """Keep what was written, where texts have ended, and an upper bound for the others."""
        outputs = step.read()[0][:, : len(step.rows)].numpy()
        if np.isnan(outputs[2]).any():
            raise UserError(DAMAGED)
        choices, totals = outputs[:2].astype(int), outputs[3]
        limits = np.array([[self.requests[row].limit] for row in step.rows])
        found = (totals > NEG_INF) & ((choices[1] == self.tokenizer.end) | (limits <= step.length))
        penalty = length_penalty(step.length, self.config.length_penalty)
        for beam, slot in np.argwhere(found).tolist():
            score = float(totals[beam, slot]) / penalty
            self.ends[step.rows[beam]].append(_FinishedBeam(score, len(self.steps), slot))
        bounds = np.where(found, NEG_INF, totals).max(axis=1)
        self.upper_bounds.update(zip(step.rows, bounds.tolist(), strict=True))
        beams = {row: beam for beam, row in enumerate(step.rows)}
        self.steps.append((beams, *choices.tolist(), outputs[2].tolist()))

    def keep(self, beams: Tensor) -> None:
        if self.rows:
            self.state.select((beams[:, None] * self.config.beam + self.beams.slots).flatten())
            self.beams = self.beams.keep(beams)

    def scores_of(self, row: int) -> list[float]:
        return [text.score for text in self.ends[row]]

    def best_of(self, row: int) -> list[Hypothesis]:
        ranked = sorted(self.ends[row], key=lambda text: -text.score)
        return [self.backtrack(row, text) for text in ranked[: self.nbest]]

    def backtrack(self, row: int, end: _FinishedBeam) -> Hypothesis:
        """Follow a text from its last token to its first."""
        text, numbers, slot = [], [], end.slot
        for beams, parents, tokens, logprobs in reversed(self.steps[: end.step + 1]):
            beam = beams[row]
            text.append(tokens[beam][slot])
            numbers.append(logprobs[beam][slot])
            slot = parents[beam][slot]
        text.reverse()
        numbers.reverse()
        return replace(finalize(text, numbers, self.tokenizer.end), score=end.score)
