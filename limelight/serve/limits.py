"""How much of everything: no request can make the service take more than this.

Each can be changed when the service starts: `limelight serve RUN --limits.queue 50`.
"""

import json
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from limelight.config import Positive, config_class
from limelight.errors import UserError

_Some = Annotated[int, Field(ge=1, le=2**30)]


@config_class
class Limits:
    """What a request may ask for, and what the service holds at a time."""

    queue: _Some = 256  # requests of one model that are accepted and not yet answered; then 429
    batch: _Some = 64  # texts that a model writes at the same time
    seconds: Positive = 30.0  # until a request must be answered; then 504

    body: _Some = 2**20  # bytes of a request
    header: _Some = 2**14  # bytes of all its headers
    connections: _Some = 1000  # open at a time
    header_seconds: Positive = 10.0  # for a client to send its headers, or the next request
    body_seconds: Positive = 30.0  # for a client to send the rest
    read_seconds: Positive = 30.0  # for a client to take what is sent to it
    shutdown_seconds: Positive = 20.0  # for answers that are being written when the service ends

    characters: _Some = 50_000  # of a text
    texts: _Some = (
        64  # that one request asks to be written: prompts times n, or parts of a long one
    )
    tokens: _Some = 4096  # to be written for one text
    traced: _Some = 512  # tokens that a text may have, read or written, to be looked at inside


def limits_with(changes: Iterable[str]) -> Limits:
    """The limits with changes such as "limits.queue=50"."""
    values = {}
    for change in changes:
        name, _, value = change.partition("=")
        if not name.startswith("limits."):
            raise UserError(f"{name} is no limit: only limits can be changed, as limits.queue=50")
        try:
            values[name.removeprefix("limits.").replace("-", "_")] = json.loads(value)
        except ValueError:
            raise UserError(f"{name}={value} must be a number") from None
    return Limits(**values)
