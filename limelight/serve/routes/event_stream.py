"""Messages of a worker as server-sent events, as OpenAI's clients read them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse

from limelight.serve.errors import RefusedError, error_body
from limelight.serve.ipc import Message

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


async def event_stream(
    messages: AsyncGenerator[Message], events_of: Callable[[Message], Iterable[Message]]
) -> StreamingResponse:
    """The events of each message as they come, then `[DONE]`; an error is an event too."""
    first = await anext(messages)  # here, so that a request that fails gets a status of its own

    async def events() -> AsyncIterator[bytes]:
        message: Message | None = first
        async with aclosing(messages):
            try:
                while message is not None:
                    for event in events_of(message):
                        yield b"data: " + json.dumps(event).encode() + b"\n\n"
                    message = await anext(messages, None)
                yield b"data: [DONE]\n\n"
            except RefusedError as refused:
                yield b"data: " + error_body(refused) + b"\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
