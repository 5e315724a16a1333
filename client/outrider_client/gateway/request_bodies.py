"""Request bodies in OpenAI's format, and the extensions to it under `outrider`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from outrider_client.core.config import Mode, Privacy
from outrider_client.gateway.text_stream import UnverifiedPolicy

_Float = Annotated[float, Field(allow_inf_nan=False)]
MAX_STOPS = 4
_MAX_STOP_CHARS = 256
_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]


def _without_lone_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # its message would repeat the text, which may be private
        raise PydanticCustomError("half_character", "holds half a character, which no UTF-8 has") from None
    return text


_Text = Annotated[str, AfterValidator(_without_lone_surrogates)]  # JSON can spell them, tokenizers fail on them


class _RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class OutriderOptions(_RequestBody):
    """The field `outrider` of a body, or headers `x-outrider-...`."""

    mode: Mode | None = None
    drafter: str | None = None
    privacy: Privacy | None = None
    fences: bool = False  # treat <<private: ...>> in the messages as private
    unverified: UnverifiedPolicy | None = None  # what to do with text of an outage; None: as the gateway does


class StreamOptions(_RequestBody):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class TextPart(_RequestBody):
    """Part of a message. `private` and `kind` extend OpenAI's format."""

    type: Literal["text"]
    text: _Text
    private: bool = False
    kind: str | None = None


class ChatMessage(_RequestBody):
    """A message; the role `developer` means `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | list[TextPart]

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, given: Any) -> Any:  # Any: whatever JSON holds
        return message_without_no_ops(given)


class _Generation(_RequestBody):
    """Fields of both endpoints. `user` and `safety_identifier` are accepted and ignored."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[_Float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[_Float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None  # not in OpenAI's API, but many servers take it
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    outrider: OutriderOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, given: Any) -> Any:  # Any: whatever JSON holds
        return without_no_ops(given)

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
    """Take the prompt out of a list of one."""
    is_wrapped = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list)
    return prompt[0] if is_wrapped else prompt


class CompletionRequest(_Generation):
    """POST /v1/completions, with one prompt: text or token ids."""

    prompt: Annotated[_Text | Annotated[list[int], Field(min_length=1)], BeforeValidator(_unwrapped)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


class LinkCommand(_RequestBody):
    """POST /outrider/link."""

    cut: bool | None = None
    profile: str | None = None


# OpenAI's parameters that do not exist here, with the values that mean the same as leaving them out.
_NO_OPS: Mapping[str, tuple[Any, ...]] = {  # Any: whatever JSON holds
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "metadata": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "web_search_options": (),
    "moderation": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
}
_MESSAGE_NO_OPS: Mapping[str, tuple[Any, ...]] = {
    "name": (),
    "refusal": (),
    "audio": (),
    "annotations": ([],),
    "function_call": (),
    "tool_calls": ([],),
}


def without_no_ops(given: Any) -> Any:
    """Drop a request's unsupported parameters that hold their no-op value; raise for any other value.

    Clients send some of them in every request.
    """
    return _without(given, _NO_OPS)


def message_without_no_ops(given: Any) -> Any:
    """Do for a message what `without_no_ops` does for a request."""
    return _without(given, _MESSAGE_NO_OPS)


def _without(given: Any, no_ops: Mapping[str, tuple[Any, ...]]) -> Any:
    if not isinstance(given, Mapping):
        return given
    for name in given.keys() & no_ops.keys():
        if given[name] is not None and not any(_same(given[name], value) for value in no_ops[name]):
            raise PydanticCustomError(
                "unsupported_parameter", "{what}", {"name": name, "what": _supported(no_ops[name])}
            )
    return {name: value for name, value in given.items() if name not in no_ops}


def _same(one: Any, other: Any) -> bool:
    # Python holds True == 1: "n": true is not "n": 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _supported(values: tuple[Any, ...]) -> str:
    return f"not supported here, but for {' or '.join(map(repr, values))}" if values else "not supported here"
