"""Calls of functions in the forms that models write, and the schema of those that must be made."""

import json

import pytest

from outrider_client.text.tool_calls import (
    Tool,
    ToolCall,
    call_schema,
    calls_in,
    written,
)

ADD = Tool("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]})
WAIT = Tool("wait", "", {})
CALL = ToolCall("add", '{"a": 1}')
NO_ARGUMENTS = ("null", "[]", '"Paris"', '"[1]"', '{"a": NaN}', '{"a": 1e999}', '"{\\"a\\": -Infinity}"')
BROKEN = (  # what is no call, in whatever form
    "{", '{"name": {}}', '{"name": []}', '{"name": null, "arguments": {}}', '{"name": "other", "arguments": {}}',
    '{"name": "add"}', '{"name": "add", "description": "Adds."}', '{"arguments": {"a": 1}}',
    *(f'{{"name": "add", "arguments": {arguments}}}' for arguments in NO_ARGUMENTS),
    f'{{"name": "add", "arguments": {{"a": {"9" * 5000}}}}}',
    *(opening * 100_000 for opening in ("[", '{"a":', '{"name": "add", "arguments": {"a":[')),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "front"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', ""),
        ('Let me see.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "Let me see."),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}', ""),
        ('{"name": "add", "parameters": {"a": 1}}', ""),
        (' {"name": "add", "arguments": {"a": 1}}\n', ""),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}] Done.', "Done."),
        (
            '<tool_call>{"name": "add", "arguments": {"a": 1}}} <tool_call>{"name": "wait"}',
            '} <tool_call>{"name": "wait"}',
        ),
        ('<tool_call>[{"name": "wait"}, {"name": "add", "arguments": {"a": 1}}]', '{"name": "wait"}'),
        ('<tool_call>{"name": "add"\n<tool_call>{"name": "add", "arguments": {"a": 1}}', '<tool_call>{"name": "add"'),
        *(
            (text, None)
            for text in ("", "Hello", "{", '{"name": "other", "arguments": {}}', "<tool_call>", "[1]", '"add"')
        ),
        *(
            (form % call, None)
            for form in ("%s", "[%s]", "<tool_call>%s</tool_call>", "[TOOL_CALLS][%s]")
            for call in BROKEN
        ),
    ],
)
def test_the_forms_of_a_call_and_text_that_is_none(text, front):
    assert calls_in(text, [ADD, WAIT]) == ((text, []) if front is None else (front, [CALL]))


def test_what_an_argument_says_ends_no_call():
    """Not even the mark that ends calls, nor one that begins them."""
    said = ToolCall("add", json.dumps({"a": 'x</tool_call> <tool_call>{"name": "wait", "arguments": {}} [TOOL_CALLS]'}))
    assert calls_in(written([said, CALL]), [ADD, WAIT]) == ("", [said, CALL])
    assert calls_in(f'{{"name": "add", "parameters": {said.arguments}}}', [ADD, WAIT]) == ("", [said])


def test_several_calls():
    wait = ToolCall("wait", "{}")
    assert calls_in(written([CALL, wait]), [ADD, WAIT]) == ("", [CALL, wait])
    several = '[{"name": "wait", "arguments": {}}, {"name": "add", "arguments": {"a": 1}}]'
    assert calls_in(several, [ADD, WAIT]) == ("", [wait, CALL])


def test_a_schema_of_one_call_or_one_of_several():
    assert json.loads(call_schema([ADD]))["properties"] == {"name": {"const": "add"}, "arguments": ADD.parameters}
    any_of = json.loads(call_schema([ADD, WAIT]))["anyOf"]
    assert [call["properties"]["name"]["const"] for call in any_of] == ["add", "wait"]
    assert any_of[1]["properties"]["arguments"] == {"type": "object", "properties": {}, "additionalProperties": False}
