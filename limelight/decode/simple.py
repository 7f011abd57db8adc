"""Greedy search and beam search (section 6.1) without tricks: read this first.

One request at a time, no KV cache, nothing asynchronous: the model reads everything again for every
token. This is slow and easy to check, so the tests hold `generate`, `beam` and every accelerator
equal to it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.decode.request import Hypothesis, Request, device_of


class _Text(NamedTuple):
    """What was written so far, the end token included."""

    tokens: list[int]
    logprobs: list[float]


@torch.no_grad()
def next_logprobs(model: nn.Module, request: Request, texts: list[list[int]]) -> Tensor:
    """Log-probabilities of the token after each of these equally long texts, B V."""
    device = device_of(model)
    target = torch.tensor([[*request.prompt, *text] for text in texts], device=device)
    if request.source:
        source = torch.tensor([request.source] * len(texts), device=device)
        logits = model(source, target)
    else:
        logits = model(target)
    precise = torch.promote_types(logits.dtype, torch.float32)
    return logits[:, -1].to(precise).log_softmax(dim=-1)


def greedy_search(model: nn.Module, request: Request, end: int) -> Hypothesis:
    """The most likely token, again and again, until it is the end token or the limit is reached."""
    text = _Text([], [])
    while len(text.tokens) < request.limit and text.tokens[-1:] != [end]:
        logprob, token = next_logprobs(model, request, [text.tokens])[0].max(dim=-1)
        text.tokens.append(int(token))
        text.logprobs.append(float(logprob))
    return _hypothesis(text, end, alpha=0.0)


def beam_search(
    model: nn.Module,
    request: Request,
    end: int,
    beam: int = 4,
    length_penalty: float = 0.6,
    nbest: int = 1,
) -> list[Hypothesis]:
    """Keep the `beam` most likely texts at every step; return the `nbest` with the best scores.

    A text that ends leaves the beam and takes its slot with it, so a beam of 1 is greedy search.
    """
    unfinished, finished = [_Text([], [])], list[_Text]()
    for _ in range(request.limit):
        logprobs = next_logprobs(model, request, [text.tokens for text in unfinished]).tolist()
        candidates = [
            _Text([*text.tokens, token], [*text.logprobs, logprob])
            for text, row in zip(unfinished, logprobs, strict=True)
            for token, logprob in enumerate(row)
        ]
        candidates.sort(key=lambda text: sum(text.logprobs), reverse=True)
        best = candidates[: beam - len(finished)]
        finished += [text for text in best if text.tokens[-1] == end]
        unfinished = [text for text in best if text.tokens[-1] != end]
        if not unfinished:
            break
    found = [_hypothesis(text, end, length_penalty) for text in finished + unfinished]
    return sorted(found, key=lambda text: text.score, reverse=True)[:nbest]


def _hypothesis(text: _Text, end: int, alpha: float) -> Hypothesis:
    """A text without its end token; its score is divided by Wu et al.'s (2016) length penalty."""
    ended = text.tokens[-1] == end
    penalty = ((5 + len(text.tokens)) / 6) ** alpha
    tokens = text.tokens[:-1] if ended else text.tokens
    return Hypothesis(tokens, text.logprobs, ended, sum(text.logprobs) / penalty)
