"""Pictures for captions: as OpenAI's clients ask for them, and patch by patch."""

import time
from collections.abc import Iterable

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from limelight.serve.errors import RefusedError
from limelight.serve.ipc import Message
from limelight.serve.model_registry import ModelRegistry, Registry, ServedModel
from limelight.serve.routes.event_stream import EVENTS, event_stream
from limelight.serve.schemas import images as schemas
from limelight.serve.schemas.common import Sampling

router = APIRouter(tags=["Pictures"])
_SETTINGS = Sampling.model_fields.keys() | {"guidance"}


@router.post("/v1/images/generations", response_model=schemas.ImageList)
async def generate(request: schemas.ImageRequest, registry: Registry) -> Message:
    """Draw pictures for a caption."""
    n, (model, fields) = request.n or 1, _checked(request, registry)
    registry.check_count(n * request.best_of)
    side = model.facts["images"]["size"]
    if request.size not in (None, "auto", size := f"{side}x{side}"):
        message = f"size: this model draws pictures of {size}"
        raise RefusedError(422, "invalid_field", message, "leave it out", param="size")
    fields |= {"n": n, "best_of": request.best_of, "given": (), "stream": False}
    done = await model.call("draw", request.timeout, **fields)
    head = {"created": int(time.time()), "size": f"{side}x{side}"}
    return {**head, "data": done["pictures"], "notes": done["notes"]}


@router.post("/api/draw", responses=EVENTS, response_class=StreamingResponse)
async def draw(request: schemas.DrawRequest, registry: Registry) -> StreamingResponse:
    """Draw pictures as a stream: after each patch what there is of them, at last all of them.

    The last event has tokens, seed and score of each picture.
    """
    registry.check_count(request.n)
    model, fields = _checked(request, registry)
    fields |= {"n": request.n, "best_of": 1, "given": request.patches, "stream": True}

    def events(message: Message) -> Iterable[Message]:
        return [message.get("done") or message["part"]]

    return await event_stream(model.stream("draw", request.timeout, **fields), events)


@router.post("/api/draw/patch", response_model=schemas.PatchResponse)
async def patch(request: schemas.PatchRequest, registry: Registry) -> Message:
    """What could stand at a patch of a picture, and what the model attended to there."""
    model, fields = _checked(request, registry)
    fields |= request.model_dump(include={"patches", "patch", "count"})
    return await model.call("patch", request.timeout, **fields)


def _checked(
    request: schemas.PictureRequest, registry: ModelRegistry
) -> tuple[ServedModel, Message]:
    registry.check_texts([request.prompt])
    settings = request.model_dump(include=_SETTINGS, exclude_none=True)
    return registry.choose(request.model, "draw"), {"prompt": request.prompt, "settings": settings}
