"""From the scores of all tokens to one token: the likeliest, or one that is drawn."""

import math

import torch
from torch import Tensor

from limelight.decode.config import DecodeConfig

NEG_INF = -math.inf


def apply_repetition_penalty(
    logits: Tensor, history: Tensor, config: DecodeConfig, first: int
) -> Tensor:
    """Less for tokens that were there already (CTRL's penalty), nothing for a repeated n-gram.

    `history`, B T, is all that the decoder has read, -1 where a row has nothing yet. Special
    tokens, those before the `first` other one, are no repetition: a text may always end.
    """
    history = history.masked_fill(history < first, -1)
    if config.repetition_penalty != 1:
        there = torch.zeros_like(logits, dtype=torch.bool)
        there.scatter_(1, history.clamp(min=0), True)
        there[:, 0] = (history == 0).any(dim=1)  # -1 is no token
        penalty = config.repetition_penalty
        weaker = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(there, weaker, logits)
    if config.no_repeat_ngram and history.size(1) >= config.no_repeat_ngram:
        logits = _ban_repeated_ngrams(logits, history, config.no_repeat_ngram)
    return logits


def _ban_repeated_ngrams(logits: Tensor, history: Tensor, n: int) -> Tensor:
    """Whoever followed these last n - 1 tokens before must not follow them again."""
    windows = history.unfold(1, n, 1)  # B W n
    last = history[:, None, history.size(1) - n + 1 :]  # B 1 n-1
    same = (windows[..., :-1] == last).all(dim=-1) & (windows >= 0).all(dim=-1)  # B W
    banned = torch.zeros_like(logits, dtype=torch.int)
    banned.scatter_add_(1, windows[..., -1].clamp(min=0), same.int())
    return logits.masked_fill(banned > 0, NEG_INF)


def sample(logits: Tensor, uniforms: Tensor, config: DecodeConfig) -> Tensor:
    """One token for each row, B, with `luck` (B, from 0 to below 1) in place of dice.

    The tokens lie side by side, the likeliest first, each as wide as it is likely; luck points at
    one of them. So a row's choice depends on nothing but its own scores and its own luck.
    """
    ranked, tokens = logits.sort(dim=-1, descending=True, stable=True)
    # In this order a tiny temperature gives 0 and -inf, and never inf - inf.
    sharper = (ranked - ranked[:, :1]).double() / config.temperature
    chances = sharper.softmax(dim=-1)
    chances = chances * top_k_top_p_mask(chances, config)
    reached = chances.cumsum(dim=-1)
    place = (reached <= uniforms[:, None] * reached[:, -1:]).sum(dim=-1)
    place = torch.minimum(place, (chances > 0).sum(dim=-1) - 1)  # luck a hair below 1 may round up
    return tokens.gather(1, place[:, None])[:, 0]


def top_k_top_p_mask(chances: Tensor, config: DecodeConfig) -> Tensor:
    """Which of the ranked tokens may be drawn at all, B V: top-k, then top-p, then min-p of those.

    Top-p keeps the fewest tokens that have this chance together. The likeliest always stays.
    """
    keep = torch.ones_like(chances, dtype=torch.bool)
    if config.top_k:
        keep[:, config.top_k :] = False
    if config.top_p < 1:
        kept = chances * keep
        before = kept.cumsum(dim=-1) - kept
        keep &= before < config.top_p * kept.sum(dim=-1, keepdim=True)
    if config.min_p:
        keep &= chances >= config.min_p * chances[:, :1]
    keep[:, 0] = True
    return keep


def uniform_draws(seed: int, count: int) -> Tensor:
    """The random numbers of one request: they depend on its seed alone."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
