"""Looking inside: a text's way through a model, number by number; and what the model learned from.

A trace is asked for once and read in parts, as somebody looks at them. Numbers travel as bytes,
little-endian, one tensor after the other; two headers say what they are.
"""

import asyncio
import gzip
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from limelight.serve.ipc import Message
from limelight.serve.model_registry import ModelRegistry, refuse_unknown_questions
from limelight.serve.schemas import (
    Example,
    Name,
    NextRequest,
    StageResponse,
    TeacherRequest,
    TeacherTable,
    Ticket,
    TraceRequest,
    TraceResponse,
)
from limelight.serve.trace_token import LONGEST, name_of, ticket_of
from limelight.serve.worker_client import RefusedError, WorkerClient

PARTS, KIND = "X-Limelight-Parts", "X-Limelight-Kind"
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": f"Numbers as bytes; {PARTS} has names and shapes, {KIND} says f32, f16, u8",
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}
_TraceName = Annotated[str, Path(min_length=1, max_length=LONGEST, pattern="^[A-Za-z0-9_-]+$")]
_Label = Annotated[str, Path(min_length=1, max_length=100)]
_Number = Annotated[int | None, Query(ge=1, le=10_000)]
_Row = Annotated[int, Query(ge=0, le=10**6)]
_Place = Annotated[int | None, Query(ge=0, le=10**6)]
_Rows = Annotated[str, Query(pattern=r"^([0-9]{1,6}:[0-9]{1,6})?$")]
_Kind = Annotated[Literal["f32", "f16", "u8"], Query(alias="as")]
_Word = Annotated[str | None, Query(min_length=1, max_length=200)]


def routes(house: ModelRegistry) -> APIRouter:
    """All under /api."""
    checks = [Depends(refuse_unknown_questions)]
    router = APIRouter(prefix="/api", tags=["Looking inside"], dependencies=checks)

    @router.post("/trace", response_model=TraceResponse)
    async def trace(asked: TraceRequest, request: Request) -> Response:
        """A text's way through a model: its tokens, steps, and what there is to look at."""
        house.check_texts([asked.text, asked.target or ""])
        ticket = Ticket(**asked.model_dump(exclude={"timeout"}))
        done = await _look(house, ticket, asked.timeout, "manifest")
        named = ticket.model_copy(update={"print": done["print"]})
        told = {"trace": name_of(named), "seconds": done["seconds"], "manifest": done["manifest"]}
        return await _as_json(told, request)

    _add_slices(router, house)

    @router.get(
        "/trace/{trace}/stop/{name}",
        response_model_exclude_unset=True,
        summary="One stop of the walk",
    )
    async def stop(
        trace: _TraceName,
        name: _Label,
        layer: _Number = None,
        head: _Number = None,
        word: _Word = None,
        source: _Place = None,
        target: _Place = None,
    ) -> StageResponse:
        """Layers and heads count from 1; source and target are places of words, from 0."""
        fields: dict[str, Any] = {"name": name, "layer": layer, "head": head, "word": word}
        fields |= {"source_row": source, "target_row": target}
        done = await _look(house, ticket_of(trace), None, "stop", **fields)
        return StageResponse(**done["stop"])

    @router.post("/teacher")
    async def teacher(asked: TeacherRequest) -> TeacherTable:
        """How it learned: every position after the true tokens before it, and its loss."""
        house.check_texts([asked.source, asked.target])
        desk = house.choose(asked.model, "score")
        fields = {name: getattr(asked, name) for name in ("source", "target", "tag")}
        return TeacherTable(**await house.answer(desk, asked, "teacher", **fields))

    @router.post("/next", response_class=Response, responses=_BYTES)
    async def next_token(asked: NextRequest) -> Response:
        """The scores of all tokens that could come next, in the order of the vocabulary."""
        house.check_texts([asked.text])
        desk = house.choose(asked.model, "write")
        return _as_bytes(await house.answer(desk, asked, "next", text=asked.text))

    @router.get(
        "/vocabulary",
        response_model=list[str],
        summary="All tokens of a model, in the order of their numbers",
    )
    async def vocabulary(request: Request, model: Annotated[Name, Query()] = "") -> Response:
        done = await house.fetch(house.choose(model), None, "vocabulary")
        return await _as_json(done["pieces"], request)

    @router.get(
        "/example",
        response_model=Example,
        response_model_exclude_none=True,
        summary="A text to begin with; its trace is there already",
    )
    async def example(model: Annotated[Name, Query()] = "") -> Example:
        desk = house.find(model)
        if desk.facts is None:
            desk.check()
        return Example(**(desk.facts or {}).get("example", {}))

    return router


def _add_slices(router: APIRouter, house: ModelRegistry) -> None:
    """The parts of a trace."""

    @router.get(
        "/trace/{trace}/tensor/{name}",
        response_class=Response,
        responses=_BYTES,
        summary="A value, one head of it (counted from 1), or some of its rows",
    )
    async def tensor(
        trace: _TraceName, name: _Label, head: _Number = None, rows: _Rows = "", kind: _Kind = "f32"
    ) -> Response:
        window = [int(end) for end in rows.split(":")] if rows else None
        fields = {"name": name, "head": head, "rows": window, "as": kind}
        return _as_bytes(await _look(house, ticket_of(trace), None, "tensor", **fields))

    @router.get(
        "/trace/{trace}/focus",
        response_class=Response,
        responses=_BYTES,
        summary="All of an attention at one head: q, k, v, scores, masked, weights, mixed",
    )
    async def focus(
        trace: _TraceName,
        at: Annotated[str, Query(min_length=1, max_length=100)],
        head: Annotated[int, Query(ge=1, le=10_000)] = 1,
    ) -> Response:
        return _as_bytes(await _look(house, ticket_of(trace), None, "focus", at=at, head=head))

    @router.get(
        "/trace/{trace}/thumbs",
        response_class=Response,
        responses=_BYTES,
        summary="Small pictures of all heads",
    )
    async def thumbs(trace: _TraceName) -> Response:
        return _as_bytes(await _look(house, ticket_of(trace), None, "thumbs"))

    @router.get(
        "/trace/{trace}/logits",
        response_class=Response,
        responses=_BYTES,
        summary="The scores of the whole vocabulary at one row",
    )
    async def logits(trace: _TraceName, row: _Row) -> Response:
        return _as_bytes(await _look(house, ticket_of(trace), None, "logits", row=row))

    @router.get(
        "/trace/{trace}/token",
        response_class=Response,
        responses=_BYTES,
        summary="All that one word goes through",
    )
    async def token(
        trace: _TraceName, row: _Row, side: Literal["encoder", "decoder"] = "decoder"
    ) -> Response:
        return _as_bytes(await _look(house, ticket_of(trace), None, "token", side=side, row=row))


async def _look(
    house: ModelRegistry, ticket: Ticket, seconds: float | None, what: str, **fields: Any
) -> Message:
    """Ask the worker for something of a trace."""
    desk = house.choose(ticket.model)
    family = str((desk.facts or {}).get("config", {}).get("family", ""))
    if family.startswith("recurrent"):
        message = f"this model is {family}: it has no attention to look at"
        raise RefusedError(400, "not_for_this_model", message, "choose a Transformer")
    told = {"text": ticket.text, "target": ticket.target, "tag": ticket.tag, "print": ticket.print}
    settings = _settings_of(house, desk, ticket)
    return await house.fetch(desk, seconds, "trace", what=what, settings=settings, **told, **fields)


def _settings_of(house: ModelRegistry, desk: WorkerClient, ticket: Ticket) -> dict[str, Any]:
    """How to write: a mode in words, or single settings, or the recipe's own."""
    _check_mode(ticket)
    given = house.settings(ticket, ticket.max_tokens)
    recipe = (desk.facts or {}).get("decode", {})
    match ticket.mode:
        case "greedy":
            given |= {"beam": 1, "beam_groups": 1, "temperature": 0.0}
        case "beam":
            given |= {"beam": ticket.beam or max(2, recipe["beam"]), "temperature": 0.0}
            given |= {"beam_groups": 1}
        case "sample":
            given |= {"temperature": ticket.temperature or recipe["temperature"] or 1.0}
            given |= {"beam": 1, "beam_groups": 1}
    return {name: value for name, value in given.items() if value is not None}


def _check_mode(ticket: Ticket) -> None:
    """A mode and a setting that cannot both be meant: nobody here knows which one was."""
    for name, without, mode, words in (
        ("beam", 1, "beam", "2 or more"),
        ("temperature", 0, "sample", "above 0"),
    ):
        value, wanted = getattr(ticket, name), ticket.mode == mode
        if ticket.mode and value is not None and (value > without) != wanted:
            should = words if wanted else without
            message = f"{name}: should be {should} with the mode {ticket.mode}, and is {value:g}"
            raise RefusedError(422, "invalid_field", message, f"leave out {name}, or the mode")


async def _as_json(told: object, request: Request) -> Response:
    """A long answer, for those who understand it a sixth as long."""
    body, headers = json.dumps(told, separators=(",", ":")).encode(), {"vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = await asyncio.to_thread(gzip.compress, body, 5)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type="application/json")


def _as_bytes(done: Message) -> Response:
    """Numbers, and what they are; rows behind the last one are none."""
    headers = {PARTS: json.dumps(done["parts"], separators=(",", ":")), KIND: done["kind"]}
    return Response(done.get("blob", b""), headers=headers, media_type="application/octet-stream")
