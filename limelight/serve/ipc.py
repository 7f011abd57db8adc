"""Messages between the service and its workers: JSON with a length prefix, over a pipe.

Bulk numbers follow a message as raw bytes. Only plain data can be sent, so nothing that is received
can be executed.
"""

import asyncio
import json
import os
from contextlib import suppress
from typing import Any, BinaryIO, NotRequired, TypedDict

from pydantic_core import from_json, to_json

# To a worker {id, op, ...}; from it ready, failed, active, pieces, or {id, done}.
Message = dict[str, Any]
HEAD = 4  # bytes of the length prefix
_LARGEST = 2**26  # bytes of a message


class TokenPayload(TypedDict):
    """A token with its log-probability; `top` are the most likely ones at its position."""

    token: str
    bytes: list[int]  # may be half a character
    logprob: float
    top: NotRequired[list["TokenPayload"]]


class TextPayload(TypedDict):
    """A generated text. `read` and `written` count tokens; `ended` is false at the limit."""

    text: str
    ended: bool
    read: int
    written: int
    tokens: list[TokenPayload]


class ErrorPayload(TypedDict):
    """The error of a job."""

    code: str
    message: str


def packed(message: Message, blob: bytes = b"") -> bytes:
    """A message, framed; `blob` follows it."""
    sized = {**message, "bytes": len(blob)} if blob else message
    body = _encoded(sized)
    return len(body).to_bytes(HEAD, "big") + body + blob


def _encoded(message: Message) -> bytes:
    """pydantic's encoder, if it can: for 128 tokens 17 microseconds, and Python's needs 130.

    Python's encodes lone surrogates too, and rejects NaN with a `ValueError`.
    """
    with suppress(ValueError):
        body = to_json(message)
        if b"NaN" not in body and b"Infinity" not in body:
            return body
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()


def unpacked(body: bytes) -> Message:
    """The message in a frame's body."""
    try:
        message = from_json(body)
    except ValueError:  # lone surrogates
        message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def length_of(head: bytes) -> int:
    """Bytes of the message that follows this prefix."""
    return _bounded(int.from_bytes(head, "big"))


def _bounded(length: int) -> int:
    if not 0 <= length <= _LARGEST:
        raise ValueError(f"a message of {length} bytes is too long")
    return length


def send(pipe: int, frames: bytes) -> None:
    """Write all bytes, however few the pipe accepts at a time."""
    left = memoryview(frames)
    while left:
        left = left[os.write(pipe, left) :]


def receive(stream: BinaryIO) -> Message | None:
    """The next message; None when the other side is gone."""
    head = stream.read(HEAD)
    length = length_of(head) if len(head) == HEAD else 0
    body = stream.read(length)
    return unpacked(body) if length and len(body) == length else None


async def receive_from(stream: asyncio.StreamReader) -> Message | None:
    """As `receive`, without blocking; bytes that follow the message become its `blob`."""
    try:
        message = unpacked(await stream.readexactly(length_of(await stream.readexactly(HEAD))))
        if "bytes" in message:
            message["blob"] = await stream.readexactly(_bounded(message["bytes"]))
    except asyncio.IncompleteReadError:
        return None
    return message
