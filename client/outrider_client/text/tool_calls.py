"""Calls of an app's functions: as a chat template that knows tools takes them, and as text that any other one takes.

The text has the form of Hermes and Qwen:

    system      what there is to call, as JSON in <tools>            answer   <tool_call>{"name": ..., "arguments": ...}
    assistant   <tool_call>{"name": ..., "arguments": ...}                    </tool_call>, or, where a call is a must,
                </tool_call>                                                  that JSON object alone, by a schema
    user        <tool_response>what it gave</tool_response>

Of free answers other published forms are understood, too: those of Llama 3, Mistral, DeepSeek, functionary, Granite,
and the tags of Qwen3-Coder and GLM.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

JsonObject = Mapping[str, Any]  # Any: whatever JSON holds
_TAG = re.compile(
    r"(?:(?:<\|?tool_call\|?>\s*)?<function=|<\|?tool_call\|?>|\[TOOL_CALLS\]|>>>(?=\w+\n)"
    r"|(?:<｜tool▁calls▁begin｜>)?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?)\s*"
)
_CLOSE = re.compile(r"(?:\s*(?:</function>|<\|?/tool_call\|?>|```|<｜tool▁calls?▁end｜>))+")
# A name in front of its arguments, and arguments with a tag each. The text is whatever the target writes, so no two
# parts that may match the same characters stand side by side: the time would grow with the square of its length.
_NAMED = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\w+\s*)?(?:(?:>|\[ARGS\]|<｜tool▁sep｜>|```json)\s*)?"
    r"(?=\{|<parameter=|<arg_key>|</function>|</tool_call>)"
)
_PAIR = re.compile(
    r"\s*(?:<parameter=(?P<name>[^<>]+)>|<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>)"
    r"(?P<value>[^<]*(?:<(?!/?(?:tool_call|parameter|arg_))[^<]*)*)</(?:parameter|arg_value)>"
)
_PAIRS_END = re.compile(r"\s*</(?:function|tool_call)>")
_MOST_BAD = 256  # tags without a call: the error of each counts the lines before it, which adds up to a square
_GAP = re.compile(r"[; \t\r\n]*")  # between two calls
_NONE = {"type": "object", "properties": {}, "additionalProperties": False}  # of a function that takes none
_ARGUMENTS = ("arguments", "parameters")  # Llama 3 names them so
RESPONSE_BEGIN, RESPONSE_END = "<tool_response>\n", "\n</tool_response>"  # around what a call gave


# Not escaped to ASCII: models read text better, and so does whoever looks for private values in it.
_json = partial(json.dumps, ensure_ascii=False)


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
    arguments: Any = call.arguments or {}  # apps send no text for none
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if number is None else {"id": number})


def instructions(tools: Sequence[Tool], *, is_must: bool) -> str:
    """Return what the system message says of the tools."""
    listed = "\n".join(_json(described(tool)) for tool in tools)
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
    return _json(calls[0] if len(calls) == 1 else {"anyOf": calls})


def written(calls: Iterable[ToolCall]) -> str:
    """Return the text of earlier calls."""
    return "\n".join(
        f'<tool_call>\n{{"name": {_json(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'
        for call in calls
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """Calls that stand one after the other, JSON between them that is none, and where that ends."""

    calls: list[ToolCall]
    others: list[str]
    end: int


def calls_in(text: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall]]:
    """Return the calls of these tools and the text around them; the whole text where there are none.

    A call ends where its JSON does. What is no call, such as a name without arguments, stays in the text.
    """
    by_name = {tool.name: tool for tool in tools}
    alone = _calls_at(text, len(text) - len(text.lstrip()), by_name)
    if alone.calls and not text[alone.end :].strip():
        return "\n".join(alone.others), alone.calls
    calls: list[ToolCall] = []
    around: list[str] = []
    begin, end, num_bad = 0, alone.end, 0
    for tag in _TAG.finditer(text):
        if tag.start() < end:  # in the JSON of the one before
            continue
        read = _calls_at(text, tag.end(), by_name)
        end = read.end
        num_bad += not read.calls
        if num_bad > _MOST_BAD:
            break
        if read.calls:
            calls += read.calls
            around += [text[begin : tag.start()], *read.others]
            closed = _CLOSE.match(text, end)
            begin = end = end if closed is None else closed.end()
    around.append(text[begin:])
    return ("\n".join(filter(None, map(str.strip, around))), calls) if calls else (text, [])


def _calls_at(text: str, start: int, by_name: Mapping[str, Tool]) -> _Read:
    """Return the calls that begin at `start`."""
    read = _read(text, start, by_name)
    calls, others, end = read.calls, read.others, read.end
    while read.calls:
        gap = _GAP.match(text, end)
        assert gap is not None  # it may be empty
        read = _read(text, gap.end(), by_name)
        if read.calls:
            calls += read.calls
            others += read.others
            end = read.end
    return _Read(calls, others, end)


def _read(text: str, start: int, by_name: Mapping[str, Tool]) -> _Read:
    """Return the calls in one piece of JSON, or behind a function's name."""
    named = _NAMED.match(text, start)
    tool = None if named is None else by_name.get(named["name"])
    if tool is None and text[start : start + 1] not in tuple('{["'):  # told apart here: an error counts all lines
        return _Read([], [], start)
    try:
        if named is None or tool is None:
            value, end = json.JSONDecoder().raw_decode(text, start)
        else:
            is_json, at = text.startswith("{", named.end()), named.end()
            arguments, end = json.JSONDecoder().raw_decode(text, at) if is_json else _pairs(text, at, tool)
            value = {"name": tool.name, "arguments": arguments}
        values = value if isinstance(value, list) else [value]
        made = [_call(value, by_name) for value in values]
        others = [json.dumps(value) for value, call in zip(values, made, strict=True) if call is None]
    except (ValueError, RecursionError):
        return _Read([], [], start)
    return _Read([call for call in made if call is not None], others, end)


def _pairs(text: str, at: int, tool: Tool) -> tuple[JsonObject, int]:
    """Return arguments that have a tag each, and where they end: text where the schema says so, else JSON.

    Raises ValueError for a call that is cut off: the app must not get it without its last arguments.
    """
    properties, arguments = tool.parameters.get("properties"), {}
    while (pair := _PAIR.match(text, at)) is not None:
        name, value, at = pair["name"] or pair["key"], pair["value"].strip("\n"), pair.end()
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        arguments[name] = value
        if isinstance(schema, Mapping) and "string" not in str(schema.get("type")):
            with contextlib.suppress(ValueError):
                arguments[name] = json.loads(value)
    if _PAIRS_END.match(text, at) is None:
        raise ValueError(f"the call of {tool.name} does not end")
    return arguments, at


def _call(value: Any, names: Collection[str]) -> ToolCall | None:  # Any: whatever JSON holds
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or name not in names:
        return None
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    with contextlib.suppress(ValueError):
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        text = json.dumps(given, allow_nan=False)  # nor a number that is too large for JSON, and infinite by now
        return ToolCall(name, arguments if isinstance(arguments, str) else text) if isinstance(given, dict) else None
    return None
