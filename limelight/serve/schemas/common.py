"""Bounds and fields that several routes share."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(max_length=64)]
Words = Annotated[str, StringConstraints(max_length=1_000_000)]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Some = Annotated[int, Field(ge=1, le=16)]
Tokens = Annotated[int, Field(ge=1, le=100_000)]


class Strict(BaseModel):
    """Rejects unknown fields and converts nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BaseRequest(Strict):
    model: Name = Field("", description="Name of a served model; the first one by default.")
    timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = Field(
        None, description="Seconds until the request fails with 504; limits.seconds caps it."
    )


class Sampling(BaseModel):
    """How to sample; the run's recipe supplies the defaults."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = Field(
        None, description="Above 0, tokens are sampled."
    )
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Sample from the smallest set of tokens whose probabilities sum to this."
    )
    top_k: Annotated[int, Field(ge=0, le=10**6)] | None = Field(
        None, description="Sample from the k most likely tokens; 0 means all."
    )
    min_p: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**40)] | None = Field(
        None, description="The same seed samples the same text."
    )


class Settings(Sampling):
    """Decoding settings; the run's recipe supplies the defaults."""

    beam: Annotated[int, Field(ge=1, le=16)] | None = Field(None, description="Beam size.")
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    tag: Name = Field("", description="The task of a model that was trained on several.")


class ErrorDetail(BaseModel):
    """OpenAI's fields, and a hint; `param` is the field that is wrong."""

    code: str
    message: str
    hint: str
    type: str
    param: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class Health(BaseModel):
    """State of the service; `devices` lists where the ready workers of each model run."""

    status: Literal["ok", "not ready"]
    models: dict[str, bool] = {}
    devices: dict[str, list[str]] = {}
