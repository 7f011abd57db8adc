"""What a trace is called: its name is what was asked, packed, so that nobody has to remember it.

A worker may die, the service may be started again, another replica may answer: the name still says
all there is to know. Nothing in it is trusted; it is read with the same care as a request's body,
since it could have been one. It does hold the text, so it is as private as the text is.
"""

import base64
import binascii
import json
import zlib

from pydantic import ValidationError

from limelight.serve.schemas import Ticket
from limelight.serve.worker_client import RefusedError

LONGEST = 8192  # characters of a name: it must fit into the first line of a request
LARGEST = 2**17  # bytes of what is in it, unpacked


def name_of(ticket: Ticket) -> str:
    """A trace's name."""
    told = json.dumps(ticket.model_dump(exclude_defaults=True), separators=(",", ":"))
    name = base64.urlsafe_b64encode(zlib.compress(told.encode(), 9)).rstrip(b"=").decode()
    if len(name) > LONGEST or len(told) > LARGEST:
        raise RefusedError(
            413, "too_long", "the text is too long to be looked at inside", "shorten it"
        )
    return name


def ticket_of(name: str) -> Ticket:
    """What a name says, if it is one."""
    try:
        raw = base64.b64decode(name + "=" * (-len(name) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        told = unpacker.decompress(raw, LARGEST)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("there is more of it")
        return Ticket.model_validate_json(told)
    except (ValueError, ValidationError, binascii.Error, zlib.error, RecursionError):
        hint = "ask /api/trace for one"
        raise RefusedError(404, "trace_not_found", "this names no trace", hint) from None
