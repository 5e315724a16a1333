"""POST /v1/responses: OpenAI's newer form of a chat, as text and function calls. It is mapped to a chat and back.

Nothing is stored: the whole conversation is in `input` each time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from outrider_client.core.gateway_parameters import Unsupported, drop_defaults
from outrider_client.gateway.completion import GatewayCompletion, usage_of
from outrider_client.gateway.request_bodies import (
    BY_FORM,
    LIST,
    MAX_MESSAGES,
    MAX_PIECES,
    MAX_TOOLS,
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    ChatRequest,
    FiniteFloat,
    OutriderOptions,
    RequestBody,
    SafeText,
)
from outrider_client.gateway.response_bodies import Body, ResponseFormatter, answer_extension, chunk_extension
from outrider_client.gateway.text_stream import TextChunk

# fmt: off
_HINTS = frozenset({
    "include", "metadata", "max_tool_calls", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention",
    "reasoning", "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user",
})
# fmt: on
_UNSUPPORTED: Unsupported = {
    "nothing is stored here: send the whole conversation as input": {"previous_response_id": (), "conversation": ()},
    "answers are given at once": {"background": (False,)},
    "there are no stored prompts here": {"prompt": ()},
    "log probabilities are those of /v1/chat/completions": {"top_logprobs": (0,)},
}


class InputText(RequestBody):
    """A part of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: SafeText
    annotations: list[Any] = Field(default_factory=list)  # Any: of an earlier answer, which come back with it
    logprobs: list[Any] | None = None


_Content = Annotated[
    Annotated[SafeText, Tag(TEXT)] | Annotated[list[InputText], Field(max_length=MAX_PIECES), Tag(LIST)], BY_FORM
]


def _joined(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class InputItem(RequestBody):
    """A message, an earlier call of a function, or what that gave."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: _Content = ""
    name: str | None = None
    arguments: SafeText = ""
    call_id: str | None = None
    output: _Content = ""
    id: str | None = None
    status: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> InputItem:
        if self.type == "message" and self.role is None:
            raise PydanticCustomError("no_role", "a message needs a role")
        if self.type == "function_call" and self.name is None:
            raise PydanticCustomError("no_name", "a function_call needs a name")
        return self

    def message(self) -> Body:
        """Return the chat's message."""
        match self.type:
            case "function_call":
                function = {"name": self.name, "arguments": self.arguments}
                return {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
            case "function_call_output":
                return {"role": "tool", "content": _joined(self.output)}
            case _:
                return {"role": self.role, "content": _joined(self.content)}


class TextOptions(RequestBody):
    """The form of the answer."""

    format: dict[str, Any] | None = None  # Any: whatever JSON holds; a chat's response_format, but flat
    verbosity: str | None = None


class ResponsesRequest(RequestBody):
    """POST /v1/responses."""

    model: str
    input: Annotated[
        Annotated[SafeText, Tag(TEXT)]
        | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES), Tag(LIST)],
        BY_FORM,
    ]
    instructions: SafeText | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    stream: bool = False
    text: TextOptions | None = None
    # Any: whatever JSON holds; a chat's tools, but flat
    tools: Annotated[list[dict[str, Any]], Field(default_factory=list, max_length=MAX_TOOLS)]
    tool_choice: Annotated[Annotated[str, Tag(TEXT)] | Annotated[dict[str, Any], Tag(OBJECT)], TEXT_OR_OBJECT] = "auto"
    outrider: OutriderOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, body: Any) -> Any:  # Any: whatever JSON holds
        return drop_defaults(body, _HINTS, _UNSUPPORTED) if isinstance(body, Mapping) else body

    def chat(self) -> ChatRequest:
        """Return the chat that asks for the same. Raises pydantic's ValidationError."""
        question = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else None
        messages = question or [item.message() for item in self.input if isinstance(item, InputItem)]
        if self.instructions is not None:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        choice = self.tool_choice
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "response_format": None if self.text is None else _response_format(self.text.format),
            "tools": [_nested(tool) for tool in self.tools],
            "tool_choice": choice if isinstance(choice, str) else _nested(choice),
        }
        chat = ChatRequest.model_validate({name: value for name, value in body.items() if value is not None})
        return chat.model_copy(update={"outrider": self.outrider})


def _nested(flat: Mapping[str, Any]) -> Body:
    """Return a function as a chat names it."""
    return {"type": flat.get("type"), "function": {name: value for name, value in flat.items() if name != "type"}}


def _response_format(flat: Mapping[str, Any] | None) -> Body | None:
    if flat is None or flat.get("type") != "json_schema":
        return None if flat is None else dict(flat)
    return {"type": "json_schema", "json_schema": {name: value for name, value in flat.items() if name != "type"}}


class ResponsesFormatter(ResponseFormatter):
    """/v1/responses. Its streams are events of many types, numbered, and without a last [DONE]."""

    ends_with_done = False

    def __init__(self, completion: GatewayCompletion, body: ResponsesRequest) -> None:
        super().__init__(completion)
        self._tools = completion.request.tools
        self._number = 0
        self._held: list[TextChunk] = []  # all of the answer
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._head: Body = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "tools": body.tools,
            "tool_choice": body.tool_choice,
            "parallel_tool_calls": True,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "metadata": {},
            "error": None,
            "previous_response_id": None,
            "store": False,
        }

    def opening(self) -> list[Body]:
        response = {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        events = [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]
        return events if self._tools else [*events, *self._message_begins()]

    def chunk(self, chunk: TextChunk) -> list[Body]:
        self._held.append(chunk)
        if self._tools:
            return []
        delta = self._of_part("response.output_text.delta", delta=chunk.text, logprobs=[])
        return [delta | {"outrider": chunk_extension(chunk)}]

    def closing(self) -> list[Body]:
        response = self.whole(self._held)
        events: list[Body] = []
        for index, item in enumerate(response["output"]):
            if item["type"] == "message":
                text = item["content"][0]["text"]
                if self._tools:
                    events += self._message_begins()
                    events.append(self._of_part("response.output_text.delta", delta=text, logprobs=[]))
                events.append(self._of_part("response.output_text.done", text=text, logprobs=[]))
                events.append(self._of_part("response.content_part.done", part=item["content"][0]))
            else:
                begun = {**item, "arguments": "", "status": "in_progress"}
                at, said = {"item_id": item["id"], "output_index": index}, item["arguments"]
                done = {**at, "arguments": said, "name": item["name"]}
                events += [
                    self._event("response.output_item.added", output_index=index, item=begun),
                    self._event("response.function_call_arguments.delta", **at, delta=said),
                    self._event("response.function_call_arguments.done", **done),
                ]
            events.append(self._event("response.output_item.done", output_index=index, item=item))
        kind = "response.completed" if response["status"] == "completed" else "response.incomplete"
        return [*events, self._event(kind, response=response)]

    def whole(self, chunks: Sequence[TextChunk]) -> Body:
        usage = usage_of([self.completion])
        text, calls = self.completion.text_and_calls(chunks)
        is_cut = self.completion.finish_reason == "length" and not calls
        status = "incomplete" if is_cut else "completed"
        output: list[Body] = []
        if text or not calls:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            output.append(
                {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": [part]}
            )
        for call in calls:
            ids = {"id": f"fc_{uuid.uuid4().hex}", "call_id": f"call_{uuid.uuid4().hex[:24]}"}
            made = {"name": call.name, "arguments": call.arguments, "status": "completed"}
            output.append({"type": "function_call", **ids, **made})
        return {
            **self._head,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            "outrider": answer_extension(self.completion, chunks),
        }

    def usage(self, completions: Sequence[GatewayCompletion]) -> list[Body]:
        return []  # the last event has it

    def failed(self, error: Body) -> Body:
        """Return the event of an error in mid-answer."""
        return self._event("error", **{name: error["error"][name] for name in ("code", "message", "param")})

    def _message_begins(self) -> Iterator[Body]:
        item = {"id": self._item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._of_part("response.content_part.added", part=part)

    def _of_part(self, kind: str, **more: Any) -> Body:  # Any: whatever JSON holds
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> Body:  # Any: whatever JSON holds
        self._number += 1
        # A copy: what is sent later must not change what was.
        return {"type": kind, "sequence_number": self._number - 1, **deepcopy(more)}
