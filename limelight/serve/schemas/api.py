"""What OpenAI's API has no fields for: translations, blanks, classes, scores, models and runs."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from limelight.serve.schemas.common import BaseRequest, Name, Phrase, Settings, Some, Tokens, Words

_Count = Annotated[int, Field(ge=1, le=100)]


class TranslateRequest(BaseRequest, Settings):
    text: Words
    nbest: Some = Field(1, description="Number of translations, the best first.")
    alternatives: Annotated[int, Field(ge=0, le=10)] = Field(
        0, description="Number of alternative tokens to report at every position."
    )
    alignment: bool = Field(False, description="Report cross-attention weights.")
    tree: bool = Field(False, description="Report the beam search, step by step.")
    prefix: Annotated[str, StringConstraints(max_length=2000)] = ""
    include: list[Phrase] = Field([], max_length=8)
    exclude: list[Phrase] = Field([], max_length=8)
    max_tokens: Tokens | None = None


class SuggestRequest(BaseRequest):
    text: Words
    n: Some = 3
    max_tokens: Annotated[int, Field(ge=1, le=64)] = 8


class FillRequest(BaseRequest):
    """A text with blanks, written ___."""

    text: Words
    count: _Count = 5


class TextsRequest(BaseRequest):
    texts: Annotated[list[Words], Field(min_length=1, max_length=256)]


class ScoreRequest(BaseRequest):
    """Texts to score: single texts, or pairs of source and target."""

    texts: Annotated[
        list[Annotated[list[Words], Field(min_length=1, max_length=2)]],
        Field(min_length=1, max_length=256),
    ]
    tag: Name = ""


class NeighboursRequest(BaseRequest):
    text: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    count: _Count = 10


class TranslationItem(BaseModel):
    text: str
    score: float
    tokens: list[str]
    logprobs: list[float]


class AlternativeItem(BaseModel):
    """Another token for a position, and the translation that would follow."""

    piece: str
    probability: float
    text: str
    begin: str = Field(description="The translation up to this piece: send it as a prefix.")


class Alignment(BaseModel):
    """Cross-attention weights, target by source, prefix included. Each row sums to 1."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


class TreeNode(BaseModel):
    """A hypothesis of the beam after a step."""

    place: int
    parent: int
    token: int
    piece: str
    logprob: float
    score: float
    ended: bool


class TranslateResponse(BaseModel):
    text: str
    parts: int
    outputs: list[TranslationItem]
    alternatives: list[list[AlternativeItem]] | None = None
    alignment: Alignment | None = None
    tree: list[list[TreeNode]] | None = None


class TextCandidate(BaseModel):
    """A text, and the probability of its first token."""

    text: str
    probability: float


class SuggestResponse(BaseModel):
    suggestions: list[TextCandidate]


class FillResponse(BaseModel):
    """The text with its blanks filled in, and the candidates for each blank."""

    text: str
    blanks: list[list[TextCandidate]]


class ClassifyResponse(BaseModel):
    """For each text the probability of every class, the most likely first."""

    classes: list[dict[str, float]]


class ScoreItem(BaseModel):
    """Log-probability of a text, in total and per token; or why there is none."""

    total: float | None = None
    tokens: list[str] = []
    logprobs: list[float] = []
    problem: str = ""


class ScoreList(BaseModel):
    scores: list[ScoreItem]


class Neighbour(BaseModel):
    """A token, and the cosine between the two embeddings."""

    piece: str
    cosine: float


class Neighbourhood(BaseModel):
    piece: str
    neighbours: list[Neighbour]


class Neighbours(BaseModel):
    tokens: list[Neighbourhood]


class RunFacts(BaseModel):
    name: str
    ready: bool
    abilities: list[str]
    last: dict[str, Any] | None
    best_validation: dict[str, Any] | None
    unreadable: int = Field(description="Lines of the log that cannot be read, and are skipped.")


class RunList(BaseModel):
    runs: list[RunFacts]


class RunMetrics(BaseModel):
    """Entries of a run's log after a step, the oldest first."""

    name: str
    entries: list[dict[str, Any]]


class ModelDescription(BaseModel):
    name: str
    recipe: str
    about: str
    family: str
    kind: str
    abilities: list[str]
    tags: list[str]
    classes: list[str]
    history: int = Field(description="Turns of a conversation that the model reads.")
    config: dict[str, Any]
    decode: dict[str, Any]
    vocabulary: int
    parameters: int
    parts: dict[str, int]
    step: int
    device: str = Field(description="Devices of the model's workers, separated by commas.")
    precision: str
