"""Greedy search and beam search (section 6.1) without tricks: read this first.

One request at a time, no KV cache, nothing asynchronous: the model reads everything again for every
token. This is slow and easy to check, so the tests hold `generate`, `beam` and every accelerator
equal to it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from limelight.decode.request import Hypothesis, Request, device_of, finalize


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
    return finalize(text.tokens, text.logprobs, end)


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
    found = []
    for tokens, logprobs in finished + unfinished:
        penalty = ((5 + len(tokens)) / 6) ** length_penalty  # Wu et al. (2016)
        found.append(finalize(tokens, logprobs, end, penalty))
    return sorted(found, key=lambda text: text.score, reverse=True)[:nbest]
