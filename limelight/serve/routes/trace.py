"""One forward pass, number by number; teacher forcing; next-token logits.

A trace is requested once and then read in parts. Numbers are sent as bytes, little-endian, one
tensor after the other; two headers describe them.
"""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from limelight.serve.errors import RefusedError
from limelight.serve.ipc import Message
from limelight.serve.middleware import json_response
from limelight.serve.model_registry import (
    ModelName,
    ModelRegistry,
    Registry,
    ServedModel,
    reject_unknown_parameters,
)
from limelight.serve.schemas import trace as schemas
from limelight.serve.trace_token import LONGEST, name_of, token_of

PARTS, KIND = "X-Limelight-Parts", "X-Limelight-Kind"
_BYTES: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        200: {
            "description": f"Numbers as bytes; {PARTS}: names and shapes, {KIND}: f32, f16 or u8",
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        }
    },
}
_TraceName = Annotated[str, Path(min_length=1, max_length=LONGEST, pattern="^[A-Za-z0-9_-]+$")]
_Label = Annotated[str, Path(min_length=1, max_length=100)]
_Number = Annotated[int | None, Query(ge=1, le=10_000)]
_Row = Annotated[int, Query(ge=0, le=10**6)]
_OptionalRow = Annotated[int | None, Query(ge=0, le=10**6)]
_Rows = Annotated[str, Query(pattern=r"^([0-9]{1,6}:[0-9]{1,6})?$")]
_Kind = Annotated[Literal["f32", "f16", "u8"], Query(alias="as")]
_Word = Annotated[str | None, Query(min_length=1, max_length=200)]
_Block = Annotated[str, Query(min_length=1, max_length=100)]
_Head = Annotated[int, Query(ge=1, le=10_000)]
_Side = Literal["encoder", "decoder"]

router = APIRouter(
    prefix="/api",
    tags=["Traces"],
    dependencies=[Depends(reject_unknown_parameters)],
)


@router.post("/trace", response_model=schemas.TraceResponse)
async def trace(body: schemas.TraceRequest, request: Request, registry: Registry) -> Response:
    """Trace a text through a model: its tokens, steps, and the values that can be read."""
    registry.check_texts([body.text, body.target or ""])
    token = schemas.TraceToken(**body.model_dump(exclude={"timeout"}))
    done = await _view(registry, token, body.timeout, "manifest")
    named = token.model_copy(update={"fingerprint": done["print"]})
    payload = {"trace": name_of(named), "seconds": done["seconds"], "manifest": done["manifest"]}
    return await _as_json(payload, request)


@router.get("/trace/{trace}/tensor/{name}", summary="A value, or a head or rows of it", **_BYTES)
async def tensor(
    registry: Registry,
    trace: _TraceName,
    name: _Label,
    head: _Number = None,
    rows: _Rows = "",
    kind: _Kind = "f32",
) -> Response:
    window = [int(end) for end in rows.split(":")] if rows else None
    fields = {"name": name, "head": head, "rows": window, "as": kind}
    return _as_bytes(await _part(registry, trace, "tensor", **fields))


@router.get("/trace/{trace}/focus", **_BYTES)
async def focus(registry: Registry, trace: _TraceName, at: _Block, head: _Head = 1) -> Response:
    """One head of an attention such as decoder.2.cross: q, k, v, scores, weights, mixed."""
    return _as_bytes(await _part(registry, trace, "focus", at=at, head=head))


@router.get("/trace/{trace}/thumbs", summary="Thumbnails of all heads", **_BYTES)
async def thumbs(registry: Registry, trace: _TraceName) -> Response:
    return _as_bytes(await _part(registry, trace, "thumbs"))


@router.get("/trace/{trace}/logits", summary="Logits over the vocabulary at a row", **_BYTES)
async def logits(registry: Registry, trace: _TraceName, row: _Row) -> Response:
    return _as_bytes(await _part(registry, trace, "logits", row=row))


@router.get("/trace/{trace}/token", summary="All values at one token", **_BYTES)
async def values_at(
    registry: Registry, trace: _TraceName, row: _Row, side: _Side = "decoder"
) -> Response:
    return _as_bytes(await _part(registry, trace, "token", side=side, row=row))


@router.get("/trace/{trace}/stop/{name}", response_model_exclude_unset=True)
async def stage(
    registry: Registry,
    trace: _TraceName,
    name: _Label,
    layer: _Number = None,
    head: _Number = None,
    word: _Word = None,
    source: _OptionalRow = None,
    target: _OptionalRow = None,
) -> schemas.StageResponse:
    """A stage of the walk. Layers and heads count from 1; source and target are positions."""
    fields: dict[str, Any] = {"name": name, "layer": layer, "head": head, "word": word}
    fields |= {"source_row": source, "target_row": target}
    return schemas.StageResponse(**(await _part(registry, trace, "stop", **fields))["stop"])


@router.get("/trace/{trace}/map", summary="Embeddings of tokens on a plane")
async def token_map(
    registry: Registry, trace: _TraceName, side: _Side = "decoder"
) -> schemas.TokenMap:
    return schemas.TokenMap(**(await _part(registry, trace, "map", side=side))["map"])


@router.get("/trace/{trace}/heads")
async def heads(registry: Registry, trace: _TraceName) -> schemas.HeadsResponse:
    """Each head off once: by how much the log-probability of the answer falls without it."""
    return schemas.HeadsResponse(**await _part(registry, trace, "heads"))


@router.get("/trace/{trace}/html")
async def html(registry: Registry, trace: _TraceName) -> schemas.HtmlResponse:
    """The walk as one HTML file that works offline, as `limelight explain --html` writes it."""
    called = registry.choose(token_of(trace).model).name
    return schemas.HtmlResponse(**await _part(registry, trace, "html", called=called))


@router.get("/trace/{trace}/animation")
async def animation(
    registry: Registry, trace: _TraceName, layer: _Number = None, head: _Number = None
) -> schemas.AnimationResponse:
    """The walk as an animated SVG, as `limelight explain --animate` writes it."""
    found = await _part(registry, trace, "animation", layer=layer, head=head)
    return schemas.AnimationResponse(**found)


@router.post("/teacher")
async def teacher(request: schemas.TeacherRequest, registry: Registry) -> schemas.TeacherTable:
    """Teacher forcing: the loss at every position, given the true tokens before it."""
    fields = request.model_dump(include={"source", "target", "tag"})
    done = await registry.call(request, "teacher", fields.values(), "score", **fields)
    return schemas.TeacherTable(**done)


@router.post("/next", **_BYTES)
async def next_token(request: schemas.NextRequest, registry: Registry) -> Response:
    """Logits of the next token, in the order of the vocabulary."""
    text = request.text
    return _as_bytes(await registry.call(request, "next", [text], "write", text=text))


@router.get("/vocabulary", response_model=list[str], summary="All tokens of a model, by their ids")
async def vocabulary(request: Request, registry: Registry, model: ModelName = "") -> Response:
    done = await registry.choose(model).call("vocabulary")
    return await _as_json(done["pieces"], request)


@router.get("/example", response_model_exclude_none=True)
async def example(registry: Registry, model: ModelName = "") -> schemas.Example:
    """A text to begin with, whose trace is cached."""
    return schemas.Example(**registry.find(model).description().get("example", {}))


async def _part(registry: ModelRegistry, trace: str, view: str, **fields: Any) -> Message:
    return await _view(registry, token_of(trace), None, view, **fields)


async def _view(
    registry: ModelRegistry,
    token: schemas.TraceToken,
    seconds: float | None,
    view: str,
    **fields: Any,
) -> Message:
    model = registry.choose(token.model)
    if model.facts.get("images"):
        message = "this model draws: only texts can be traced"
        raise RefusedError(400, "not_for_this_model", message, "try /api/draw/patch")
    job: Message = {"text": token.text, "target": token.target, "tag": token.tag}
    job |= {"change": token.change, "print": token.fingerprint, "step": token.step}
    job |= {"settings": _settings(registry, model, token)}
    return await model.call("trace", seconds, what=view, **job, **fields)


def _settings(registry: ModelRegistry, model: ServedModel, token: schemas.TraceToken) -> Message:
    """Decoding settings: a mode, or single settings, or the recipe's."""
    _check_mode(token)
    given = registry.settings(token, token.max_tokens)
    recipe = model.facts.get("decode", {})
    match token.mode:
        case "greedy":
            given |= {"beam": 1, "beam_groups": 1, "temperature": 0.0}
        case "beam":
            given |= {"beam": token.beam or max(2, recipe["beam"]), "temperature": 0.0}
            given |= {"beam_groups": 1}
        case "sample":
            given |= {"temperature": token.temperature or recipe["temperature"] or 1.0}
            given |= {"beam": 1, "beam_groups": 1}
    return given


def _check_mode(token: schemas.TraceToken) -> None:
    for name, without, mode, bound in (
        ("beam", 1, "beam", "2 or more"),
        ("temperature", 0, "sample", "above 0"),
    ):
        value, wanted = getattr(token, name), token.mode == mode
        if token.mode and value is not None and (value > without) != wanted:
            should = bound if wanted else without
            message = f"{name}: should be {should} with the mode {token.mode}, and is {value:g}"
            raise RefusedError(422, "invalid_field", message, f"leave out {name}, or the mode")


async def _as_json(payload: object, request: Request) -> Response:
    return await json_response(json.dumps(payload, separators=(",", ":")).encode(), request.scope)


def _as_bytes(done: Message) -> Response:
    headers = {PARTS: json.dumps(done["parts"], separators=(",", ":")), KIND: done["kind"]}
    return Response(done.get("blob", b""), headers=headers, media_type="application/octet-stream")
