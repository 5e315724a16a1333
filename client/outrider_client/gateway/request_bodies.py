"""Request bodies in OpenAI's format, and the extensions to it under `outrider`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from outrider_client.core.config import Mode, Privacy
from outrider_client.core.gateway_config import UnverifiedPolicy
from outrider_client.core.gateway_parameters import (
    HINTS,
    MESSAGE_HINTS,
    MESSAGE_UNSUPPORTED,
    UNSUPPORTED,
    drop_defaults,
    in_our_words,
    plain_settings,
)
from outrider_client.text.tool_calls import ToolCall
from outrider_proto.frames import MAX_LOGIT_BIASES

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
MAX_STOPS = 64
MAX_TOOLS = 128
MAX_CHOICES = 32  # answers of one request
MAX_MESSAGES = 4096
MAX_PIECES = 1024  # of a message
_MAX_STOP_CHARS = 256
_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]


def _without_lone_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # its message would repeat the text, which may be private
        raise PydanticCustomError("half_character", "holds half a character, which no UTF-8 has") from None
    return text


SafeText = Annotated[str, AfterValidator(_without_lone_surrogates)]  # JSON can spell them, tokenizers fail on them

TEXT, LIST, OBJECT = "<text>", "<list>", "<object>"
FORMS = (TEXT, LIST, OBJECT)  # in the locations of pydantic's errors, though not in the request


def _form(value: Any) -> str | None:  # Any: whatever JSON holds
    match value:
        case str():
            return TEXT
        case list():
            return LIST
        case Mapping():
            return OBJECT
        case _:
            return None


# Without it pydantic tries text and list alike, and an error in a list also says that the list is no text.
BY_FORM = Discriminator(_form, custom_error_type="wrong_form", custom_error_message="need text or a list")
TEXT_OR_OBJECT = Discriminator(_form, custom_error_type="wrong_form", custom_error_message="need text or an object")


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class OutriderOptions(RequestBody):
    """The field `outrider` of a body, or headers `x-outrider-...`."""

    mode: Mode | None = None
    drafter: str | None = None
    privacy: Privacy | None = None
    fences: bool = False  # treat <<private: ...>> in the messages as private
    parse_special: bool | None = None  # of completions: whether text that spells a control token is that token
    stop_loops: bool = False  # end an answer that goes round in circles, or after 2,048 tokens if nobody sets a limit
    unverified: UnverifiedPolicy | None = None  # what to do with text of an outage; None: as the gateway does


class StreamOptions(RequestBody):
    include_usage: bool = False
    include_obfuscation: bool | None = None  # nothing is padded here
    continuous_usage_stats: Literal[False] | None = None


def _without_other_media(part_type: Any) -> Any:  # Any: whatever JSON holds
    if isinstance(part_type, str) and part_type != "text":
        raise PydanticCustomError("other_media", "the model reads text only")
    return part_type


class TextPart(RequestBody):
    """Part of a message. `private` and `kind` extend OpenAI's format."""

    type: Annotated[Literal["text"], BeforeValidator(_without_other_media)]
    text: SafeText
    private: bool = False
    kind: Annotated[str, Field(pattern="^[A-Z][A-Z0-9_]*$", max_length=64)] | None = None
    cache_control: dict[str, Any] | None = None  # Any: a hint


class CalledFunction(RequestBody):
    """The name and arguments (JSON text) of a call."""

    name: str
    arguments: SafeText


class MessageToolCall(RequestBody):
    """A call in an earlier answer."""

    id: str | None = None
    index: int | None = None  # as streams have it
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.function.name, self.function.arguments)


class ChatMessage(RequestBody):
    """A message; the role `developer` means `system`, and `tool` brings what a call gave."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[SafeText, Tag(TEXT)] | Annotated[list[TextPart], Field(max_length=MAX_PIECES), Tag(LIST)], BY_FORM
    ]
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_TOOLS)] = []
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, message: Any) -> Any:  # Any: whatever JSON holds
        if not isinstance(message, Mapping):
            return message
        effective = drop_defaults(message, MESSAGE_HINTS, MESSAGE_UNSUPPORTED)
        # An answer may have had no text.
        return {"content": ""} | effective if effective.get("role") == "assistant" else effective


class JsonSchema(RequestBody):
    """A schema that an answer must follow, strict or not."""

    schema_: Annotated[dict[str, Any], Field(alias="schema")]  # Any: whatever JSON holds
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """The form of the answer: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _needs_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("schema", "type json_schema and a json_schema go together")
        return self

    @property
    def schema_text(self) -> str:
        """The JSON schema; empty for any text."""
        if self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return '{"type": "object"}' if self.type == "json_object" else ""


class FunctionSpec(RequestBody):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: SafeText | None = None
    parameters: dict[str, Any] | None = None  # Any: whatever JSON holds
    strict: bool | None = None


class ToolSpec(RequestBody):
    type: Literal["function"]
    function: FunctionSpec


class _NamedFunction(RequestBody):
    name: str


class ToolName(RequestBody):
    """The one tool that must be called."""

    type: Literal["function"]
    function: _NamedFunction


class _Generation(RequestBody):
    """Fields of both endpoints."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: (
        Annotated[Annotated[_Stop, Tag(TEXT)] | Annotated[list[_Stop], Field(max_length=MAX_STOPS), Tag(LIST)], BY_FORM]
        | None
    ) = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    # These three are not in OpenAI's API, but many servers take them.
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[FiniteFloat, Field(gt=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    frequency_penalty: Annotated[FiniteFloat, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[FiniteFloat, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[FiniteFloat, Field(ge=-100, le=100)]], Field(max_length=MAX_LOGIT_BIASES)] | None
    ) = None
    response_format: ResponseFormat | None = None
    outrider: OutriderOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, body: Any) -> Any:  # Any: whatever JSON holds
        if not isinstance(body, Mapping):
            return body
        body = in_our_words(body)
        choices = (("tools", "tool_choice"), ("functions", "function_call"))
        unused = {tools for tools, choice in choices if body.get(choice) == "none"}
        return drop_defaults(body, HINTS | unused, UNSUPPORTED)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    chat_template_kwargs: Annotated[
        dict[str, Any], Field(max_length=16), AfterValidator(plain_settings)
    ] = {}  # Any: checked there
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    echo: Literal[False] = False  # of completions
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=MAX_TOOLS)] = []
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], Tag(TEXT)] | Annotated[ToolName, Tag(OBJECT)], TEXT_OR_OBJECT
    ] = "auto"


def _as_prompts(prompt: Any) -> Any:  # Any: whatever JSON holds
    """Return a list of prompts, of one where only one is given."""
    if not isinstance(prompt, str | list):
        raise PydanticCustomError("wrong_form", "need text or a list")
    return [prompt] if isinstance(prompt, str) or (prompt and not isinstance(prompt[0], str | list)) else prompt


_Prompt = Annotated[Annotated[SafeText, Tag(TEXT)] | Annotated[list[int], Field(min_length=1), Tag(LIST)], BY_FORM]


class CompletionRequest(_Generation):
    """POST /v1/completions; a prompt is text or token ids."""

    prompt: Annotated[list[_Prompt], Field(min_length=1, max_length=MAX_CHOICES), BeforeValidator(_as_prompts)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool = False


class LinkCommand(RequestBody):
    """POST /outrider/link."""

    cut: bool | None = None
    profile: str | None = None
