"""Names of traces: a trace's name is its request, packed, so that no state is kept for it.

A name survives a worker's death and a restart, and works on every replica. Nothing in it is
trusted: it is validated like a request's body. It contains the text, and is as private.
"""

import base64
import json
import zlib

from limelight.serve.errors import RefusedError
from limelight.serve.schemas.trace import TraceToken

LONGEST = 8192  # characters of a name: it must fit into the first line of a request
LARGEST = 2**17  # bytes of its content, unpacked


def name_of(token: TraceToken) -> str:
    """Pack a trace's request."""
    fields = token.model_dump(exclude_defaults=True, by_alias=True)
    content = json.dumps(fields, separators=(",", ":"))
    name = base64.urlsafe_b64encode(zlib.compress(content.encode(), 9)).rstrip(b"=").decode()
    if len(name) > LONGEST or len(content) > LARGEST:
        raise RefusedError(413, "too_long", "the text is too long to be traced", "shorten it")
    return name


def token_of(name: str) -> TraceToken:
    """Unpack and validate a name."""
    try:
        raw = base64.b64decode(name + "=" * (-len(name) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(raw, LARGEST)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("trailing data")
        return TraceToken.model_validate_json(content)
    except (ValueError, zlib.error, RecursionError):
        message = "this is not the name of a trace"
        raise RefusedError(404, "trace_not_found", message, "POST to /api/trace first") from None
