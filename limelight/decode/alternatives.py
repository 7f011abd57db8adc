"""Which other tokens were likely, and how they would have continued."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig
from limelight.decode.constraints import BannedPhrases
from limelight.decode.generate import write
from limelight.decode.request import Hypothesis, Request, StepModel, prefill
from limelight.decode.sampling import NEG_INF
from limelight.errors import UserError


@dataclass(frozen=True)
class Alternative:
    """A token at some position, its log-probability, and its most likely continuation."""

    token: int
    logprob: float
    rest: Hypothesis


def top_tokens_at(
    model: StepModel,
    request: Request,
    written: Sequence[int],
    positions: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
) -> list[list[tuple[int, float]]]:
    """The most likely tokens there with their log-probabilities: the written one, none excluded."""
    if wrong := [at for at in positions if not 0 <= at <= len(written)]:
        raise UserError(f"there is no position {wrong[0]} in a text of {len(written)} tokens")
    here = [_prefix_request(request, written, at) for at in positions]
    logits, _ = prefill(model, here, tokenizer.pad)
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    phrases = BannedPhrases(request, tokenizer)
    found = []
    for at, row in zip(positions, logprobs, strict=True):
        allowed = row.clone()
        allowed[phrases.banned(written[:at])] = NEG_INF
        best = allowed.topk(min(count, int((allowed > NEG_INF).sum()))).indices.tolist()
        if at < len(written) and written[at] not in best:
            best[-1:] = [written[at]]
        found.append([(token, row[token].item()) for token in best])
    return found


def alternatives(
    model: StepModel,
    request: Request,
    written: Sequence[int],
    positions: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
) -> list[list[Alternative]]:
    """The most likely tokens at these positions, each with its greedy continuation."""
    found = top_tokens_at(model, request, written, positions, count, tokenizer)
    open_requests: dict[tuple[int, int], Request] = {}
    for at, tokens in zip(positions, found, strict=True):
        here = _prefix_request(request, written, at)
        for token, _ in tokens:
            if token != tokenizer.end and here.limit > 1:
                open_requests[at, token] = _prefix_request(here, [token], 1)
    greedy = DecodeConfig(beam=1)
    rests = write(model, list(open_requests.values()), greedy, tokenizer) if open_requests else []
    continued = dict(zip(open_requests, rests, strict=True))
    nothing = Hypothesis([], [], False, 0.0)
    return [
        [Alternative(token, lp, continued.get((at, token), nothing)) for token, lp in tokens]
        for at, tokens in zip(positions, found, strict=True)
    ]


def _prefix_request(request: Request, written: Sequence[int], at: int) -> Request:
    return replace(
        request,
        prompt=[*request.prompt, *written[:at]],
        limit=max(1, request.limit - at),
        include=(),
        needs_leading_space=request.needs_leading_space and not at,
    )
