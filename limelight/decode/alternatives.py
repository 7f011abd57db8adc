"""What else could have come here, and how would it have gone on?"""

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
    """Another token at some place, how likely it was, and what follows it."""

    token: int
    logprob: float
    rest: Hypothesis


def top_tokens_at(
    model: StepModel,
    request: Request,
    written: Sequence[int],
    places: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
) -> list[list[tuple[int, float]]]:
    """The likeliest tokens at places of what was written, and their log-probabilities.

    The token that was written is among them, and none that was not allowed.
    """
    if wrong := [place for place in places if not 0 <= place <= len(written)]:
        raise UserError(f"there is no place {wrong[0]} in a text of {len(written)} tokens")
    here = [_prefix_request(request, written, place) for place in places]
    logits, _ = prefill(model, here, tokenizer.pad)
    precise = torch.promote_types(logits.dtype, torch.float32)
    logprobs = logits.to(precise).log_softmax(dim=-1)
    excluded = BannedPhrases(
        request.exclude, tokenizer, request.prompt, request.needs_leading_space
    )
    found = []
    for place, row in zip(places, logprobs, strict=True):
        allowed = row.clone()
        allowed[excluded.banned(written[:place])] = NEG_INF
        best = allowed.topk(min(count, int((allowed > NEG_INF).sum()))).indices.tolist()
        if place < len(written) and written[place] not in best:
            best[-1:] = [written[place]]
        found.append([(token, row[token].item()) for token in best])
    return found


def alternatives(
    model: StepModel,
    request: Request,
    written: Sequence[int],
    places: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
) -> list[list[Alternative]]:
    """The same, each token with its likeliest continuation."""
    found = top_tokens_at(model, request, written, places, count, tokenizer)
    going_on: dict[tuple[int, int], Request] = {}
    for place, tokens in zip(places, found, strict=True):
        here = _prefix_request(request, written, place)
        for token, _ in tokens:
            if token != tokenizer.end and here.limit > 1:
                going_on[place, token] = _prefix_request(here, [token], 1)
    greedy = DecodeConfig(beam=1)
    rests = write(model, list(going_on.values()), greedy, tokenizer) if going_on else []
    continued = dict(zip(going_on, rests, strict=True))
    nothing = Hypothesis([], [], False, 0.0)
    return [
        [Alternative(token, lp, continued.get((place, token), nothing)) for token, lp in tokens]
        for place, tokens in zip(places, found, strict=True)
    ]


def _prefix_request(request: Request, written: Sequence[int], place: int) -> Request:
    """The same request, after so many of these tokens; no words are promised any more."""
    return replace(
        request,
        prompt=[*request.prompt, *written[:place]],
        limit=max(1, request.limit - place),
        include=(),
        needs_leading_space=request.needs_leading_space and not place,
    )
