"""Models, completions, chats and embeddings, as OpenAI's clients expect them.

Fields that would change the answer and are not supported are rejected, not ignored.
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

from limelight.serve.errors import RefusedError, error_body
from limelight.serve.ipc import Message, TextPayload, TokenPayload
from limelight.serve.middleware import ParsedRoute
from limelight.serve.model_registry import ModelRegistry, Registry, ServedModel
from limelight.serve.schemas import openai as schemas

router = APIRouter(prefix="/v1", tags=["OpenAI-compatible"], route_class=ParsedRoute)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
# A chunk of a stream: the text's index, a piece of it, its tokens, and why it ended.
_Chunk = Callable[[int, str, list[TokenPayload], str | None], Message]


@router.get("/models", summary="The served models")
async def models(registry: Registry) -> schemas.ModelList:
    names = registry.models
    return schemas.ModelList(
        data=[schemas.ModelFacts(id=name, created=registry.created) for name in names]
    )


@router.get("/models/{name}", summary="A served model")
async def model(name: str, registry: Registry) -> schemas.ModelFacts:
    return schemas.ModelFacts(id=registry.find(name).name, created=registry.created)


@router.post("/completions", responses=_STREAM, response_model=schemas.Completion)
async def completions(
    request: schemas.CompletionRequest, registry: Registry
) -> schemas.Completion | StreamingResponse:
    """Continue a text; a model that was trained on pairs answers it."""
    model = registry.choose(request.model, "write", "translate")
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    registry.check_texts(prompts)
    fields = _common(registry, request, len(prompts)) | {"prompts": prompts}
    fields |= {"settings": registry.settings(request, request.max_tokens)}
    fields |= {"logprobs": request.logprobs is not None, "top": request.logprobs or 0}
    head = _head("cmpl", model)

    def chunk(i: int, piece: str, tokens: list[TokenPayload], reason: str | None) -> Message:
        choice: Message = {"index": i, "text": piece, "finish_reason": reason}
        choice["logprobs"] = _completion_logprobs(tokens).model_dump() if tokens else None
        return {**head, "object": "text_completion", "choices": [choice]}

    if request.stream:
        return await _stream(model, request, chunk, "complete", fields)
    done = await model.call("complete", request.timeout, **fields)
    choices = [
        schemas.CompletionChoice(
            index=i,
            text=text["text"],
            finish_reason="stop" if text["ended"] else "length",
            logprobs=_completion_logprobs(text["tokens"]) if fields["logprobs"] else None,
        )
        for i, text in enumerate(done["texts"])
    ]
    return schemas.Completion(
        **head, choices=choices, usage=_usage(model, done["texts"], fields["n"])
    )


@router.post("/chat/completions", responses=_STREAM, response_model=schemas.ChatCompletion)
async def chat(
    request: schemas.ChatRequest, registry: Registry
) -> schemas.ChatCompletion | StreamingResponse:
    """The next turn of a conversation."""
    model = registry.choose(request.model, "chat")
    turns = [turn.text for turn in request.messages if turn.role in ("user", "assistant")]
    registry.check_texts(turns)
    if not turns:
        message = "the conversation has no turn of a user"
        raise RefusedError(400, "invalid_request", message, "send a user's turn")
    if request.top_logprobs and not request.logprobs:
        message = "top_logprobs: there are none without logprobs"
        raise RefusedError(422, "invalid_field", message, "set logprobs to true")
    limit = request.max_completion_tokens or request.max_tokens
    fields = _common(registry, request, 1) | {"turns": turns}
    fields |= {"settings": registry.settings(request, limit)}
    fields |= {"logprobs": bool(request.logprobs), "top": request.top_logprobs or 0}
    head = _head("chatcmpl", model)

    def chunk(i: int, piece: str, tokens: list[TokenPayload], reason: str | None) -> Message:
        delta = {"role": "assistant", "content": piece} if reason is None else {}
        choice: Message = {"index": i, "delta": delta, "finish_reason": reason}
        choice["logprobs"] = _chat_logprobs(tokens).model_dump() if tokens else None
        return {**head, "object": "chat.completion.chunk", "choices": [choice]}

    if request.stream:
        return await _stream(model, request, chunk, "chat", fields)
    done = await model.call("chat", request.timeout, **fields)
    choices = [
        schemas.ChatChoice(
            index=i,
            message=schemas.ChatMessage(content=text["text"]),
            finish_reason="stop" if text["ended"] else "length",
            logprobs=_chat_logprobs(text["tokens"]) if fields["logprobs"] else None,
        )
        for i, text in enumerate(done["texts"])
    ]
    return schemas.ChatCompletion(
        **head, choices=choices, usage=_usage(model, done["texts"], fields["n"])
    )


@router.post("/embeddings")
async def embeddings(
    request: schemas.EmbeddingRequest, registry: Registry
) -> schemas.EmbeddingList:
    """A unit vector for each text."""
    model = registry.choose(request.model, "embed")
    texts = [request.input] if isinstance(request.input, str) else request.input
    registry.check_texts(texts)
    done = await model.call("embed", request.timeout, texts=texts)
    read, left_out = done["read"], done["left_out"]
    model.metrics.read.labels(model.name).inc(read)

    def encoded(vector: list[float]) -> list[float] | str:
        if request.encoding_format != "base64":  # which OpenAI's own client asks for
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

    return schemas.EmbeddingList(
        data=[
            schemas.EmbeddingItem(index=i, embedding=encoded(v))
            for i, v in enumerate(done["vectors"])
        ],
        model=model.name,
        usage=schemas.EmbeddingUsage(prompt_tokens=read, total_tokens=read, left_out=left_out),
    )


def _common(
    registry: ModelRegistry, request: schemas.GenerationRequest, texts: int
) -> dict[str, Any]:
    """Fields of the worker's job that completions and chats share."""
    registry.check_count(texts * (request.n or 1))
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return {"n": request.n or 1, "stop": stops, "stream": bool(request.stream), "tag": request.tag}


def _head(kind: str, model: ServedModel) -> Message:
    """Fields of a response and of every chunk of a stream."""
    identifier = f"{kind}-{secrets.token_hex(12)}"
    return {"id": identifier, "created": int(time.time()), "model": model.name}


async def _stream(
    model: ServedModel,
    request: schemas.GenerationRequest,
    chunk: _Chunk,
    op: str,
    fields: dict[str, Any],
) -> StreamingResponse:
    """Server-sent events, as tokens arrive.

    The first message is awaited here, so that a request that fails gets a status of its own.
    """
    messages = model.stream(op, request.timeout, **fields)
    first = await anext(messages)
    with_usage = bool(request.stream_options and request.stream_options.include_usage)

    async def events() -> AsyncIterator[bytes]:
        async with aclosing(messages):
            try:
                message = first
                while "done" not in message:
                    yield _event(chunk(message["text"], message["piece"], message["tokens"], None))
                    message = await anext(messages)
                texts = message["done"]["texts"]
                for i, text in enumerate(texts):
                    yield _event(chunk(i, "", [], "stop" if text["ended"] else "length"))
                usage = _usage(model, texts, fields["n"])
                if with_usage:
                    last = chunk(0, "", [], "stop")
                    yield _event({**last, "choices": [], "usage": usage.model_dump()})
                yield b"data: [DONE]\n\n"
            except RefusedError as refused:
                yield b"data: " + error_body(refused) + b"\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(payload: Message) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def _usage(model: ServedModel, texts: list[TextPayload], n: int) -> schemas.Usage:
    """Token counts; a prompt counts once, however many texts follow it."""
    read = sum(text["read"] for text in texts[::n])
    written = sum(text["written"] for text in texts)
    model.metrics.read.labels(model.name).inc(read)
    model.metrics.written.labels(model.name).inc(written)
    return schemas.Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def _completion_logprobs(tokens: list[TokenPayload]) -> schemas.CompletionLogprobs:
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token["token"]))
    return schemas.CompletionLogprobs(
        tokens=[token["token"] for token in tokens],
        token_logprobs=[token["logprob"] for token in tokens],
        top_logprobs=[
            {other["token"]: other["logprob"] for other in token["top"]} for token in tokens
        ],
        text_offset=offsets[:-1],
    )


def _chat_logprobs(tokens: list[TokenPayload]) -> schemas.ChatLogprobs:
    return schemas.ChatLogprobs(
        content=[
            schemas.ChatToken(
                token=token["token"],
                logprob=token["logprob"],
                bytes=token["bytes"],
                top_logprobs=[schemas.TokenLogprob.model_validate(other) for other in token["top"]],
            )
            for token in tokens
        ]
    )
