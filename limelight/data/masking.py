"""Masked language modelling (Devlin et al. 2019, section 3.1): hide some tokens, predict them.

Of all real tokens 15% are predicted. Eight in ten of them are replaced by ⟨mask⟩, one in ten by any
token, and one in ten stays, so that the model cannot know which tokens to trust.
"""

import torch
from torch import Tensor

from limelight.data.tokenizer import Tokenizer


def mask_tokens(
    tokens: Tensor,  # B S
    real: Tensor,  # B S, False at padding
    tokenizer: Tokenizer,
    draw: torch.Generator,
    rate: float = 0.15,
    words: Tensor | None = None,  # V, True where a token begins a word: hide whole words
) -> tuple[Tensor, Tensor]:
    """The tokens with some masked, and which ones are to be predicted (B S)."""
    text_ids = torch.tensor(tokenizer.text_ids)
    may = real & torch.isin(tokens, text_ids)  # special tokens are never asked for
    chance = torch.rand(tokens.shape, generator=draw)
    if words is not None:
        chance = chance.gather(1, _word_heads(words[tokens] | ~may))
    asked = may & (chance < rate)
    fate = torch.rand(tokens.shape, generator=draw)
    others = text_ids[torch.randint(len(text_ids), tokens.shape, generator=draw)]
    hidden = torch.where(fate < 0.8, tokenizer.mask, torch.where(fate < 0.9, others, tokens))
    return torch.where(asked, hidden, tokens), asked


def _word_heads(begins: Tensor) -> Tensor:
    position = torch.arange(begins.size(1)).expand_as(begins)
    return torch.where(begins, position, 0).cummax(dim=1).values


def word_starts(tokenizer: Tokenizer) -> Tensor:
    """Which tokens begin a word, V: those with a space in front, and special ones."""
    raw = [tokenizer.token_bytes(i) for i in range(len(tokenizer))]
    return torch.tensor([not piece or piece[:1].isspace() for piece in raw])
