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
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_MISTRAL = "[TOOL_CALLS]"
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
    with contextlib.suppress(ValueError):
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
    """Return the text in front of the first call, and all calls of these tools; the whole text where there are none."""
    names = {tool.name for tool in tools}
    if tagged := list(_TAGGED.finditer(text)):
        found, front = [match[1] for match in tagged], text[: tagged[0].start()]
    elif text.lstrip().startswith(_MISTRAL):
        found, front = [text.lstrip()[len(_MISTRAL) :]], ""
    else:
        found, front = [text], ""
    calls = [call for part in found for call in _parsed(part, names)]
    return (front.strip(), calls) if calls else (text, [])


def _parsed(text: str, names: set[str]) -> Iterable[ToolCall]:
    try:
        given = json.loads(text)
    except ValueError:
        return
    for call in given if isinstance(given, list) else [given]:
        if isinstance(call, dict) and call.get("name") in names:
            arguments: Any = next((call[name] for name in _ARGUMENTS if name in call), {})
            yield ToolCall(call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
