"""From a request to what the client is asked for. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider_client.core.prompt import PromptMessage, is_private
from outrider_client.core.prompt_segments import Segment
from outrider_client.gateway.errors import ApiError
from outrider_client.gateway.request_bodies import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    OutriderOptions,
    TextPart,
)
from outrider_client.gateway.text_stream import StopStrings, UnverifiedPolicy
from outrider_client.models.local_models import Prompt
from outrider_client.privacy.fences import parse_fences
from outrider_proto.frames import Sampling

_DEFAULT_COMPLETION = 16  # tokens, as OpenAI's


@dataclass(frozen=True, slots=True, repr=False)
class GenerationRequest:
    """One answer: `choices` are fields of ClientConfig; `max_tokens` None is as many as there is room for."""

    model: str
    prompt: Prompt
    raw: bool
    has_private: bool
    max_tokens: int | None
    stops: StopStrings
    unverified: UnverifiedPolicy
    drafter: str | None
    choices: Mapping[str, Any]  # Any: each field has its own type
    stream: bool
    include_usage: bool


def map_chat_request(body: ChatRequest, headers: Mapping[str, str], usual: Sampling) -> GenerationRequest:
    """Raises UsageError for private parts that are marked wrongly, ApiError for what lacks its other half."""
    extension = _extension(body.outrider, headers)
    messages = [_message(message, extension.fences) for message in body.messages]
    if body.top_logprobs is not None and not body.logprobs:
        raise _lacks("top_logprobs", "logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _asked(body, extension, messages, usual, limit=limit, logprobs=logprobs)


def map_completion_request(body: CompletionRequest, headers: Mapping[str, str], usual: Sampling) -> GenerationRequest:
    """Raises as `map_chat_request`."""
    extension = _extension(body.outrider, headers)
    prompt: Prompt = body.prompt
    if extension.fences and isinstance(body.prompt, str):
        prompt = parse_fences(body.prompt)
    limit = _DEFAULT_COMPLETION if body.max_tokens is None else body.max_tokens
    return _asked(body, extension, prompt, usual, limit=limit, logprobs=body.logprobs)


def _asked(
    body: ChatRequest | CompletionRequest,
    extension: OutriderOptions,
    prompt: Prompt,
    usual: Sampling,
    *,
    limit: int | None,
    logprobs: int | None,
) -> GenerationRequest:
    choices = _sampling(body, usual) | {
        "mode": extension.mode,
        "privacy": extension.privacy,
        "logprobs": logprobs,
        "raw": isinstance(body, CompletionRequest),
    }
    options = body.stream_options
    if options is not None and not body.stream:
        raise _lacks("stream_options", "stream")
    return GenerationRequest(
        model=body.model,
        prompt=prompt,
        raw=isinstance(body, CompletionRequest),
        has_private=is_private(prompt),
        max_tokens=limit,
        stops=StopStrings(body.stops),
        unverified=extension.unverified,
        drafter=extension.drafter,
        choices={name: value for name, value in choices.items() if value is not None},
        stream=body.stream,
        include_usage=options is not None and options.include_usage,
    )


def _sampling(body: ChatRequest | CompletionRequest, usual: Sampling) -> dict[str, Any]:
    """Another way of sampling costs a new stream, so what has no effect is left out. Without a seed every answer is
    drawn anew."""
    temperature = usual.temperature if body.temperature is None else body.temperature
    if temperature == 0:
        return {"sampling": Sampling()}
    seed = random.getrandbits(63) if body.seed is None else body.seed % 2**63
    top_k = None if body.top_k is None else max(body.top_k, 0)
    return {"temperature": temperature, "top_p": body.top_p, "top_k": top_k, "seed": seed}


def _lacks(name: str, other: str) -> ApiError:
    return ApiError(400, f"{name}: need {other}=true with it", param=name)


def _extension(given: OutriderOptions | None, headers: Mapping[str, str]) -> OutriderOptions:
    """The body's, and the headers' where it says nothing. Raises UsageError."""
    said = {} if given is None else given.model_dump(exclude_unset=True)
    for name in OutriderOptions.model_fields:
        value = headers.get(f"x-outrider-{name}")
        if value is not None:
            said.setdefault(name, value == "true" if name == "fences" and value in ("true", "false") else value)
    return OutriderOptions.model_validate(said)


def _message(message: ChatMessage, fences: bool) -> PromptMessage:
    role = "system" if message.role == "developer" else message.role
    content = message.content
    parts = (TextPart(type="text", text=content),) if isinstance(content, str) else tuple(content)
    segments = tuple(_segments(parts, fences))
    if any(segment.private for segment in segments):
        return PromptMessage(role=role, content=segments)
    return PromptMessage(role=role, content="".join(segment.text for segment in segments))


def _segments(parts: Iterable[TextPart], fences: bool) -> Iterable[Segment]:
    for part in parts:
        if fences and not part.private:
            yield from parse_fences(part.text)
        else:
            yield Segment(part.text, part.private, part.kind if part.private else None)
