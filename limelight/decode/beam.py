"""Beam search (section 6.1): several texts at once, of which the best is chosen in the end.

A beam has K slots. At every step all its texts are extended by all tokens, and the best fill the
slots; a text that has ended keeps its slot, so a beam of one is greedy search. Texts of different
lengths are compared by their log-probability over the length penalty of Wu et al. (2016), and the
search stops only when no unfinished text could still become better.

While Python reads what one step found, a GPU already computes the next step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import BannedPhrases, RequiredPhrases
from limelight.decode.request import (
    DAMAGED,
    Hypothesis,
    Request,
    StepModel,
    StepQueue,
    device_of,
    finalize,
    max_total_length,
    pad_histories,
    prefill,
    should_evict,
)
from limelight.decode.sampling import NEG_INF, apply_repetition_penalty, log_softmax_inplace
from limelight.device import copy_to_device_async, copy_to_host_async
from limelight.errors import UserError


@dataclass(frozen=True)
class _BeamNode:
    """A slot of a beam after a step; a tree of them shows the search."""

    place: int
    parent: int  # the slot that was extended, in the step before
    token: int
    logprob: float
    score: float  # of the text so far, over the length penalty
    ended: bool


Tree = list[list[_BeamNode]]  # for each step, the slots that hold a text


def length_penalty(length: int, alpha: float) -> float:
    """Wu et al. (2016), equation 14: ((5 + length) / 6) ^ alpha, the end token counted."""
    return float(((5 + length) / 6) ** alpha)


@runtime_checkable
class DeviceBeamModel(StepModel, Protocol):
    """A model that can search beams on its device, where nothing constrains them."""

    def new_beam_search(
        self, requests: Sequence[Request], config: DecodeConfig, tokenizer: Tokenizer, nbest: int
    ) -> "BeamSearch":
        """A search that finds what `BeamSearch` finds; `is_unconstrained` holds for it."""


def is_unconstrained(requests: Sequence[Request], config: DecodeConfig) -> bool:
    """Whether only the model's own log-probabilities count, in a narrow beam without groups."""
    phrases = any(r.include or r.exclude or r.needs_leading_space for r in requests)
    penalized = config.repetition_penalty != 1 or config.no_repeat_ngram
    narrow = config.beam_groups == 1 and config.beam <= 8  # what a GPU searches by itself
    return narrow and not phrases and not penalized


class PendingStep(NamedTuple):
    """What a step has found; the values may still be on their way from the GPU."""

    rows: list[int]
    length: int  # of all texts
    read: Callable[[], list[Tensor]]  # finished, tokens, logprobs, the best unfinished sums


class BeamSearch:
    """Beams that are extended together: B requests, K slots each, N tokens so far."""

    def __init__(
        self,
        model: StepModel,
        requests: Sequence[Request],
        config: DecodeConfig,
        tokenizer: Tokenizer,
        nbest: int = 1,
        keep_trees: bool = False,
    ) -> None:
        if not 1 <= nbest <= config.beam:
            raise UserError(f"nbest={nbest} of a beam of {config.beam}: ask for 1 to {config.beam}")
        if config.beam_groups > 1 and any(request.include for request in requests):
            raise UserError(f"beam_groups={config.beam_groups} cannot require words: set it to 1")
        self.model, self.requests, self.config = model, requests, config
        self.tokenizer, self.nbest, self.keep_trees = tokenizer, nbest, keep_trees
        self.rows = list(range(len(requests)))  # the request of each beam of the state
        self.found: list[list[Hypothesis]] = [[] for _ in requests]
        self.trees: list[Tree] = [[] for _ in requests]
        self.cancelled: set[int] = set()
        self.excluded = [BannedPhrases(request, tokenizer) for request in requests]
        self.included = [RequiredPhrases(request, tokenizer) for request in requests]
        self.length = 0  # N
        self.in_flight = StepQueue[PendingStep](device_of(model))
        if keep_trees or any(self.excluded) or any(self.included):
            self.in_flight.ahead = 0  # the next step depends on the last one's texts
        self.upper_bounds = dict.fromkeys(self.rows, math.inf)  # of an unfinished text's score
        self.closed_rows: set[int] = set()
        self.prefill()

    def prefill(self) -> None:
        """Read sources and prompts; each group of each beam begins with one empty text."""
        requests, config = self.requests, self.config
        logits, self.state = prefill(self.model, requests, self.tokenizer.pad)
        every = torch.arange(len(requests), device=logits.device).repeat_interleave(config.beam)
        self.state.select(every)
        self.logits = logits.index_select(0, every)  # B*K V
        precise = torch.promote_types(logits.dtype, torch.float32)
        shape = (len(requests), config.beam)
        self.scores = logits.new_full(shape, NEG_INF, dtype=precise)  # B K: -inf in empty slots
        self.size = config.beam // config.beam_groups
        self.scores[:, :: self.size] = 0
        self.open = torch.full((len(requests), config.beam_groups), self.size, device=logits.device)
        self.tokens = torch.zeros((*shape, 0), dtype=torch.long, device=logits.device)  # B K N
        self.logprobs = self.scores.new_zeros((*shape, 0))  # B K N: the model's own
        limits = torch.tensor([request.limit for request in requests])
        self.limits = copy_to_device_async(limits, logits.device)[:, None]  # B 1

    def run(self) -> list[list[Hypothesis]]:
        """For each request the best texts that were found, the best first."""
        while self.step():
            pass
        return [self.best_of(row) for row in range(len(self.requests))]

    def step(self) -> bool:
        """One more token for every text; whether there is anything left to do."""
        self.extend()
        self.length += 1
        self.mark_finished()
        at_limit = self.length >= min(self.requests[row].limit for row in self.rows)
        while len(self.in_flight) > (0 if at_limit else self.in_flight.ahead):
            self.collect(self.in_flight.popleft())
        self.evict_finished()
        if not self.rows:
            return False
        self.advance_model()
        return True

    def advance_model(self) -> None:
        self.state.select(self.origins.flatten())
        self.logits = self.model.step(self.tokens[..., -1].reshape(-1, 1), self.state)

    def stop(self, row: int) -> None:
        self.cancelled.add(row)

    def best_of(self, row: int) -> list[Hypothesis]:
        """The best texts found; those without the required phrases come last."""
        complete = self.included[row].complete
        ranked = sorted(self.found[row], key=lambda text: (not complete(text.tokens), -text.score))
        return ranked[: self.nbest]

    def extend(self) -> None:
        """Extend all texts by all tokens; the best fill the slots."""
        logits = self.logits.to(self.scores.dtype)
        fair = self.penalized_logprobs(logits)  # before the scores are written over
        own = log_softmax_inplace(logits).view(*self.scores.shape, -1)  # B K V
        judged = self.apply_constraints(own if fair is None else fair.view_as(own))
        parents, tokens = self.pick(judged)
        beams = torch.arange(len(self.rows), device=own.device)[:, None]
        totals = self.scores[beams, parents] + judged[beams, parents, tokens]
        self.scores = totals.masked_fill(self.closed(), NEG_INF)
        chosen = own[beams, parents, tokens]
        self.tokens = torch.cat([self.tokens[beams, parents], tokens[..., None]], dim=-1)
        self.logprobs = torch.cat([self.logprobs[beams, parents], chosen[..., None]], dim=-1)
        self.origins = beams * self.config.beam + parents  # B K: rows of the state
        if self.keep_trees:
            self.record_tree(parents)

    def closed(self) -> Tensor:
        """Which slots, B K, belong to texts that have ended: the last ones of each group."""
        return (torch.arange(self.size, device=self.open.device) >= self.open[..., None]).flatten(1)

    def pick(self, judged: Tensor) -> tuple[Tensor, Tensor]:
        """Which slots are extended, and by which tokens, B K each; in each group the best first.

        Groups choose one after the other, and avoid the tokens of those before them (Vijayakumar et
        al. 2018).
        """
        beams, _, vocabulary = judged.shape
        several = self.config.beam_groups > 1
        # How often each token was chosen already, for the next group.
        used = judged.new_zeros(beams, 1, vocabulary if several else 0)
        parents, tokens = [], []
        for first in range(0, self.config.beam, self.size):
            group = slice(first, first + self.size)
            fair = judged[:, group] - self.config.diversity * used if first else judged[:, group]
            best, which = self.best_of_group(self.scores[:, group], fair)
            parents.append(best + first)
            tokens.append(which)
            if several:
                written = self.scores[:, group].gather(1, best) > NEG_INF
                written &= ~self.closed()[:, group]
                used.scatter_add_(2, which[:, None], written.to(used.dtype)[:, None])
        all_parents, all_tokens = torch.cat(parents, dim=1), torch.cat(tokens, dim=1)
        for beam, row in enumerate(self.rows):
            if self.included[row]:
                totals = self.scores[beam, :, None] + judged[beam]
                all_parents[beam], all_tokens[beam] = self.constrained_candidates(beam, totals)
        return all_parents, all_tokens

    def best_of_group(self, scores: Tensor, judged: Tensor) -> tuple[Tensor, Tensor]:
        """The best extensions of a group are among the best few of each of its texts."""
        beams, slots, vocabulary = judged.shape
        few = min(self.size, vocabulary)
        values, tokens = judged.flatten(0, 1).topk(few, dim=1)
        totals = scores[..., None] + values.view(beams, slots, few)
        best = totals.flatten(1).topk(self.size, dim=1).indices
        return best // few, tokens.view(beams, -1).gather(1, best)

    def constrained_candidates(self, beam: int, totals: Tensor) -> tuple[Tensor, Tensor]:
        """Slots and tokens for a request with required phrases (Post and Vilar 2018).

        Besides each text's best extensions, those that continue a phrase are candidates. Those with
        equally many tokens of the phrases share a bank; the banks fill the slots in turn, the most
        complete first, so that texts at every stage stay in the beam.
        """
        words, texts = self.included[self.rows[beam]], self.tokens[beam].tolist()
        best = totals.topk(min(self.config.beam, totals.size(-1)), dim=-1).indices.tolist()
        candidates = {(slot, token) for slot, tokens in enumerate(best) for token in tokens}
        for slot, text in enumerate(texts):
            candidates |= {(slot, token) for token in words.progress(text)[1]}
        banks: dict[int, list[tuple[int, int]]] = {}
        impossible = []
        for slot, token in sorted(candidates, key=lambda pair: -totals[pair].item()):
            if totals[slot, token].item() == NEG_INF:
                impossible.append((slot, token))
                continue
            progress, _ = words.progress([*texts[slot], token])
            banks.setdefault(progress, []).append((slot, token))
        rounds = zip_longest(*(banks[progress] for progress in sorted(banks, reverse=True)))
        chosen = [pair for turn in rounds for pair in turn if pair is not None]
        chosen += impossible  # where nothing else is left
        pairs = torch.tensor(chosen[: self.config.beam], device=totals.device)
        return pairs[:, 0], pairs[:, 1]

    def penalized_logprobs(self, logits: Tensor) -> Tensor | None:
        """Log-probabilities after repetition penalties, B*K V, if there are any."""
        if self.config.repetition_penalty == 1 and not self.config.no_repeat_ngram:
            return None
        history = pad_histories([self.requests[row].history for row in self.rows], logits.device)
        history = history[:, None].expand(-1, self.config.beam, -1)
        read = torch.cat([history, self.tokens], dim=-1).flatten(0, 1)
        special = self.tokenizer.special_ids
        return apply_repetition_penalty(logits, read, self.config, special).log_softmax(dim=-1)

    def apply_constraints(self, judged: Tensor) -> Tensor:
        """Log-probabilities, B K V, with -inf for tokens that must not come now."""
        constrained = [i for i, r in enumerate(self.rows) if self.excluded[r] or self.included[r]]
        judged = judged.clone() if constrained else judged
        for beam in constrained:
            row = self.rows[beam]
            for slot, text in enumerate(self.tokens[beam].tolist()):
                judged[beam, slot, self.excluded[row].banned(text)] = NEG_INF
                if not self.included[row].complete(text):
                    judged[beam, slot, self.tokenizer.end] = NEG_INF
        return judged

    def mark_finished(self) -> None:
        """Texts that have ended, and at the limit all, are found; their slots are closed."""
        ended = self.tokens[..., -1] == self.tokenizer.end
        filled = self.scores > NEG_INF
        found = filled & (ended | (self.limits <= self.length))
        self.open = self.open - (filled & ended).view(len(self.rows), -1, self.size).sum(dim=-1)
        self.scores = self.scores.masked_fill(found, NEG_INF)
        sums = self.logprobs.sum(dim=-1).masked_fill(self.scores == NEG_INF, NEG_INF)
        read = copy_to_host_async(found, self.tokens, self.logprobs, sums.amax(dim=1))
        self.in_flight.append(PendingStep(self.rows, self.length, read))

    def collect(self, step: PendingStep) -> None:
        """Keep the texts that were found, and an upper bound for the others."""
        found, texts, logprobs, bounds = step.read()
        if bounds.isnan().any():
            raise UserError(DAMAGED)
        for beam, slot in found.nonzero().tolist():
            penalty = length_penalty(step.length, self.alpha_of(step.rows[beam]))
            text, numbers = texts[beam, slot].tolist(), logprobs[beam, slot].tolist()
            known = self.found[step.rows[beam]]
            new = finalize(text, numbers, self.tokenizer.end, penalty)
            if all((new.tokens, new.ended) != (other.tokens, other.ended) for other in known):
                known.append(new)  # which no other group has found
        self.upper_bounds.update(zip(step.rows, bounds.tolist(), strict=True))

    def evict_finished(self) -> None:
        """Remove finished beams if they are many; until then, close their slots."""
        done = {row for row in self.rows if self.is_done(row, self.upper_bounds[row])}
        if not done:
            return
        lengths = [len(self.requests[row].prompt) + self.length for row in self.rows if row in done]
        if not should_evict(lengths, len(self.rows), max_total_length(self.requests)):
            if done - self.closed_rows:
                closed = torch.tensor([row in done for row in self.rows])[:, None]
                self.scores.masked_fill_(copy_to_device_async(closed, self.scores.device), NEG_INF)
                self.closed_rows |= done
            return
        keep = [beam for beam, row in enumerate(self.rows) if row not in done]
        self.rows = [self.rows[beam] for beam in keep]
        self.keep(copy_to_device_async(torch.tensor(keep, dtype=torch.long), self.scores.device))

    def keep(self, beams: Tensor) -> None:
        """Remove all other beams."""
        for name in ("scores", "open", "limits", "origins", "tokens", "logprobs"):
            setattr(self, name, getattr(self, name)[beams])

    def is_done(self, row: int, bound: float) -> bool:
        """Whether no unfinished text of this request could still become one of the best."""
        if row in self.cancelled or bound == NEG_INF:
            return True
        scores = self.scores_of(row)
        if len(scores) < self.nbest:
            return False
        # Sums of log-probabilities only fall, and the length penalty is largest at the limit.
        most = length_penalty(self.requests[row].limit, self.alpha_of(row))
        return sorted(scores, reverse=True)[self.nbest - 1] >= bound / most

    def alpha_of(self, row: int) -> float:
        """No bonus for length where words are required: each could stand behind the end."""
        return 0.0 if self.included[row] else self.config.length_penalty

    def scores_of(self, row: int) -> list[float]:
        return [text.score for text in self.found[row]]

    def record_tree(self, parents: Tensor) -> None:
        over = [length_penalty(self.tokens.size(-1), self.alpha_of(row)) for row in self.rows]
        sums = self.logprobs.sum(dim=-1) / self.logprobs.new_tensor(over)[:, None]
        newest = (parents, self.tokens[..., -1], self.logprobs[..., -1], sums)
        ended, filled = self.tokens[..., -1] == self.tokenizer.end, (self.scores > NEG_INF).tolist()
        for beam, row in enumerate(self.rows):
            values = zip(*(numbers[beam].tolist() for numbers in (*newest, ended)), strict=True)
            nodes = [_BeamNode(slot, *each) for slot, each in enumerate(values)]
            self.trees[row].append([node for node in nodes if filled[beam][node.place]])
