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
    place: int,
    count: int,
    tokenizer: Tokenizer,
) -> list[Alternative]:
    """The likeliest tokens at a place of what was written, each with its likeliest continuation.

    The token that was written is among them; the end token counts as one.
    """
    if not 0 <= place <= len(written):
        raise UserError(f"there is no place {place} in a text of {len(written)} tokens")
    here = replace(
        request,
        prompt=[*request.prompt, *written[:place]],
        limit=max(1, request.limit - place),
        include=(),
    )
    logits, _ = begin(model, [here], tokenizer.pad)
    logprobs, tokens = logits[0].log_softmax(dim=-1).topk(min(count, logits.size(-1)))
    chosen = list(zip(tokens.tolist(), logprobs.tolist(), strict=True))
    going_on = {
        token: replace(here, prompt=[*here.prompt, token], limit=max(1, here.limit - 1))
        for token, _ in chosen
        if token != tokenizer.end and here.limit > 1
    }
    greedy = DecodeConfig(beam=1)
    rests = write(model, list(going_on.values()), greedy, tokenizer) if going_on else []
    continued = dict(zip(going_on, rests, strict=True))
    nothing = Written([], [], False, 0.0)
    return [Alternative(t, logprob, continued.get(t, nothing)) for t, logprob in chosen]
