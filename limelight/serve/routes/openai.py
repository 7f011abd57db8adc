"""The interface of OpenAI's clients: models, completions, chats, embeddings.

What they send beyond this is refused, not ignored, unless it would change nothing.
"""

import base64
import json
import secrets
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from limelight.serve.ipc import Message
from limelight.serve.middleware import error_body
from limelight.serve.model_registry import ModelRegistry
from limelight.serve.schemas import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatToken,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    EmbeddingItem,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
    GenerationRequest,
    ModelFacts,
    ModelList,
    TokenLogprob,
    Usage,
)
from limelight.serve.worker_client import RefusedError, WorkerClient

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
_Chunk = Callable[[int, str, Message | None, str | None], Message]


def routes(house: ModelRegistry) -> APIRouter:
    """All under /v1."""
    router = APIRouter(prefix="/v1", tags=["As OpenAI's"])
    born = int(time.time())

    @router.get("/models", summary="The models that can be asked")
    async def models() -> ModelList:
        return ModelList(data=[ModelFacts(id=name, created=born) for name in house.desks])

    @router.get("/models/{name}", summary="One of them")
    async def model(name: str) -> ModelFacts:
        return ModelFacts(id=house.find(name).name, created=born)

    @router.post("/completions", responses=_STREAM, response_model=Completion)
    async def completions(asked: CompletionRequest) -> Completion | StreamingResponse:
        """Go on with a text; a model that learned from pairs answers it."""
        desk = house.choose(asked.model, "write", "translate")
        return await _complete(house, desk, asked)

    @router.post("/chat/completions", responses=_STREAM, response_model=ChatCompletion)
    async def chat(asked: ChatRequest) -> ChatCompletion | StreamingResponse:
        """The next turn of a conversation."""
        desk = house.choose(asked.model, "chat")
        return await _converse(house, desk, asked)

    @router.post("/embeddings")
    async def embeddings(asked: EmbeddingRequest) -> EmbeddingList:
        """A vector of length 1 for each text."""
        desk = house.choose(asked.model, "embed")
        return await _embed(house, desk, asked)

    return router


def _common(house: ModelRegistry, asked: GenerationRequest, texts: int) -> dict[str, Any]:
    """What completions and chats tell the worker alike."""
    house.check_count(texts * (asked.n or 1))
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    return {"n": asked.n or 1, "stop": stops, "stream": bool(asked.stream), "tag": asked.tag}


def _new_head(kind: str, desk: WorkerClient) -> Message:
    """What every answer begins with, and every piece of a stream."""
    return {
        "id": f"{kind}-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": desk.name,
    }


async def _complete(
    house: ModelRegistry, desk: WorkerClient, asked: CompletionRequest
) -> Completion | StreamingResponse:
    """Completions, whole or as a stream."""
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    house.check_texts(prompts)
    fields = _common(house, asked, len(prompts)) | {"prompts": prompts, "top": asked.logprobs or 0}
    fields |= {"settings": house.settings(asked, asked.max_tokens)}
    fields |= {"logprobs": asked.logprobs is not None}
    head = _new_head("cmpl", desk)

    def chunk(i: int, piece: str, token: Message | None, reason: str | None) -> Message:
        told = {"index": i, "text": piece, "finish_reason": reason}
        told["logprobs"] = _plain_logprobs([token]).model_dump() if token else None
        return {**head, "object": "text_completion", "choices": [told]}

    if asked.stream:
        return await _stream(house, desk, asked, chunk, "complete", fields, head)
    done = await house.answer(desk, asked, "complete", **fields)
    choices = [
        CompletionChoice(
            index=i,
            text=text["text"],
            finish_reason="stop" if text["ended"] else "length",
            logprobs=_plain_logprobs(text["tokens"]) if fields["logprobs"] else None,
        )
        for i, text in enumerate(done["texts"])
    ]
    usage = _usage_of(house, desk, done["texts"], fields["n"])
    return Completion(**head, choices=choices, usage=usage)


async def _converse(
    house: ModelRegistry, desk: WorkerClient, asked: ChatRequest
) -> ChatCompletion | StreamingResponse:
    """Chats, whole or as a stream."""
    turns = [turn.text for turn in asked.messages if turn.role in ("user", "assistant")]
    house.check_texts(turns)
    if not turns:
        raise RefusedError(400, "invalid_request", "nobody has said anything", "send a user's turn")
    if asked.top_logprobs and not asked.logprobs:
        message = "top_logprobs: there are none without logprobs"
        raise RefusedError(422, "invalid_field", message, "set logprobs to true")
    limit = asked.max_completion_tokens or asked.max_tokens
    fields = _common(house, asked, 1) | {"turns": turns, "settings": house.settings(asked, limit)}
    fields |= {"logprobs": bool(asked.logprobs), "top": asked.top_logprobs or 0}
    head = _new_head("chatcmpl", desk)

    def chunk(i: int, piece: str, token: Message | None, reason: str | None) -> Message:
        said = {"role": "assistant", "content": piece} if reason is None else {}
        told = {"index": i, "delta": said, "finish_reason": reason}
        told["logprobs"] = _chat_logprobs([token]).model_dump() if token else None
        return {**head, "object": "chat.completion.chunk", "choices": [told]}

    if asked.stream:
        return await _stream(house, desk, asked, chunk, "chat", fields, head)
    done = await house.answer(desk, asked, "chat", **fields)
    choices = [
        ChatChoice(
            index=i,
            message=ChatMessage(content=text["text"]),
            finish_reason="stop" if text["ended"] else "length",
            logprobs=_chat_logprobs(text["tokens"]) if fields["logprobs"] else None,
        )
        for i, text in enumerate(done["texts"])
    ]
    usage = _usage_of(house, desk, done["texts"], fields["n"])
    return ChatCompletion(**head, choices=choices, usage=usage)


async def _stream(
    house: ModelRegistry,
    desk: WorkerClient,
    asked: GenerationRequest,
    chunk: _Chunk,
    do: str,
    fields: dict[str, Any],
    head: Message,
) -> StreamingResponse:
    """Server-sent events, as the tokens come.

    The first is waited for here, so that a request that cannot be answered has a status of its own.
    """
    messages = house.ask(desk, asked, do, **fields)
    first = await anext(messages)
    options = asked.stream_options
    with_usage = bool(options and options.include_usage)

    async def events() -> AsyncIterator[bytes]:
        async with aclosing(messages):
            try:
                message = first
                while "done" not in message:
                    told = chunk(message["text"], message["piece"], message["token"], None)
                    yield _event(told)
                    message = await anext(messages)
                texts = message["done"]["texts"]
                for i, text in enumerate(texts):
                    yield _event(chunk(i, "", None, "stop" if text["ended"] else "length"))
                usage = _usage_of(house, desk, texts, fields["n"])
                if with_usage:
                    last = chunk(0, "", None, "stop")
                    yield _event({**last, "choices": [], "usage": usage.model_dump()})
                yield b"data: [DONE]\n\n"
            except RefusedError as refused:
                yield b"data: " + error_body(refused) + b"\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(told: Message) -> bytes:
    """One of them."""
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def _usage_of(house: ModelRegistry, desk: WorkerClient, texts: list[Message], n: int) -> Usage:
    """What was read and written; a prompt counts once, however many texts follow it."""
    read = sum(text["read"] for text in texts[::n])
    written = sum(text["written"] for text in texts)
    house.counts.read.labels(desk.name).inc(read)
    house.counts.written.labels(desk.name).inc(written)
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def _plain_logprobs(tokens: list[Message]) -> CompletionLogprobs:
    """As completions tell them."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token["token"]))
    return CompletionLogprobs(
        tokens=[token["token"] for token in tokens],
        token_logprobs=[token["logprob"] for token in tokens],
        top_logprobs=[
            {other["token"]: other["logprob"] for other in token["top"]} for token in tokens
        ],
        text_offset=offsets[:-1],
    )


def _chat_logprobs(tokens: list[Message]) -> ChatLogprobs:
    """As chats tell them."""
    return ChatLogprobs(
        content=[
            ChatToken(
                **{name: token[name] for name in ("token", "logprob", "bytes")},
                top_logprobs=[TokenLogprob(**other) for other in token["top"]],
            )
            for token in tokens
        ]
    )


async def _embed(
    house: ModelRegistry, desk: WorkerClient, asked: EmbeddingRequest
) -> EmbeddingList:
    """Vectors as numbers, or as bytes in base64, which OpenAI's own client asks for."""
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    house.check_texts(texts)
    done = await house.answer(desk, asked, "embed", texts=texts)
    house.counts.read.labels(desk.name).inc(done["read"])

    def shown(vector: list[float]) -> list[float] | str:
        if asked.encoding_format != "base64":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

    read, left_out = done["read"], done["left_out"]
    return EmbeddingList(
        data=[EmbeddingItem(index=i, embedding=shown(v)) for i, v in enumerate(done["vectors"])],
        model=desk.name,
        usage=EmbeddingUsage(prompt_tokens=read, total_tokens=read, left_out=left_out),
    )
