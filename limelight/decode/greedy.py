"""The plainest way to write: at every step the likeliest token, until the end."""

from typing import Any

import torch
from torch import Tensor

from limelight.text.tokenizer import Tokenizer


@torch.no_grad()
def answer(
    model: Any, tokenizer: Tokenizer, sources: list[list[int]], limit: int
) -> list[list[int]]:
    """What a model answers to each source, in at most so many tokens, without the end token.

    An encoder reads the source with an end token; a language model reads it as a prompt: start,
    source, separator.
    """
    device = next(model.parameters()).device
    if hasattr(model, "encode"):
        source, source_real = side_by_side([[*s, tokenizer.end] for s in sources], tokenizer.pad)
        state = model.start(source.to(device), source_real.to(device), max_len=limit + 1)
        prompts = [[tokenizer.start]] * len(sources)
    else:
        prompts = [[tokenizer.start, *s, tokenizer.separator] for s in sources]
        longest = max(map(len, prompts))
        limit = max(1, min(limit, model.config.max_len - longest))  # its positions end there
        state = model.start(len(sources), max_len=longest + limit)
    tokens, real = (x.to(device) for x in side_by_side(prompts, tokenizer.pad))
    written = []
    ended = torch.zeros(len(sources), dtype=torch.bool, device=device)
    for _ in range(limit):
        tokens = model.step(tokens, state, real).argmax(dim=-1, keepdim=True)
        real = torch.ones_like(tokens, dtype=torch.bool)
        written.append(tokens)
        ended |= tokens[:, 0] == tokenizer.end
        if ended.all():
            break
    rows = torch.cat(written, dim=1).tolist()
    return [row[: row.index(tokenizer.end)] if tokenizer.end in row else row for row in rows]


def side_by_side(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one tensor, padded on the right, and where it is not padding."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    real = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
    return tokens, real
