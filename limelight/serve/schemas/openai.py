"""Completions, chats and embeddings, with the fields of OpenAI's API."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from limelight.serve.schemas.common import (
    BaseRequest,
    Name,
    Phrase,
    Settings,
    Some,
    Strict,
    Tokens,
    Words,
)

User = Annotated[str, StringConstraints(max_length=200)]


def _check_zero(value: float) -> float:
    if value:
        raise PydanticCustomError("not_neutral", "only 0 is possible: see repetition_penalty")
    return value


_Zero = Annotated[
    float, AfterValidator(_check_zero), Field(json_schema_extra={"minimum": 0, "maximum": 0})
]


class Neutral:
    """Null and these values ask for nothing; others are rejected, as they would be ignored."""

    def __init__(self, *values: Any) -> None:
        self.values = (None, *values)

    def __get_pydantic_core_schema__(self, source: Any, get: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, get(source))

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"enum": list(self.values)}

    def _check(self, value: Any) -> Any:
        if not any(type(value) is type(own) and value == own for own in self.values):
            neutral = " or ".join(json.dumps(own) for own in self.values[1:])
            instead = {"instead": f", or send {neutral}" if neutral else ""}
            raise PydanticCustomError(
                "not_neutral", "not supported: leave it out{instead}", instead
            )
        return value


Null = Annotated[Any, Neutral()]
_Empty = Annotated[Any, Neutral([])]


class StreamOptions(Strict):
    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class GenerationRequest(BaseRequest, Settings):
    n: Some | None = Field(1, description="Number of texts; the i-th is sampled with seed + i.")
    stop: Phrase | Annotated[list[Phrase], Field(max_length=4)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    user: User | None = None
    frequency_penalty: _Zero | None = None
    presence_penalty: _Zero | None = None
    logit_bias: dict[Name, _Zero] | None = None


class CompletionRequest(GenerationRequest):
    prompt: Words | Annotated[list[Words], Field(min_length=1, max_length=64)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: Literal[False] | None = False
    best_of: Some | None = Field(None, description="As many as `n`: nothing is ranked.")
    suffix: Annotated[Any, Neutral("")] = None

    @field_validator("best_of")
    @classmethod
    def _check_best_of(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value not in (None, info.data.get("n") or 1):
            raise PydanticCustomError("not_neutral", "not supported: leave it out, or send n")
        return value


class TextPart(Strict):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: Words


class InputMessage(Strict):
    """A turn of a conversation. System messages are accepted and ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Words | Annotated[list[TextPart], Field(max_length=64)]
    name: Name | None = None
    refusal: Null = None
    audio: Null = None
    function_call: Null = None
    annotations: _Empty = None
    tool_calls: _Empty = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return " ".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """A conversation so far; the service keeps no history."""

    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=500)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    safety_identifier: User | None = None
    prompt_cache_key: User | None = None
    response_format: Annotated[Any, Neutral({"type": "text"})] = None
    modalities: Annotated[Any, Neutral(["text"])] = None
    tools: _Empty = None
    tool_choice: Annotated[Any, Neutral("none", "auto")] = None
    parallel_tool_calls: bool | None = None
    functions: _Empty = None
    function_call: Annotated[Any, Neutral("none", "auto")] = None
    store: Annotated[Any, Neutral(False)] = None
    metadata: Annotated[Any, Neutral({})] = None
    service_tier: Annotated[Any, Neutral("auto", "default")] = None
    reasoning_effort: Annotated[Any, Neutral("none")] = None
    verbosity: Annotated[Any, Neutral("medium")] = None
    prompt_cache_retention: Annotated[Any, Neutral("in_memory")] = None
    prompt_cache_options: Annotated[Any, Neutral({})] = None
    audio: Null = None
    moderation: Null = None
    prediction: Null = None
    web_search_options: Null = None


class EmbeddingRequest(BaseRequest):
    input: Words | Annotated[list[Words], Field(min_length=1, max_length=256)]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The width of the model; vectors are not shortened."
    )
    user: User | None = None


class ModelFacts(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["limelight"] = "limelight"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelFacts]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(BaseModel):
    """Log-probability of each token, and of the most likely ones at its position."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


_FinishReason = Literal["stop", "length"]


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: _FinishReason | None
    logprobs: CompletionLogprobs | None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenLogprob):
    """A generated token, and the most likely ones at its position."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatToken]


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: _FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingUsage(BaseModel):
    """Tokens read, and tokens beyond the model's context that were not (`left_out`)."""

    prompt_tokens: int
    total_tokens: int
    left_out: int


class EmbeddingItem(BaseModel):
    """A text's vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
