"""What OpenAI's API has no fields for: translations, blanks, classes, scores, models and runs."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from limelight.serve.schemas.common import BaseRequest, Name, Phrase, Settings, Some, Tokens, Words

_Count = Annotated[int, Field(ge=1, le=100)]


_EITHER: dict[str, Any] = {"oneOf": [{"required": [name]} for name in ("text", "texts")]}


class _EitherRequest(BaseRequest):
    model_config = ConfigDict(json_schema_extra=_EITHER)

    @model_validator(mode="after")
    def _check_one_of_them(self) -> Self:
        if len({"text", "texts"} & self.model_fields_set) != 1:
            raise PydanticCustomError("text_or_texts", "should have either text or texts")
        return self


class TextRequest(_EitherRequest):
    """`text`, or several `texts`."""

    text: Words = ""
    texts: list[Words] = Field([], min_length=1, max_length=256)


class TranslateRequest(TextRequest, Settings):
    nbest: Some = Field(1, description="Number of translations, the best first.")
    alternatives: Annotated[int, Field(ge=0, le=10)] = Field(
        0, description="Number of alternative tokens to report at every position."
    )
    alignment: bool = Field(False, description="Report cross-attention weights.")
    tree: bool = Field(False, description="Report the beam search, step by step.")
    prefix: Annotated[str, StringConstraints(max_length=2000)] = ""
    include: list[Phrase] = Field([], max_length=8)
    exclude: list[Phrase] = Field([], max_length=8)
    glossary: dict[Phrase, Phrase] = Field(
        {}, max_length=1000, description="Terms of the source, and their translations."
    )
    max_tokens: Tokens | None = None


class AskRequest(BaseRequest):
    """A question, and the paragraph that has the answer."""

    question: Annotated[Words, StringConstraints(min_length=1)]
    context: Annotated[Words, StringConstraints(min_length=1)]


class SuggestRequest(BaseRequest):
    text: Words
    n: Some = 3
    max_tokens: Annotated[int, Field(ge=1, le=64)] = 8


class FillRequest(TextRequest):
    """A text with blanks, written ___."""

    count: _Count = 5


_Scored = Annotated[list[Words], Field(min_length=1, max_length=2)]


class ScoreRequest(_EitherRequest):
    """What to score: single texts, or pairs of source and target."""

    text: Words | _Scored = ""
    texts: list[_Scored] = Field([], min_length=1, max_length=256)
    tag: Name = ""


class SearchRequest(BaseRequest):
    """What to search for, and the texts to search: the service reads no files."""

    query: Annotated[Words, StringConstraints(min_length=1)]
    texts: list[Words] = Field(min_length=1, max_length=256)
    top: _Count = 10
    why: bool = Field(False, description="Report the similarities of tokens.")


class NeighboursRequest(BaseRequest):
    text: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    count: _Count = 10


class TranslationItem(BaseModel):
    """A translation; a beam search ranks by `score`."""

    text: str
    score: float = Field(
        description="Of a beam search, log_probability divided by the length penalty; of others, "
        "log_probability itself."
    )
    log_probability: float = Field(description="The sum of logprobs, whatever the search.")
    tokens: list[str]
    logprobs: list[float] = Field(description="Of each token, and of the end if it came.")


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
    """A hypothesis of the beam after a step: its last token's `logprob`, and of all of it the sum
    (`log_probability`) and the sum divided by the length penalty (`score`)."""

    place: int
    parent: int
    token: int
    piece: str
    logprob: float
    score: float
    log_probability: float
    ended: bool


class TranslationResult(BaseModel):
    text: str
    parts: int
    outputs: list[TranslationItem]
    missing_terms: list[str] | None = Field(
        None, description="Translations of the glossary that could not be used."
    )


class TranslateResponse(TranslationResult):
    """The translation of a text; of several, that of the first, and `translations` has all."""

    translations: list[TranslationResult] | None = None
    alternatives: list[list[AlternativeItem]] | None = None
    alignment: Alignment | None = None
    tree: list[list[TreeNode]] | None = None


class Suggestion(BaseModel):
    """A continuation with its probability: the product over all of its tokens."""

    text: str
    probability: float
    first_token_probability: float = Field(description="By which suggestions are chosen.")


class SuggestResponse(BaseModel):
    suggestions: list[Suggestion]


class BlankCandidate(BaseModel):
    text: str
    probability: float


class FillResult(BaseModel):
    """The text with its blanks filled in, and the candidates for each blank."""

    text: str
    blanks: list[list[BlankCandidate]]


class FillResponse(FillResult):
    """Of a text; of several, those of the first, and `filled` has all."""

    filled: list[FillResult] | None = None


class ClassifyResponse(BaseModel):
    """For each text the probability of every class, the most likely first."""

    classes: list[dict[str, float]]


class ScoreItem(BaseModel):
    """Log-probability of a text, in total and per token; or why there is none."""

    total: float | None = None
    log_probability: float | None = Field(None, description="The same as total.")
    tokens: list[str] = []
    logprobs: list[float] = []
    problem: str = ""


class ScoreList(BaseModel):
    scores: list[ScoreItem]


_SPAN = (
    "Where its token stands in the {}: Unicode characters, from and to; left out where a tokenizer "
    "spells it otherwise."
)


class TokenMatch(BaseModel):
    """A token of the query, the most similar one of the text, and their cosine."""

    query: str
    text: str
    cosine: float
    query_span: tuple[int, int] | None = Field(None, description=_SPAN.format("query"))
    text_span: tuple[int, int] | None = Field(None, description=_SPAN.format("text"))


class SearchMatch(BaseModel):
    """A text, by its number among those that were sent, and its cosine to the query."""

    index: int
    score: float
    text: str
    why: list[TokenMatch] | None = None


class SearchResponse(BaseModel):
    """The texts most similar to the query, the best first."""

    matches: list[SearchMatch]


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


class RunSteps(BaseModel):
    """Steps whose weights a run has kept, the first one first; `loaded` is that of the service."""

    name: str
    loaded: int
    steps: list[int]


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
    images: dict[str, int] | None = Field(description="Of a model that draws: size, tokens, ...")
    history: int = Field(description="Turns of a conversation that the model reads.")
    config: dict[str, Any]
    decode: dict[str, Any]
    vocabulary: int
    parameters: int
    parts: dict[str, int]
    step: int
    device: str = Field(description="Devices of the model's workers, separated by commas.")
    precision: str
