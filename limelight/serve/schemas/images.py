"""Pictures for captions, with the fields of OpenAI's API, and patch by patch."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from limelight.serve.schemas.common import BaseRequest, Name, Sampling, Some, Words
from limelight.serve.schemas.openai import Neutral, Null, User

_Patches = Annotated[list[Annotated[int, Field(ge=0, le=10**6)]], Field(max_length=1024)]


class PictureRequest(BaseRequest, Sampling):
    """A caption, and how to sample. The i-th picture has `seed + i`."""

    prompt: Words
    guidance: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = Field(
        None, description="How far to lean towards the caption; 1 is what the model learned."
    )


class ImageRequest(PictureRequest):
    n: Annotated[int, Field(ge=1, le=64)] | None = 1
    best_of: Some = Field(1, description="Draw this many for each picture, and keep the best.")
    size: Name | None = Field(None, description="The model's own, as 32x32; or auto.")
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    output_format: Annotated[Any, Neutral("png")] = None
    background: Annotated[Any, Neutral("auto", "opaque")] = None
    moderation: Annotated[Any, Neutral("auto", "low")] = None
    output_compression: Annotated[Any, Neutral(100)] = None
    partial_images: Annotated[Any, Neutral(0)] = None
    quality: Annotated[Any, Neutral("auto", "standard")] = None
    stream: Annotated[Any, Neutral(False)] = None
    style: Null = None
    user: User | None = None

    @field_validator("response_format")
    @classmethod
    def _check_format(cls, value: str | None) -> str | None:
        if value == "url":
            raise PydanticCustomError("not_stored", "no picture is stored: ask for b64_json")
        return value


class DrawRequest(PictureRequest):
    n: Annotated[int, Field(ge=1, le=9)] = 1
    patches: _Patches = Field([], description="Tokens to begin with; the rest is drawn.")


class PatchRequest(PictureRequest):
    patches: _Patches = Field(description="The tokens of a picture, as /api/draw reports them.")
    patch: Annotated[int, Field(ge=0, le=1024)]
    count: Annotated[int, Field(ge=1, le=32)] = 8


class ImageItem(BaseModel):
    b64_json: str = Field(description="A PNG, in base64.")


class ImageList(BaseModel):
    """Pictures, and notes: words of the caption that the model does not know."""

    created: int
    data: list[ImageItem]
    size: str
    notes: list[str]


class PatchCandidate(ImageItem):
    """A token for the patch, and the picture with it, around the patch."""

    token: int
    probability: float


class AttentionItem(BaseModel):
    """A layer's weights, the mean of its heads; together they are 1."""

    words: list[float]
    padding: float
    separator: float
    patches: list[float]


class PatchResponse(BaseModel):
    candidates: list[PatchCandidate]
    words: list[str]
    attention: list[AttentionItem]
    maps: list[list[float]] = Field(description="Of each word, its weight at every patch.")
