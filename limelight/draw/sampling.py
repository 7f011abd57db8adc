"""A caption is continued token by token: the picture, patch by patch.

Classifier-free guidance (arXiv 2207.12598) compares two predictions of one model, with the caption
and without it, and moves further in the direction in which the caption points. Their difference,
summed over a picture, is also what the model thinks of the caption given the picture, by Bayes'
rule: log p(picture | caption) - log p(picture) = log p(caption | picture) - log p(caption). The
best of several pictures is the one with the largest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.data.config import ImageConfig
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.sampling import sample, uniform_draws


@dataclass(frozen=True)
class SampledPictures:
    """Image tokens, B N, and how much more likely each picture is with its caption, B."""

    ids: Tensor
    scores: Tensor


def sample_in_steps(
    model: Any,
    captions: Sequence[Sequence[int]],
    seeds: Sequence[int],
    tokenizer: Tokenizer,
    images: ImageConfig,
    decode: DecodeConfig,
    given: Sequence[int] = (),
    at_once: int = 64,
) -> Iterator[Tensor | SampledPictures]:
    """A picture for each caption and its seed, whatever the others are, `at_once` together.

    Yields their tokens so far after each patch, and in the end all pictures. All of them begin with
    the patches that are `given`.
    """
    device = model.target.tokens.weight.device
    parts = []
    for begin in range(0, len(captions), at_once):
        some = torch.tensor(captions[begin : begin + at_once], device=device)
        draws = [uniform_draws(seed, images.tokens) for seed in seeds[begin : begin + at_once]]
        uniforms = torch.stack(draws).to(device)
        for made in _sample(model, some, uniforms, tokenizer, decode, given):
            if made.ids.size(1) < images.tokens:
                yield made.ids
        parts.append(made)
        yield made.ids  # only now, when their cache is gone: whoever gets it may pause
    yield SampledPictures(
        torch.cat([part.ids for part in parts]), torch.cat([part.scores for part in parts])
    )


@torch.no_grad()
def _sample(
    model: Any,
    captions: Tensor,
    draws: Tensor,
    tokenizer: Tokenizer,
    decode: DecodeConfig,
    given: Sequence[int],
) -> Iterator[SampledPictures]:
    """The pictures after each patch."""
    rows, steps = draws.shape
    first = len(tokenizer)
    state = model.start(2 * rows, captions.size(1) + steps)
    logits = model.step(with_and_without(captions, tokenizer), state)
    ids, scores = captions[:, :0], torch.zeros(rows, device=captions.device)
    for k in range(steps):
        guided, gain = guide(logits[:, first:], decode)
        chosen = choose(guided, draws[:, k], decode)
        if k < len(given):
            chosen = torch.full_like(chosen, given[k])
        scores = scores + gain.gather(1, chosen[:, None])[:, 0]
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        yield SampledPictures(ids, scores)
        if k < steps - 1:
            logits = model.step((chosen + first).repeat(2)[:, None], state)


def with_and_without(captions: Tensor, tokenizer: Tokenizer) -> Tensor:
    """Captions (B L) and their separator, then as many empty ones."""
    both = torch.cat([captions, torch.full_like(captions, tokenizer.pad)])
    return torch.cat([both, both.new_full((len(both), 1), tokenizer.separator)], dim=1)


def guide(logits: Tensor, decode: DecodeConfig) -> tuple[Tensor, Tensor]:
    """Logits to choose by, and how much more likely the caption makes each token, B V both."""
    informed, blind = logits.float().log_softmax(dim=-1).chunk(2)
    gain = informed - blind
    return blind + decode.guidance * gain, gain


def choose(logits: Tensor, uniforms: Tensor, decode: DecodeConfig) -> Tensor:
    """A token for each row of logits (B V), by the random numbers B."""
    return sample(logits, uniforms, decode) if decode.temperature else logits.argmax(dim=-1)
