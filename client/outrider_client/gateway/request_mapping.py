"""Maps HTTP requests to generations of the client. Pure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any

from outrider_client.core.config import RULE_FIELDS, SAMPLING_FIELDS
from outrider_client.core.gateway_config import UnverifiedPolicy
from outrider_client.core.prompt import (
    CHAT,
    SYSTEM_ROLE,
    USER_ROLE,
    ChatForm,
    PromptMessage,
    Segment,
    as_content,
    as_segments,
    is_private,
)
from outrider_client.gateway.errors import ApiError
from outrider_client.gateway.request_bodies import (
    MAX_CHOICES,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    OutriderOptions,
    TextPart,
    ToolName,
)
from outrider_client.models.local_models import Prompt
from outrider_client.privacy.fences import MAX_CHARS, OPEN, find_fence, parse_fences
from outrider_client.text.stop_strings import StopStrings
from outrider_client.text.tool_calls import (
    RESPONSE_BEGIN,
    RESPONSE_END,
    Tool,
    call_schema,
    for_template,
    instructions,
    written,
)
from outrider_proto.frames import Sampling

_CONTENTS = (("messages", "content"), ("input", "content"), ("input", "output"))
# Where private markers are read; `int` stands for any number.
_READ_FOR_FENCES = {
    ("prompt",),
    ("prompt", int),
    ("instructions",),
    ("input",),
    *((messages, int, content) for messages, content in _CONTENTS),
    *((messages, int, content, int, "text") for messages, content in _CONTENTS),
}
_NAMED_BY_APPS = {"parameters", "schema", "arguments", "metadata", "logit_bias", "chat_template_kwargs"}
_DEFAULT_COMPLETION = 16  # tokens, as OpenAI's


@dataclass(frozen=True, slots=True, repr=False)
class GenerationRequest:
    """An app's request, whichever endpoint it called."""

    model: str
    prompt: Prompt
    has_private: bool
    max_tokens: int | None  # None: as many as the context holds
    stops: StopStrings
    unverified: UnverifiedPolicy | None  # None: what the gateway does by default
    drafter: str | None
    overrides: Mapping[str, Any]  # of ClientConfig; Any: each field has its own type
    stream: bool
    include_usage: bool
    takes_back: bool  # the app can be told that text which it got was wrong
    tools: tuple[Tool, ...] = ()  # that the answer may call
    form: ChatForm = CHAT
    # The prompt as a template that knows functions takes it, where it has tools or calls and nothing private.
    tool_messages: Sequence[PromptMessage] | None = None
    echoed: str | Sequence[int] = ""  # the prompt, where it goes in front of the answer
    is_repeated: bool = False  # another answer to the prompt of the request before


def map_chat_request(body: ChatRequest, headers: Mapping[str, str], defaults: Sampling) -> list[GenerationRequest]:
    """Return a request for each answer. `defaults` are the gateway's own.

    Raises UsageError for wrongly marked private parts, ApiError for a parameter without the one it needs.
    """
    options = _options(body.outrider, headers)
    messages = [_message(message, options.fences) for message in body.messages]
    tools, is_must = _tools(body)
    tool_messages = None
    has_calls = any(message.tool_calls or message.role == "tool" for message in body.messages)
    if (tools or has_calls) and not is_private(messages):
        tool_messages = [_tool_message(message, options.fences) for message in body.messages]
    if tools:
        messages = _with_system(messages, instructions(tools, is_must=is_must))
    if body.top_logprobs and not body.logprobs:
        raise _needs("top_logprobs", "logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    request = _generation_request(body, options, messages, defaults, limit=limit, logprobs=logprobs)
    if is_must:
        request = replace(request, overrides={**request.overrides, "json_schema": call_schema(tools)})
    # A call is read from the whole answer.
    request = replace(request, tools=tools, tool_messages=tool_messages, takes_back=request.takes_back and not tools)
    return _times(body.n, replace(request, form=_form(body, has_private=request.has_private, is_must=is_must)))


def _form(body: ChatRequest, *, has_private: bool, is_must: bool) -> ChatForm:
    """Return how the chat is written. An assistant's text at its end goes on, unless the request says otherwise."""
    last = body.messages[-1]
    is_text = last.role == "assistant" and not last.tool_calls
    can_go_on = is_text and any(each.text.strip() for each in _segments(last, False)) and not (has_private or is_must)
    if body.continue_final_message and (body.add_generation_prompt or not can_go_on):
        what = "needs an assistant's text at the end, add_generation_prompt=false, no private text and no forced call"
        raise ApiError(400, f"continue_final_message: {what}", param="continue_final_message")
    if body.chat_template_kwargs and has_private:
        message = "chat_template_kwargs: private text is written by the template alone: leave them out"
        raise ApiError(400, message, param="chat_template_kwargs")
    goes_on = can_go_on and not body.add_generation_prompt and body.continue_final_message is not False
    return ChatForm(body.chat_template_kwargs, body.add_generation_prompt is not False, goes_on)


def map_completion_request(
    body: CompletionRequest, headers: Mapping[str, str], defaults: Sampling
) -> list[GenerationRequest]:
    """Return a request for each answer, prompt by prompt. Raises what `map_chat_request` raises."""
    options = _options(body.outrider, headers)
    limit = _DEFAULT_COMPLETION if body.max_tokens is None else body.max_tokens
    if body.n * len(body.prompt) > MAX_CHOICES:
        raise ApiError(400, f"n: {body.n} for each prompt are more than {MAX_CHOICES} answers", param="n")
    if body.echo and body.logprobs is not None:
        raise ApiError(400, "echo: a prompt has no log probabilities, so leave out logprobs", param="echo")
    requests = []
    for item in body.prompt:
        prompt: Prompt = _fenced(item) if options.fences and isinstance(item, str) else item
        request = _generation_request(body, options, prompt, defaults, limit=limit, logprobs=body.logprobs)
        if request.has_private and len(body.prompt) > 1:  # what is private in one of them may be in another, too
            raise ApiError(400, "prompt: private text goes with one prompt in a request", param="prompt")
        requests += _times(body.n, replace(request, echoed=item if body.echo else ""))
    return requests


def _times(n: int, request: GenerationRequest) -> list[GenerationRequest]:
    """Return the request n times; those that draw at random draw each from a seed of its own."""
    overrides: list[Mapping[str, Any]] = [request.overrides] * n  # Any: as above
    if "seed" in request.overrides:
        seeds = ((request.overrides["seed"] + number) % 2**63 for number in range(n))
        overrides = [{**request.overrides, "seed": seed} for seed in seeds]
    return [replace(request, overrides=each, is_repeated=number > 0) for number, each in enumerate(overrides)]


def _generation_request(
    body: ChatRequest | CompletionRequest,
    options: OutriderOptions,
    prompt: Prompt,
    defaults: Sampling,
    *,
    limit: int | None,
    logprobs: int | None,
) -> GenerationRequest:
    overrides = _sampling(body, defaults) | {
        "mode": options.mode,
        "privacy": options.privacy,
        "parse_special": options.parse_special,
        "stop_loops": options.stop_loops or None,
        "logprobs": logprobs,
        "raw": isinstance(body, CompletionRequest),
        "json_schema": None if body.response_format is None else body.response_format.schema_text or None,
    }
    stream_options = body.stream_options
    if stream_options is not None and not body.stream:
        raise _needs("stream_options", "stream")
    return GenerationRequest(
        model=body.model,
        prompt=prompt,
        has_private=is_private(prompt),
        max_tokens=limit,
        stops=StopStrings(body.stops),
        unverified=options.unverified,
        drafter=options.drafter,
        overrides={name: value for name, value in overrides.items() if value is not None},
        stream=body.stream,
        takes_back=body.stream,
        include_usage=stream_options is not None and stream_options.include_usage,
    )


def _sampling(body: ChatRequest | CompletionRequest, defaults: Sampling) -> dict[str, Any]:
    """Return the fields of Sampling and TokenRules that a body sets, None for the others."""
    rules = {name: getattr(body, name) for name in RULE_FIELDS & body.model_fields_set}
    rules["logit_bias"] = _biases(body.logit_bias)
    # At temperature 0 the other parameters have no effect; without them greedy requests all have the same sampling.
    temperature = defaults.temperature if body.temperature is None else body.temperature
    if temperature == 0:
        return {"sampling": Sampling(rules=defaults.rules), **rules}
    sampling = {name: getattr(body, name) for name in SAMPLING_FIELDS & body.model_fields_set}
    return {
        **rules,
        **sampling,
        "temperature": temperature,
        "top_k": None if body.top_k is None else max(body.top_k, 0),
        # OpenAI's API draws another answer each time unless a seed is given.
        # A seed may be negative there, but has 63 bits here.
        "seed": random.getrandbits(63) if body.seed is None else body.seed % 2**63,
    }


def _biases(biases: Mapping[str, float] | None) -> Mapping[int, float] | None:
    for token in biases or ():
        if not token.isdecimal() or len(token) > 10:  # Python refuses to read thousands
            raise ApiError(400, "logit_bias: its names must be token ids", param="logit_bias")
    return {int(token): bias for token, bias in biases.items()} if biases else None


def _tools(body: ChatRequest) -> tuple[tuple[Tool, ...], bool]:
    """Return the tools that may be called, and whether one must be."""
    tools = tuple(
        Tool(function.name, function.description or "", function.parameters or {})
        for function in (tool.function for tool in body.tools)
    )
    if tools and body.response_format is not None and body.response_format.schema_text:
        raise ApiError(
            400, "response_format: tools say how to answer already: give one of them", param="response_format"
        )
    choice = body.tool_choice
    if isinstance(choice, ToolName):
        tools = tuple(tool for tool in tools if tool.name == choice.function.name)
    is_must = choice == "required" or isinstance(choice, ToolName)
    if is_must and not tools:
        raise ApiError(400, "tool_choice: there is no such function in tools", param="tool_choice")
    return tools, is_must


def _with_system(messages: Sequence[PromptMessage], text: str) -> list[PromptMessage]:
    """Return the messages with `text` behind the first system message, or as one."""
    first = messages[0]
    if first["role"] != SYSTEM_ROLE:
        return [PromptMessage(role=SYSTEM_ROLE, content=text), *messages]
    content = as_content((*as_segments(first["content"]), Segment(f"\n\n{text}")))
    return [PromptMessage(role=SYSTEM_ROLE, content=content), *messages[1:]]


def _needs(name: str, other: str) -> ApiError:
    return ApiError(400, f"{name}: needs {other}=true", param=name)


def check_fences(
    body: Mapping[str, Any],  # Any: whatever JSON holds
    options: OutriderOptions | None,
    headers: Mapping[str, str],
) -> None:
    """Raise ApiError for a private marker that stands where none is read, so that its text would leave the device."""
    if not _options(options, headers).fences:
        return
    try:
        place = find_fence(body, lambda place: tuple(_any_number(part) for part in place) in _READ_FOR_FENCES)
    except RecursionError:
        raise ApiError(400, "body: is nested too deep to be searched for private markers") from None
    if place is not None:
        # What the app itself has named may be private, too.
        ours = sum(1 for _ in takewhile(lambda part: part not in _NAMED_BY_APPS, place))
        where = ".".join(map(str, place[: ours + 1]))
        message = f"{where}: private markers are not read here: leave the text out, or move it into a message's content"
        raise ApiError(400, message, param=where)


def _any_number(part: str | int) -> str | type[int]:
    return part if isinstance(part, str) else int


def _options(options: OutriderOptions | None, headers: Mapping[str, str]) -> OutriderOptions:
    """The options in the body, completed by those in headers. Raises pydantic's ValidationError."""
    named = {} if options is None else options.model_dump(exclude_unset=True)
    known = {f"x-outrider-{name.replace('_', '-')}" for name in OutriderOptions.model_fields}
    given = Counter(name for name in headers if name.lower().replace("_", "-").startswith("x-outrider-"))
    if unknown := sorted(given.keys() - known):
        raise ApiError(400, f"{unknown[0][:64]}: no such option: need one of {', '.join(sorted(known))}")
    if twice := sorted(name for name, count in given.items() if count > 1):
        raise ApiError(400, f"{twice[0]}: is given twice: give it once")
    for name in OutriderOptions.model_fields:
        value = headers.get(f"x-outrider-{name.replace('_', '-')}")
        if value is not None:
            is_switch = name in ("fences", "parse_special", "stop_loops") and value in ("true", "false")
            named.setdefault(name, value == "true" if is_switch else value)
    return OutriderOptions.model_validate(named)


def _message(message: ChatMessage, fences: bool) -> PromptMessage:
    role = {"developer": SYSTEM_ROLE, "tool": USER_ROLE}.get(message.role, message.role)
    segments = tuple(_segments(message, fences))
    if message.role == "tool":
        segments = (Segment(RESPONSE_BEGIN), *segments, Segment(RESPONSE_END))
    if message.tool_calls:
        segments = (*segments, Segment(written(call.call for call in message.tool_calls)))
    return PromptMessage(role=role, content=as_content(segments))


def _tool_message(message: ChatMessage, fences: bool) -> PromptMessage:
    """Return a message without private parts as a chat template that knows tools takes it."""
    role = SYSTEM_ROLE if message.role == "developer" else message.role
    mapped = PromptMessage(role=role, content=as_content(_segments(message, fences)))
    if message.tool_calls:
        mapped["tool_calls"] = [for_template(call.call, call.id) for call in message.tool_calls]
    if message.tool_call_id is not None:
        mapped["tool_call_id"] = message.tool_call_id
    return mapped


def _segments(message: ChatMessage, fences: bool) -> Iterable[Segment]:
    content = message.content
    parts = (TextPart(type="text", text=content),) if isinstance(content, str) else content
    # Parts side by side are one text: a private marker may begin in one and end in the next.
    for is_marked, same in groupby(parts, key=lambda part: part.private):
        if is_marked or not fences:
            yield from (Segment(part.text, is_marked, part.kind if is_marked else None) for part in same)
        else:
            yield from _fenced("".join(part.text for part in same))


def _fenced(text: str) -> Sequence[Segment]:
    if len(text) > MAX_CHARS and OPEN in text:
        message = f"outrider.fences: are read in texts of up to {MAX_CHARS} characters: mark parts as private"
        raise ApiError(400, message, param="outrider.fences")
    return parse_fences(text)
