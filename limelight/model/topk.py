"""The highest of many scores, found faster on a CPU than `argmax` and `topk` find them.

And what scores have in common, their softmax, without a second place for so many numbers.
"""

from functools import lru_cache

import torch
from torch import Tensor

_BLOCK = 160  # tokens among which a processor finds the highest score fast


def fast_argmax(logits: Tensor) -> Tensor:
    """The index of the highest score of each row, B V -> B; the first one among equals."""
    rows, vocab = logits.shape
    if rows < 4 or vocab < 2 * _BLOCK or not logits.is_cpu:
        return logits.argmax(dim=1)
    members = _blocks_of(vocab).index_select(0, _block_max(logits, _BLOCK).argmax(dim=1))
    inside = logits.gather(1, members).argmax(dim=1, keepdim=True)
    return members.gather(1, inside)[:, 0]


@lru_cache(maxsize=16)
def _blocks_of(vocab: int) -> Tensor:
    """Which tokens are in which block, W BLOCK; the last one ends with the last token."""
    with torch.inference_mode(mode=False):  # what is made in it could not be used outside of it
        starts = torch.arange(0, vocab, _BLOCK).clamp(max=vocab - _BLOCK)
        return starts[:, None] + torch.arange(_BLOCK)


def fast_topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row and their indices, B count, as `topk` has them."""
    scores, tokens = _topk_candidates(logits, count)
    best = scores.topk(count, dim=1)
    return best.values, tokens.gather(1, best.indices)


def log_softmax_inplace(logits: Tensor) -> Tensor:
    """`log_softmax` of each row, B V; on a CPU it is written over the scores themselves."""
    return torch.log_softmax(logits, dim=-1, out=logits if logits.is_cpu else None)


def _block_max(logits: Tensor, block: int) -> Tensor:
    """The highest score of every block of tokens, B W; the last one ends with the last token."""
    peaks = _peaks_of_whole(logits, block)
    if logits.size(1) % block == 0:
        return peaks
    return torch.cat([peaks, logits[:, -block:].amax(dim=1, keepdim=True)], dim=1)


def _peaks_of_whole(logits: Tensor, block: int) -> Tensor:
    """The same without the tokens behind the last whole block."""
    whole = logits.size(1) // block
    return logits[:, : whole * block].view(-1, whole, block).amax(dim=2)


def _topk_candidates(logits: Tensor, count: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """Scores and indices of a few tokens, B C, among which are the highest `count` of each row.

    They are in the blocks whose highest scores are the highest. A processor finds the highest value
    of a block many times faster than the place of a value.
    """
    rows, vocab = logits.shape
    whole = vocab // block
    if whole <= count or not logits.is_cpu:
        return logits, torch.arange(vocab, device=logits.device).expand_as(logits)
    peaks = _peaks_of_whole(logits, block)
    begin = peaks.topk(count, dim=1, sorted=False).indices[..., None] * block
    tokens = (begin + torch.arange(block)).flatten(1)
    if whole * block < vocab:
        rest = torch.arange(whole * block, vocab).expand(rows, -1)
        tokens = torch.cat([tokens, rest], dim=1)
    return logits.gather(1, tokens), tokens
