"""Bounds of the service, changed at its start: `limelight serve RUN --limits.queue 50`."""

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

    queue: _Some = 256  # open requests per model; then 429
    batch: _Some = 64  # sequences in a worker's batch
    seconds: Positive = 30.0  # for a request to be answered; then 504

    body: _Some = 2**20  # bytes of a request
    chunks: _Some = 1000  # that it may come in, if it is chunked
    values: _Some = 3000  # of its JSON: fields, and entries of lists
    header: _Some = 2**14  # bytes of its address and all its headers
    connections: _Some = 1000  # open at a time
    header_seconds: Positive = 10.0  # for a client to send its headers, or the next request
    body_seconds: Positive = 30.0  # for a client to send the rest
    read_seconds: Positive = 30.0  # for a client to read what is sent to it
    worker_seconds: Positive = 20.0  # for a worker to answer a ping; then it is restarted
    shutdown_seconds: Positive = 20.0  # for open requests to finish when the service ends

    characters: _Some = 50_000  # of a text
    texts: _Some = 64  # generated for one request: prompts times n, or parts of a long text
    tokens: _Some = 4096  # generated for one text
    traced: _Some = 512  # tokens of a text, read or generated, that can be traced


def limits_with(changes: Iterable[str]) -> Limits:
    """The defaults with changes such as "limits.queue=50"."""
    values = {}
    for change in changes:
        name, _, value = change.partition("=")
        if not name.startswith("limits."):
            raise UserError(f"{name} is not a limit: write limits.NAME=N, as in limits.queue=50")
        try:
            values[name.removeprefix("limits.").replace("-", "_")] = json.loads(value)
        except ValueError:
            raise UserError(f"{name}={value} must be a number") from None
    return Limits(**values)
