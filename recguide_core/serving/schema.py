"""Request bodies of the API, as pydantic checks them. Types are strict, unknown fields refused.

Fields that the OpenAI API has and this server does not do are listed too, so that their neutral
values pass and any other is refused by name (see `prepare.refuse_unsupported`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from recguide_core.records import MAX_BLOCK

INT64 = 1 << 63
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Strict(BaseModel):
    """No coercion, no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SpeculationOptions(Strict):
    """How one request is decoded; the text is the same whatever is chosen."""

    enabled: bool | None = Field(None, description="False: plain autoregressive decoding.")
    method: str | None = Field(None, max_length=32, description="One of /server_info's methods.")
    block_size: int | None = Field(
        None,
        ge=1,
        le=MAX_BLOCK,
        validation_alias=AliasChoices("block_size", "block"),
        description="B of methods with a fixed block.",
    )


class GenerationBody(Strict):
    """What both kinds of completion share."""

    model: str = Field(max_length=512)
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1, lt=INT64)
    temperature: Finite | None = Field(None, ge=0, le=2)
    top_p: Finite | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, Finite] | None = None
    presence_penalty: Finite | None = Field(None, ge=-2, le=2)
    frequency_penalty: Finite | None = Field(None, ge=-2, le=2)
    user: str | None = None
    top_k: int | None = Field(None, ge=0, lt=1 << 31, description="Extension; 0 is off.")
    min_p: Finite | None = Field(None, ge=0, le=1, description="Extension; 0 is off.")
    ignore_eos: bool | None = Field(None, description="Extension: go on to max_tokens.")
    speculation: SpeculationOptions | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: int | None = Field(None, ge=0)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None


class TextPart(Strict):
    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: str | None = None


class Message(Strict):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None
    annotations: list[Any] | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    type: str


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = Field(None, ge=1, lt=INT64)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: Any = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The standard error object."""

    error: ErrorDetail


Role = Literal["system", "developer", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant")
