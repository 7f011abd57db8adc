"""What may be asked, and what is answered: every field has a type and bounds.

Nothing is allocated for a request before it has passed here. What is not named here is refused, and
so is a number in quotes, NaN, or half a character: a mistake is told, never guessed around. Where a
limit can be changed (`limits`), the bound here is the largest that any service could allow.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(max_length=64)]
Words = Annotated[str, StringConstraints(max_length=1_000_000)]
Phrase = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Some = Annotated[int, Field(ge=1, le=16)]
Seed = Annotated[int, Field(ge=0, le=2**40)]
Tokens = Annotated[int, Field(ge=1, le=100_000)]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
MinP = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
Stops = Phrase | Annotated[list[Phrase], Field(max_length=4)]


def nothing(value: float) -> float:
    """Accepted, as clients send it, and without effect."""
    if value:
        raise PydanticCustomError("not_nothing", "only 0 is possible: see repetition_penalty")
    return value


Nothing = Annotated[
    float, AfterValidator(nothing), Field(json_schema_extra={"minimum": 0, "maximum": 0})
]


class BaseRequest(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name = Field("", description="The name of a run; empty for the first.")
    timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = Field(
        None,
        description="Seconds until the answer is of no use; limits.seconds holds if it is less.",
    )


class Settings(BaseModel):
    """How to write. What is not given is as in the run's recipe."""

    temperature: Temperature | None = Field(None, description="Above 0 every token is drawn.")
    top_p: TopP | None = Field(None, description="Draw among the likeliest, this likely together.")
    top_k: Annotated[int, Field(ge=0, le=10**6)] | None = Field(None, description="Or so many.")
    min_p: MinP | None = None
    seed: Seed | None = Field(None, description="The same seed draws the same text.")
    beam: Annotated[int, Field(ge=1, le=16)] | None = Field(
        None, description="Texts tried at once."
    )
    repetition_penalty: Penalty | None = None
    tag: Name = Field("", description="What is asked of a model that learned several things.")


class StreamOptions(BaseModel):
    """What comes with a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class GenerationRequest(BaseRequest, Settings):
    """What completions and chats have in common."""

    n: Some | None = Field(1, description="So many texts; the second has the next seed, and so on.")
    stop: Stops | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    user: Annotated[str, StringConstraints(max_length=200)] | None = None
    frequency_penalty: Nothing | None = None
    presence_penalty: Nothing | None = None


class CompletionRequest(GenerationRequest):
    """A text, or several, to go on with."""

    prompt: Words | Annotated[list[Words], Field(min_length=1, max_length=64)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: Literal[False] | None = False


class TextPart(BaseModel):
    """A part of a message; only text is understood."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: Words


class InputMessage(BaseModel):
    """Something that was said. No model here has learned to heed a system message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: Words | Annotated[list[TextPart], Field(max_length=64)]
    name: Name | None = None

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return " ".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """A conversation so far; the service itself remembers none."""

    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=500)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class EmbeddingRequest(BaseRequest):
    """Texts to be made vectors."""

    input: Words | Annotated[list[Words], Field(min_length=1, max_length=256)]
    encoding_format: Literal["float", "base64"] | None = "float"
    user: Annotated[str, StringConstraints(max_length=200)] | None = None


class TranslateRequest(BaseRequest, Settings):
    """A text to be translated, and what to tell besides."""

    text: Words
    nbest: Some = Field(1, description="So many translations, the best first.")
    alternatives: Annotated[int, Field(ge=0, le=10)] = Field(
        0, description="At every place, so many tokens that could have stood there."
    )
    alignment: bool = Field(False, description="Which source tokens each token looked at.")
    tree: bool = Field(False, description="The whole search, step by step.")
    prefix: Annotated[str, StringConstraints(max_length=2000)] = ""
    include: Annotated[list[Phrase], Field(max_length=8)] = []
    exclude: Annotated[list[Phrase], Field(max_length=8)] = []
    max_tokens: Tokens | None = None


class SuggestRequest(BaseRequest):
    """A text that somebody is writing."""

    text: Words
    n: Some = 3
    max_tokens: Annotated[int, Field(ge=1, le=64)] = 8


class FillRequest(BaseRequest):
    """A text with blanks, written ___."""

    text: Words
    count: Annotated[int, Field(ge=1, le=100)] = 5


class TextsRequest(BaseRequest):
    """Texts to be classified."""

    texts: Annotated[list[Words], Field(min_length=1, max_length=256)]


class ScoreRequest(BaseRequest):
    """Texts to be scored: each alone, or a source and its target."""

    texts: Annotated[
        list[Annotated[list[Words], Field(min_length=1, max_length=2)]],
        Field(min_length=1, max_length=256),
    ]
    tag: Name = ""


class NeighboursRequest(BaseRequest):
    """A word."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    count: Annotated[int, Field(ge=1, le=100)] = 10


class TraceSettings(Settings):
    """A text to be looked at on its way through a model."""

    text: Words
    target: Words | None = Field(None, description="What follows, instead of what it would write.")
    mode: Literal["greedy", "beam", "sample"] | None = Field(
        None, description="How to write, in a word; without it, as in the run's recipe."
    )
    max_tokens: Tokens | None = None


class TraceRequest(BaseRequest, TraceSettings):
    """The same, as it is asked for."""


class Ticket(TraceSettings):
    """The same, as a trace's name holds it; `print` says what was traced, to be known again."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: Name = ""
    print: Annotated[str, StringConstraints(pattern="^[0-9a-f]{0,16}$")] = ""


class TeacherRequest(BaseRequest):
    """A text as in training: what is read, and what should follow."""

    source: Words = Field("", description="What an encoder reads, or a prompt.")
    target: Words
    tag: Name = ""


class NextRequest(BaseRequest):
    """A text that goes on."""

    text: Words = ""


class ErrorDetail(BaseModel):
    """What is wrong."""

    code: str
    message: str
    hint: str


class ErrorBody(BaseModel):
    """What is answered when there is no answer."""

    error: ErrorDetail


class ModelFacts(BaseModel):
    """A model, as OpenAI's clients list them."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["limelight"] = "limelight"


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelFacts]


class Usage(BaseModel):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(BaseModel):
    """The log-probability of each token, and of the likeliest in its place."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


Reason = Literal["stop", "length"]


class CompletionChoice(BaseModel):
    """One text."""

    index: int
    text: str
    finish_reason: Reason | None
    logprobs: CompletionLogprobs | None = None


class Completion(BaseModel):
    """How texts go on."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TokenLogprob(BaseModel):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenLogprob):
    """The same, with the likeliest in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """For each token of an answer."""

    content: list[ChatToken]


class ChatMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    finish_reason: Reason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(BaseModel):
    """The next turn of a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingUsage(BaseModel):
    """Tokens that were read, and those at the ends of texts that were too long to be."""

    prompt_tokens: int
    total_tokens: int
    left_out: int


class EmbeddingItem(BaseModel):
    """A text's vector: numbers, or the same as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """All of them, in order."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class TranslationItem(BaseModel):
    """A translation, and how likely the model found it."""

    text: str
    score: float
    tokens: list[str]
    logprobs: list[float]


class AlternativeItem(BaseModel):
    """What else could have stood at a place, and the translation it would have led to."""

    piece: str
    probability: float
    text: str
    begin: str = Field(description="The translation up to this piece: a prefix to ask for.")


class Alignment(BaseModel):
    """How much each target token, of the prefix too, looked at each source token.

    A row sums to 1.
    """

    source: list[str]
    target: list[str]
    weights: list[list[float]]


class TreeNode(BaseModel):
    """A place of the beam after a step."""

    place: int
    parent: int
    token: int
    piece: str
    logprob: float
    score: float
    ended: bool


class TranslateResponse(BaseModel):
    """A text's translations, the best first."""

    text: str
    parts: int
    outputs: list[TranslationItem]
    alternatives: list[list[AlternativeItem]] | None = None
    alignment: Alignment | None = None
    tree: list[list[TreeNode]] | None = None


class Suggestion(BaseModel):
    """How a text could go on, and how likely its first token is."""

    text: str
    probability: float


class SuggestResponse(BaseModel):
    """The likeliest first."""

    suggestions: list[Suggestion]


class FillItem(BaseModel):
    """A token for a blank."""

    text: str
    probability: float


class FillResponse(BaseModel):
    """The text with its blanks filled in, and what could stand in each."""

    text: str
    blanks: list[list[FillItem]]


class ClassifyResponse(BaseModel):
    """For each text the probability of every class, the likeliest first."""

    classes: list[dict[str, float]]


class ScoreItem(BaseModel):
    """How likely a text is: in all, and token by token; or why that cannot be told."""

    total: float | None = None
    tokens: list[str] = []
    logprobs: list[float] = []
    problem: str = ""


class ScoreList(BaseModel):
    """In the order of the texts."""

    scores: list[ScoreItem]


class Neighbour(BaseModel):
    """A token, and the cosine between its vector and another's."""

    piece: str
    cosine: float


class Neighbourhood(BaseModel):
    """A token, and those most like it."""

    piece: str
    neighbours: list[Neighbour]


class Neighbours(BaseModel):
    """For each token of the word."""

    tokens: list[Neighbourhood]


class RunFacts(BaseModel):
    """A run: whether it can be asked, and how its training stands."""

    name: str
    ready: bool
    abilities: list[str]
    last: dict[str, Any] | None
    best_validation: dict[str, Any] | None


class RunList(BaseModel):
    """All that are served."""

    runs: list[RunFacts]


class RunMetrics(BaseModel):
    """Lines of a run's log after a step, the oldest first."""

    name: str
    entries: list[dict[str, Any]]


class ModelDescription(BaseModel):
    """All about a model."""

    name: str
    recipe: str
    about: str
    family: str
    kind: str
    abilities: list[str]
    tags: list[str]
    classes: list[str]
    history: int = Field(description="Turns of a conversation that the model looks at.")
    config: dict[str, Any]
    decode: dict[str, Any]
    vocabulary: int
    parameters: int
    parts: dict[str, int]
    step: int


class TraceResponse(BaseModel):
    """A trace: its name, how long it took, and what there is to look at."""

    trace: str
    seconds: float
    manifest: dict[str, Any]


class StageFormula(BaseModel):
    """An equation in letters, and with this model's numbers."""

    letters: str
    filled: str
    numbers: dict[str, float | None]


class StageFigure(BaseModel):
    """A picture's title and the values in it; of a table all rows, and which column is a share."""

    title: str
    names: list[str]
    heads: list[str] | None = None
    rows: list[list[Any]] | None = None
    share: int | None = None
    focus: int | None = None


class StageCheck(BaseModel):
    """Something computed twice, and how far apart the two are."""

    claim: str
    passed: bool
    error: float | None
    within: float | None


class StageResponse(BaseModel):
    """One stop of the walk."""

    name: str
    title: str
    what: str
    section: str
    place: str
    formulas: list[StageFormula]
    exhibits: list[StageFigure]
    checks: list[StageCheck]
    notes: list[str]


class TeacherTable(BaseModel):
    """Position by position: what is read, what should follow, how likely that was, and the loss.

    With label smoothing, `smoothed` is what training would have made smaller.
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


class Example(BaseModel):
    """A text to begin with."""

    text: str = ""
    target: str | None = None
    tag: str = ""


class Health(BaseModel):
    """Whether the process lives, or the models can be asked."""

    status: Literal["ok", "not ready"]
    models: dict[str, bool] = {}
