"""Models, completions, chats and embeddings, as OpenAI's clients expect them.

Fields that would change the answer and are not supported are rejected, not ignored.
"""

import base64
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from limelight.serve.errors import RefusedError
from limelight.serve.ipc import Message, TextPayload, TokenPayload
from limelight.serve.model_registry import ModelRegistry, Registry, ServedModel
from limelight.serve.routes.event_stream import EVENTS, event_stream
from limelight.serve.schemas import openai as schemas

router = APIRouter(prefix="/v1", tags=["OpenAI-compatible"])
# A choice of a response, or of a chunk of a stream: index, text, its tokens, and why it ended.
_Choice = Callable[[int, str, list[TokenPayload] | None, str | None], Message]
_Generated = Message | StreamingResponse


@router.get("/models", summary="The served models")
async def models(registry: Registry) -> schemas.ModelList:
    served = [schemas.ModelFacts(id=name, created=registry.created) for name in registry.models]
    return schemas.ModelList(data=served)


@router.get("/models/{name}", summary="A served model")
async def model(name: str, registry: Registry) -> schemas.ModelFacts:
    return schemas.ModelFacts(id=registry.find(name).name, created=registry.created)


@router.post("/completions", responses=EVENTS, response_model=schemas.Completion)
async def completions(request: schemas.CompletionRequest, registry: Registry) -> _Generated:
    """Continue a text; a model that was trained on pairs answers it."""
    model = registry.choose(request.model, "write", "translate")
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    registry.check_texts(prompts)
    fields = _common(registry, request, len(prompts)) | {"prompts": prompts}
    fields |= {"settings": registry.settings(request, request.max_tokens)}
    fields |= {"logprobs": request.logprobs is not None, "top": request.logprobs or 0}

    sent: Counter[int] = Counter()  # characters of the tokens of each text so far

    def choice(i: int, text: str, tokens: list[TokenPayload] | None, end: str | None) -> Message:
        logprobs = None if tokens is None else _completion_logprobs(tokens, sent[i])
        sent[i] += sum(len(token["token"]) for token in tokens or ())
        return {"index": i, "text": text, "finish_reason": end, "logprobs": logprobs}

    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion"}
    return await _generate(model, request, "complete", fields, head, choice)


@router.post("/chat/completions", responses=EVENTS, response_model=schemas.ChatCompletion)
async def chat(request: schemas.ChatRequest, registry: Registry) -> _Generated:
    """The next turn of a conversation."""
    model = registry.choose(request.model, "chat")
    turns = [turn.text for turn in request.messages if turn.role in ("user", "assistant")]
    registry.check_texts([turn.text for turn in request.messages])
    if not turns:
        message = "the conversation has no turn of a user"
        raise RefusedError(400, "invalid_request", message, "send a user's turn", param="messages")
    if request.top_logprobs and not request.logprobs:
        message = "top_logprobs: there are none without logprobs"
        hint = "set logprobs to true"
        raise RefusedError(422, "invalid_field", message, hint, param="top_logprobs")
    limit = request.max_completion_tokens or request.max_tokens
    said = [{"role": turn.role, "content": turn.text} for turn in request.messages]
    fields = _common(registry, request, 1) | {"turns": turns, "messages": said}
    fields |= {"settings": registry.settings(request, limit)}
    fields |= {"logprobs": bool(request.logprobs), "top": request.top_logprobs or 0}

    begun: set[int] = set()  # clients join the deltas of a text: its role is sent once

    def choice(i: int, text: str, tokens: list[TokenPayload] | None, end: str | None) -> Message:
        logprobs = None if tokens is None else _chat_logprobs(tokens)
        said = {"role": "assistant", "content": text}
        if i in begun:
            said = {} if end else {"content": text}
        begun.add(i)
        content = {"delta" if request.stream else "message": said}
        return {"index": i, **content, "finish_reason": end, "logprobs": logprobs}

    kind = "chat.completion.chunk" if request.stream else "chat.completion"
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind}
    return await _generate(model, request, "chat", fields, head, choice)


@router.post("/embeddings")
async def embeddings(
    request: schemas.EmbeddingRequest, registry: Registry
) -> schemas.EmbeddingList:
    """A unit vector for each text."""
    model = registry.choose(request.model, "embed")
    texts = [request.input] if isinstance(request.input, str) else request.input
    registry.check_texts(texts)
    done = await model.call("embed", request.timeout, texts=texts)
    read, left_out, width = done["read"], done["left_out"], len(done["vectors"][0])
    if request.dimensions not in (None, width):
        message = f"dimensions: the model's vectors have {width} numbers"
        raise RefusedError(422, "invalid_field", message, "leave it out", param="dimensions")
    model.metrics.read.labels(model.name).inc(read)

    def encoded(vector: list[float]) -> list[float] | str:
        if request.encoding_format != "base64":  # which OpenAI's own client asks for
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

    vectors = map(encoded, done["vectors"])
    items = [schemas.EmbeddingItem(index=i, embedding=v) for i, v in enumerate(vectors)]
    usage = schemas.EmbeddingUsage(prompt_tokens=read, total_tokens=read, left_out=left_out)
    return schemas.EmbeddingList(data=items, model=model.name, usage=usage)


def _common(registry: ModelRegistry, request: schemas.GenerationRequest, texts: int) -> Message:
    registry.check_count(texts * (request.n or 1))
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return {"n": request.n or 1, "stop": stops, "stream": bool(request.stream), "tag": request.tag}


async def _generate(
    model: ServedModel,
    request: schemas.GenerationRequest,
    op: str,
    fields: dict[str, Any],
    head: Message,
    choice: _Choice,
) -> _Generated:
    head |= {"created": int(time.time()), "model": model.name}
    if not request.stream:
        done: list[TextPayload] = (await model.call(op, request.timeout, **fields))["texts"]
        choices = [
            choice(i, text["text"], text["tokens"] if fields["logprobs"] else None, _reason(text))
            for i, text in enumerate(done)
        ]
        return {**head, "choices": choices, "usage": _usage(model, done, fields["n"])}
    with_usage = bool(request.stream_options and request.stream_options.include_usage)

    def events(message: Message) -> Iterator[Message]:
        if "done" not in message:
            index, tokens = message["text"], message["tokens"] or None
            yield {**head, "choices": [choice(index, message["piece"], tokens, None)]}
            return
        texts = message["done"]["texts"]
        for i, text in enumerate(texts):
            yield {**head, "choices": [choice(i, "", None, _reason(text))]}
        usage = _usage(model, texts, fields["n"])
        if with_usage:
            yield {**head, "usage": usage, "choices": []}

    return await event_stream(model.stream(op, request.timeout, **fields), events)


def _reason(text: TextPayload) -> str:
    return "stop" if text["ended"] else "length"


def _usage(model: ServedModel, texts: list[TextPayload], n: int) -> dict[str, int]:
    """Token counts; a prompt counts once, however many texts follow it."""
    read = sum(text["read"] for text in texts[::n])
    written = sum(text["written"] for text in texts)
    model.metrics.read.labels(model.name).inc(read)
    model.metrics.written.labels(model.name).inc(written)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _completion_logprobs(tokens: list[TokenPayload], offset: int) -> Message:
    offsets = [*accumulate((len(token["token"]) for token in tokens), initial=offset)]
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{x["token"]: x["logprob"] for x in token["top"]} for token in tokens],
        "text_offset": offsets[: len(tokens)],
    }


def _chat_logprobs(tokens: list[TokenPayload]) -> Message:
    plain = [{key: value for key, value in token.items() if key != "top"} for token in tokens]
    both = zip(plain, tokens, strict=True)
    return {"content": [{**token, "top_logprobs": own["top"]} for token, own in both]}
