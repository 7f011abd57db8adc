"""What else could have come here, and how would it have gone on?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from limelight.decode.config import DecodeConfig
from limelight.decode.request import Request, Stepper, Written, begin
from limelight.decode.write import write
from limelight.errors import UserError
from limelight.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Alternative:
    """Another token at some place, how likely it was, and what follows it."""

    token: int
    logprob: float
    rest: Written


def alternatives(
    model: Stepper,
    request: Request,
    written: Sequence[int],
    places: Sequence[int],
    count: int,
    tokenizer: Tokenizer,
) -> list[list[Alternative]]:
    """The likeliest tokens at places of what was written, each with its likeliest continuation.

    The token that was written is among them; the end token counts as one.
    """
    if wrong := [place for place in places if not 0 <= place <= len(written)]:
        raise UserError(f"there is no place {wrong[0]} in a text of {len(written)} tokens")
    here = {place: up_to(request, written, place) for place in places}
    logits, _ = begin(model, list(here.values()), tokenizer.pad)
    best = logits.log_softmax(dim=-1).topk(min(count, logits.size(-1)), dim=-1)
    chosen = [
        (place, token, logprob)
        for place, tokens, logprobs in zip(
            here, best.indices.tolist(), best.values.tolist(), strict=True
        )
        for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    going_on = {
        (place, token): up_to(here[place], [token], 1)
        for place, token, _ in chosen
        if token != tokenizer.end and here[place].limit > 1
    }
    greedy = DecodeConfig(beam=1)
    rests = write(model, list(going_on.values()), greedy, tokenizer) if going_on else []
    continued = dict(zip(going_on, rests, strict=True))
    nothing = Written([], [], False, 0.0)
    found: dict[int, list[Alternative]] = {place: [] for place in here}
    for place, token, logprob in chosen:
        rest = continued.get((place, token), nothing)
        found[place].append(Alternative(token, logprob, rest))
    return [found[place] for place in places]


def up_to(request: Request, written: Sequence[int], place: int) -> Request:
    """The same request, after so many of these tokens; no words are promised any more."""
    return replace(
        request,
        prompt=[*request.prompt, *written[:place]],
        limit=max(1, request.limit - place),
        include=(),
    )
