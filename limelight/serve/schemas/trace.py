"""Traces, teacher forcing, and next-token logits."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from limelight.serve.schemas.common import BaseRequest, Name, Settings, Strict, Tokens, Words

_Change = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class _TraceSettings(Settings):
    text: Words
    target: Words | None = Field(None, description="Use this instead of a generated target.")
    mode: Literal["greedy", "beam", "sample"] | None = Field(
        None, description="How to decode; the run's recipe decides by default."
    )
    max_tokens: Tokens | None = None
    step: Annotated[int, Field(ge=0, le=2**40)] | None = Field(
        None, description="Trace the checkpoint of this training step; see /api/runs/{name}/steps."
    )
    change: list[_Change] = Field(
        [],
        max_length=16,
        description="Changes of the model, such as decoder.0.cross@3=off; see the guide.",
    )


class TraceRequest(BaseRequest, _TraceSettings):
    """A text to trace through a model."""


class TraceToken(Strict, _TraceSettings):
    """A trace's request, packed into its name; `fingerprint` identifies model and tokens."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    model: Name = ""
    fingerprint: Annotated[str, StringConstraints(pattern="^[0-9a-f]{0,16}$")] = Field(
        "", alias="print"
    )


class TeacherRequest(BaseRequest):
    """A training example: what the model reads, and what should follow."""

    source: Words = Field("", description="The encoder's input, or a prompt.")
    target: Words
    tag: Name = ""


class NextRequest(BaseRequest):
    text: Words = ""


class TraceResponse(BaseModel):
    trace: str
    seconds: float
    manifest: dict[str, Any]


class StageFormula(BaseModel):
    """An equation in symbols, and with this model's numbers."""

    letters: str
    filled: str
    numbers: dict[str, float | None]


class StageFigure(BaseModel):
    """A figure's title and values; `share` is the column of a table that holds fractions.

    A table has heads and rows, a heatmap labels, columns and values. One of a value that can be
    read as a tensor has its name only.
    """

    title: str
    names: list[str]
    heads: list[str] | None = None
    rows: list[list[Any]] | None = None
    labels: list[str] | None = None
    columns: list[str] | None = None
    values: list[list[float | None]] | None = None
    scale: Literal["share", "signed", "size"] | None = None
    share: int | None = None
    focus: int | None = None


class StageCheck(BaseModel):
    """Something computed twice, and the difference between the two results."""

    claim: str
    passed: bool
    error: float | None
    within: float | None


class StageResponse(BaseModel):
    name: str
    title: str
    what: str
    section: str
    place: str
    formulas: list[StageFormula]
    exhibits: list[StageFigure]
    checks: list[StageCheck]
    notes: list[str]


class TokenMap(BaseModel):
    """Tokens on the plane in which their embeddings differ most; the first `own` are the text's.

    `near` has for each token the places, in these lists, of those with the largest cosine; `shares`
    says how much of the variance each axis holds.
    """

    tokens: list[int]
    labels: list[str]
    own: int
    points: list[tuple[float | None, float | None]]
    shares: list[float | None]
    near: list[list[int]]


class HeadsResponse(BaseModel):
    """Heads with what the answer loses without them: attention, head from 1, effect."""

    answer: str
    log_probability: float
    heads: list[tuple[str, int, float]]


class HtmlResponse(BaseModel):
    html: str
    holds: float = Field(description="The share of what the page can show; the rest did not fit.")


class AnimationResponse(BaseModel):
    svg: str


class TeacherTable(BaseModel):
    """Teacher forcing, position by position: input, target, its probability, and the loss.

    `smoothed` is the mean loss with label smoothing, which training minimises.
    """

    input: list[str]
    target: list[str]
    p_target: list[float]
    loss: list[float]
    best: list[str]
    p_best: list[float]
    mean: float
    smoothing: float
    smoothed: float


class NamedText(BaseModel):
    name: str  # what it shows
    text: str


class Example(BaseModel):
    text: str = ""
    target: str | None = None
    tag: str = ""
    more: list[NamedText] = []
