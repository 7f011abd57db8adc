"""From the logits of all tokens to one token that is sampled; repetition penalties."""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from limelight.decode.config import DecodeConfig

NEG_INF = -math.inf


def log_softmax_inplace(logits: Tensor) -> Tensor:
    """`log_softmax` of each row, B V; on a CPU it overwrites the logits."""
    return torch.log_softmax(logits, dim=-1, out=logits if logits.is_cpu else None)


def apply_repetition_penalty(
    logits: Tensor, history: Tensor, config: DecodeConfig, special: Collection[int]
) -> Tensor:
    """Lower logits for repeated tokens (CTRL's penalty), -inf for repeated n-grams.

    `history`, B T, is all that the decoder has read, padded with -1. Special tokens are no
    repetition: a text may always end.
    """
    unseen = torch.isin(history, torch.tensor(sorted(special), device=history.device))
    history = history.masked_fill(unseen, -1)
    if config.repetition_penalty != 1:
        repeated = torch.zeros_like(logits, dtype=torch.bool)
        repeated.scatter_(1, history.clamp(min=0), True)
        repeated[:, 0] = (history == 0).any(dim=1)  # -1 is no token
        penalty = config.repetition_penalty
        weaker = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(repeated, weaker, logits)
    if config.no_repeat_ngram and history.size(1) >= config.no_repeat_ngram:
        logits = _ban_repeated_ngrams(logits, history, config.no_repeat_ngram)
    return logits


def _ban_repeated_ngrams(logits: Tensor, history: Tensor, n: int) -> Tensor:
    windows = history.unfold(1, n, 1)  # B W n
    last = history[:, None, history.size(1) - n + 1 :]  # B 1 n-1
    same = (windows[..., :-1] == last).all(dim=-1) & (windows >= 0).all(dim=-1)  # B W
    banned = torch.zeros_like(logits, dtype=torch.int)
    banned.scatter_add_(1, windows[..., -1].clamp(min=0), same.int())
    return logits.masked_fill(banned > 0, NEG_INF)


def sample(logits: Tensor, uniforms: Tensor, config: DecodeConfig) -> Tensor:
    """One token for each row, B, by inverse transform sampling with `uniforms` (B, in [0, 1)).

    So a row's choice depends on nothing but its own logits and its own random number.
    """
    probs, tokens = ranked_probabilities(logits, config)
    reached = probs.cumsum(dim=-1)
    rank = (reached <= uniforms[:, None] * reached[:, -1:]).sum(dim=-1)
    rank = torch.minimum(rank, (probs > 0).sum(dim=-1) - 1)  # just below 1 may round up
    return tokens.gather(1, rank[:, None])[:, 0]


def ranked_probabilities(logits: Tensor, config: DecodeConfig) -> tuple[Tensor, Tensor]:
    """What tokens are sampled with, up to a factor, and the tokens, B V: most likely first."""
    ranked, tokens = logits.sort(dim=-1, descending=True, stable=True)
    # In this order a tiny temperature gives 0 and -inf, and never inf - inf.
    probs = ((ranked - ranked[:, :1]).double() / config.temperature).softmax(dim=-1)
    return probs * top_k_top_p_mask(probs, config), tokens


def top_k_top_p_mask(probs: Tensor, config: DecodeConfig) -> Tensor:
    """Which ranked tokens may be sampled, B V: top-k, top-p, min-p; the first always may."""
    keep = torch.ones_like(probs, dtype=torch.bool)
    if config.top_k:
        keep[:, config.top_k :] = False
    if config.top_p < 1:
        kept = probs * keep
        keep &= kept.cumsum(dim=-1) - kept < config.top_p * kept.sum(dim=-1, keepdim=True)
    if config.min_p:
        keep &= probs >= config.min_p * probs[:, :1]
    keep[:, 0] = True
    return keep


def uniform_draws(seed: int, count: int) -> Tensor:
    """The random numbers of one request, from its seed alone."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
