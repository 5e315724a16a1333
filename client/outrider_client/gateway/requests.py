"""The bodies of requests, in OpenAI's form, and Outrider's extension of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from outrider_client.core.config import Mode, Privacy
from outrider_client.gateway.parameters import message_without_neutral, without_neutral

UnverifiedText = Literal["hold", "keep", "stream"]
_Float = Annotated[float, Field(allow_inf_nan=False)]
MAX_STOPS = 4
_MAX_STOP_CHARS = 256
_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # which would repeat it
        raise PydanticCustomError("half_character", "holds half a character, which no UTF-8 has") from None
    return text


_Text = Annotated[str, AfterValidator(_whole)]  # JSON may spell what no tokenizer takes


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Extension(_Body):
    """`outrider` in the body, or headers `x-outrider-...`."""

    mode: Mode | None = None
    drafter: str | None = None
    privacy: Privacy | None = None
    fences: bool = False  # <<private text>> in the messages
    unverified: UnverifiedText = "hold"  # what the drafter writes while the link is out


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class TextPart(_Body):
    """`private` and `kind` are Outrider's."""

    type: Literal["text"]
    text: _Text
    private: bool = False
    kind: str | None = None


class ChatMessage(_Body):
    """`developer` is another word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | list[TextPart]

    @model_validator(mode="before")
    @classmethod
    def _neutral(cls, given: Any) -> Any:  # Any: whatever JSON holds
        return message_without_neutral(given)


class _Generation(_Body):
    """What both endpoints take. `user` and the like name the app's user; nothing here depends on them."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[_Float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[_Float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None  # not OpenAI's; many servers have it
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    outrider: Extension | None = None

    @model_validator(mode="before")
    @classmethod
    def _neutral(cls, given: Any) -> Any:  # Any: whatever JSON holds
        return without_neutral(given)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def _unwrapped(prompt: Any) -> Any:  # Any: whatever JSON holds
    """A list of one prompt is that prompt."""
    is_wrapped = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list)
    return prompt[0] if is_wrapped else prompt


class CompletionRequest(_Generation):
    """POST /v1/completions. One prompt: text, or token ids."""

    prompt: Annotated[_Text | Annotated[list[int], Field(min_length=1)], BeforeValidator(_unwrapped)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class LinkOrder(_Body):
    """POST /outrider/link."""

    cut: bool | None = None
    profile: str | None = None
