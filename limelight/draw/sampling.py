"""A caption is continued token by token: the picture, patch by patch.

Classifier-free guidance (arXiv 2207.12598) compares two predictions of one model, with the caption
and without it, and moves further in the direction in which the caption points. Their difference,
summed over a picture, is also what the model thinks of the caption given the picture, by Bayes'
rule: log p(picture | caption) - log p(picture) = log p(caption | picture) - log p(caption). The
best of several pictures is the one with the largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.sampling import sample, uniform_draws

_AT_ONCE = 64  # pictures


@dataclass(frozen=True)
class _SampledPictures:
    """Image tokens, B N, and how much more likely each picture is with its caption, B."""

    ids: Tensor
    scores: Tensor


def sample_pictures(
    model: Any,
    captions: Sequence[Sequence[int]],
    seeds: Sequence[int],
    tokenizer: Tokenizer,
    images: ImageConfig,
    decode: DecodeConfig,
) -> _SampledPictures:
    """A picture for each caption and its seed, whatever the others are."""
    device = model.target.tokens.weight.device
    parts = []
    for begin in range(0, len(captions), _AT_ONCE):
        some = torch.tensor(captions[begin : begin + _AT_ONCE], device=device)
        draws = [uniform_draws(seed, images.tokens) for seed in seeds[begin : begin + _AT_ONCE]]
        parts.append(_sample(model, some, torch.stack(draws).to(device), tokenizer, decode))
    return _SampledPictures(
        torch.cat([part.ids for part in parts]), torch.cat([part.scores for part in parts])
    )


@torch.no_grad()
def _sample(
    model: Any, captions: Tensor, draws: Tensor, tokenizer: Tokenizer, decode: DecodeConfig
) -> _SampledPictures:
    rows, (first, steps) = len(captions), (len(tokenizer), draws.size(1))
    both = torch.cat([captions, torch.full_like(captions, tokenizer.pad)])  # with and without
    separator = both.new_full((2 * rows, 1), tokenizer.separator)
    state = model.start(2 * rows, captions.size(1) + steps)
    logits = model.step(torch.cat([both, separator], dim=1), state)
    ids, scores = [], torch.zeros(rows, device=captions.device)
    for k in range(steps):
        informed, blind = logits[:, first:].float().log_softmax(dim=-1).chunk(2)
        chosen = _choose(blind + decode.guidance * (informed - blind), draws[:, k], decode)
        scores += (informed - blind).gather(1, chosen[:, None])[:, 0]
        ids.append(chosen)
        if k < steps - 1:
            logits = model.step((chosen + first).repeat(2)[:, None], state)
    return _SampledPictures(torch.stack(ids, dim=1), scores)


def _choose(logits: Tensor, uniforms: Tensor, decode: DecodeConfig) -> Tensor:
    return sample(logits, uniforms, decode) if decode.temperature else logits.argmax(dim=-1)
