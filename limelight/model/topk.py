"""argmax and top-k over a large vocabulary, faster on a CPU than torch's; log-softmax in place."""

from functools import lru_cache

import torch
from torch import Tensor

_BLOCK = 160  # tokens whose maximum a processor finds fast


def fast_argmax(logits: Tensor) -> Tensor:
    """The index of the highest logit of each row, B V -> B; the first one among equals."""
    rows, vocab = logits.shape
    if rows < 4 or vocab < 2 * _BLOCK or not logits.is_cpu:
        return logits.argmax(dim=1)
    peaks = _block_max(logits, _BLOCK)
    if vocab % _BLOCK:
        peaks = torch.cat([peaks, logits[:, -_BLOCK:].amax(dim=1, keepdim=True)], dim=1)
    members = _blocks_of(vocab).index_select(0, peaks.argmax(dim=1))
    return members.gather(1, logits.gather(1, members).argmax(dim=1, keepdim=True))[:, 0]


@lru_cache(maxsize=16)
def _blocks_of(vocab: int) -> Tensor:
    """The tokens of each block, W BLOCK; the last one ends with the last token."""
    with torch.inference_mode(mode=False):  # tensors made in it could not be used outside
        starts = torch.arange(0, vocab, _BLOCK).clamp(max=vocab - _BLOCK)
        return starts[:, None] + torch.arange(_BLOCK)


def fast_topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest logits of each row and their indices, B count, like `topk`."""
    scores, tokens = _topk_candidates(logits, count)
    best = scores.topk(count, dim=1)
    return best.values, tokens.gather(1, best.indices)


def log_softmax_inplace(logits: Tensor) -> Tensor:
    """`log_softmax` of each row, B V; on a CPU it overwrites the logits."""
    return torch.log_softmax(logits, dim=-1, out=logits if logits.is_cpu else None)


def _block_max(logits: Tensor, block: int) -> Tensor:
    full = logits.size(1) // block
    return logits[:, : full * block].view(-1, full, block).amax(dim=2)


def _topk_candidates(logits: Tensor, count: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """Logits and indices of a few tokens, B C, among which are the highest `count` of each row.

    They are in the blocks whose maxima are the highest: a processor finds the maximum of a block
    many times faster than its index.
    """
    rows, vocab = logits.shape
    full = vocab // block
    if full <= count or not logits.is_cpu:
        return logits, torch.arange(vocab, device=logits.device).expand_as(logits)
    peaks = _block_max(logits, block)
    begin = peaks.topk(count, dim=1, sorted=False).indices[..., None] * block
    tokens = (begin + torch.arange(block)).flatten(1)
    if full * block < vocab:
        tokens = torch.cat([tokens, torch.arange(full * block, vocab).expand(rows, -1)], dim=1)
    return logits.gather(1, tokens), tokens
