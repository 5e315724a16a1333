"""Calls of an app's functions: as a chat template that knows tools takes them, and as text that any other one takes.

The text has the form of Hermes and Qwen:

    system      what there is to call, as JSON in <tools>            answer   <tool_call>{"name": ..., "arguments": ...}
    assistant   <tool_call>{"name": ..., "arguments": ...}                    </tool_call>, or, where a call is a must,
                </tool_call>                                                  that JSON object alone, by a schema
    user        <tool_response>what it gave</tool_response>

Of free answers the forms of Llama 3 and Mistral are understood, too.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JsonObject = Mapping[str, Any]  # Any: whatever JSON holds
_TAG, _CLOSE = re.compile(r"(?:<tool_call>|\[TOOL_CALLS\])\s*"), re.compile(r"\s*</tool_call>")
_NO_TAG = re.compile(r"\A\s*")
_NONE = {"type": "object", "properties": {}, "additionalProperties": False}  # of a function that takes none
_ARGUMENTS = ("arguments", "parameters")  # Llama 3 names them so
RESPONSE_BEGIN, RESPONSE_END = "<tool_response>\n", "\n</tool_response>"  # around what a call gave


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of the app's; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function; `arguments` as JSON text."""

    name: str
    arguments: str


def described(tool: Tool) -> JsonObject:
    """Return a tool as chat templates take it, in OpenAI's form."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or _NONE}
    return {"type": "function", "function": function}


def for_template(call: ToolCall, number: str | None) -> JsonObject:
    """Return a call as chat templates take it: with its arguments as an object."""
    arguments: Any = call.arguments
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if number is None else {"id": number})


def instructions(tools: Sequence[Tool], *, is_must: bool) -> str:
    """Return what the system message says of the tools."""
    listed = "\n".join(json.dumps(described(tool)) for tool in tools)
    how = (
        'Answer with a JSON object of a function\'s name and its arguments and nothing else: {"name": ..., "arguments":'
        " {...}}"
        if is_must
        else "To call one, answer with a JSON object of its name and its arguments in <tool_call></tool_call>:\n"
        '<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>'
    )
    return f"You may call these functions:\n<tools>\n{listed}\n</tools>\n{how}"


def call_schema(tools: Sequence[Tool]) -> str:
    """Return the JSON schema of a call of one of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": dict(tool.parameters) or _NONE},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})


def written(calls: Iterable[ToolCall]) -> str:
    """Return the text of earlier calls."""
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
        for call in calls
    )


def calls_in(text: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall]]:
    """Return the calls of these tools and the text around them; the whole text where there are none.

    A call ends where its JSON does. What is no call, such as a name without arguments, stays in the text.
    """
    names = {tool.name for tool in tools}
    calls: list[ToolCall] = []
    around: list[str] = []
    begin = end = 0
    for tag in [*_NO_TAG.finditer(text), *_TAG.finditer(text)]:
        if tag.start() < end:  # in the JSON of the one before
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, tag.end())
            values = value if isinstance(value, list) else [value]
            made = [_call(value, names) for value in values]
            others = [json.dumps(value) for value, call in zip(values, made, strict=True) if call is None]
        except (ValueError, RecursionError):
            continue
        is_alone = not text[end:].strip()
        if any(made) and (tag[0].strip() or is_alone):
            calls += filter(None, made)
            around += [text[begin : tag.start()], *others]
            begin = end = end if (closed := _CLOSE.match(text, end)) is None else closed.end()
    around.append(text[begin:])
    return ("\n".join(filter(None, map(str.strip, around))), calls) if calls else (text, [])


def _call(value: Any, names: set[str]) -> ToolCall | None:  # Any: whatever JSON holds
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or name not in names:
        return None
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    with contextlib.suppress(ValueError):
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        text = json.dumps(given, allow_nan=False)  # nor a number that is too large for JSON, and infinite by now
        return ToolCall(name, arguments if isinstance(arguments, str) else text) if isinstance(given, dict) else None
    return None
