"""How two processes talk: JSON with its length before it, over a pipe.

Numbers in bulk follow as bytes, as many as the JSON says. Nothing but plain data can be said in it,
so nothing that is read can be run.
"""

import asyncio
import json
import os
from typing import Any

Message = dict[str, Any]
_LARGEST = 2**26  # bytes of a message
HEAD = 4  # bytes that say how long it is


def packed(message: Message, blob: bytes = b"") -> bytes:
    """A message as bytes, and what follows it."""
    told = {**message, "bytes": len(blob)} if blob else message
    body = json.dumps(told, allow_nan=False, separators=(",", ":")).encode()
    return len(body).to_bytes(HEAD, "big") + body + blob


def unpacked(body: bytes) -> Message:
    """The other way round."""
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def length_of(head: bytes) -> int:
    """How long the message is that follows."""
    return _bounded(int.from_bytes(head, "big"))


def _bounded(length: int) -> int:
    """So many bytes, if they are not too many."""
    if not 0 <= length <= _LARGEST:
        raise ValueError(f"a message of {length} bytes is too long")
    return length


def send(pipe: int, told: bytes) -> None:
    """Write messages whole, however little the pipe takes at a time."""
    left = memoryview(told)
    while left:
        left = left[os.write(pipe, left) :]


def receive(pipe: int) -> Message | None:
    """The next message; None when the other side has gone."""
    head = _read_exactly(pipe, HEAD)
    body = _read_exactly(pipe, length_of(head)) if head is not None else None
    return None if body is None else unpacked(body)


def _read_exactly(pipe: int, count: int) -> bytes | None:
    """So many bytes, or None if they do not come any more."""
    read = bytearray()
    while len(read) < count:
        piece = os.read(pipe, min(count - len(read), 2**16))
        if not piece:
            return None
        read += piece
    return bytes(read)


async def receive_from(stream: asyncio.StreamReader) -> Message | None:
    """The same without keeping others waiting; with the bytes that follow, as `blob`."""
    try:
        message = unpacked(await stream.readexactly(length_of(await stream.readexactly(HEAD))))
        if "bytes" in message:
            message["blob"] = await stream.readexactly(_bounded(message["bytes"]))
    except asyncio.IncompleteReadError:
        return None
    return message
