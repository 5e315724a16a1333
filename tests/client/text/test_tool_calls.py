"""Calls of functions in the forms that models write, and the schema of those that must be made."""

import json

import pytest

from outrider_client.text.tool_calls import Tool, ToolCall, call_schema, calls_in, written

ADD = Tool("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]})
WAIT = Tool("wait", "", {})
ONE = '{"a": 1}'
CALL = ToolCall("add", ONE)
PLAIN = ("", "Hello", "{", "<tool_call>", "[1]", '"add"', "add", "add{", 'add {"a": 1} 2')
NO_ARGUMENTS = ("null", "[]", '"Paris"', '"[1]"', '{"a": NaN}', '{"a": 1e999}', '"{\\"a\\": -Infinity}"')
BROKEN = (  # what is no call, in whatever form
    "{", '{"name": {}}', '{"name": []}', '{"name": null, "arguments": {}}', '{"name": "other", "arguments": {}}',
    '{"name": "add"}', '{"name": "add", "description": "Adds."}', '{"arguments": {"a": 1}}',
    *(f'{{"name": "add", "arguments": {arguments}}}' for arguments in NO_ARGUMENTS),
    f'{{"name": "add", "arguments": {{"a": {"9" * 5000}}}}}',
    *(opening * 100_000 for opening in ("[", '{"a":', '{"name": "add", "arguments": {"a":[')),
)  # fmt: skip


LOOK = Tool("look", "", {"properties": {"at": {"type": "string"}, "times": {"type": "integer"}, "how": {}}})
TAGGED = ToolCall("look", '{"at": "12 }", "times": 3, "how": "{"}')
DEEP = "<｜tool▁call▁begin｜>%s<｜tool▁call▁end｜>"
V3 = "function<｜tool▁sep｜>%s\n```json\n%s\n```"
FORMS = {  # of two calls, by who writes them
    "Llama 3": '{"name": "add", "parameters": {"a": 1}}; {"name": "wait", "parameters": {}}',
    "Llama 3, its own functions": '<function=add>{"a": 1}</function><function=wait>{}</function>',
    "Mistral": '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]wait[CALL_ID]a1b2[ARGS]{}',
    "Mistral, without its control tokens": 'add{"a": 1}wait{}',
    "functionary": '>>>add\n{"a": 1}\n>>>wait\n{}',
    "Granite": '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}, {"name": "wait", "arguments": {}}]<|/tool_call|>',
    "DeepSeek-V3": f"{DEEP % V3 % ('add', ONE)}\n{DEEP % V3 % ('wait', '{}')}<｜tool▁calls▁end｜>",
    "DeepSeek-V3.1": "<｜tool▁calls▁begin｜>"
    + DEEP % f"add<｜tool▁sep｜>{ONE}"
    + DEEP % "wait<｜tool▁sep｜>{}"
    + "<｜tool▁calls▁end｜>",
    "Qwen3-Coder": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=wait>\n</function>\n</tool_call>",
    "GLM": "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>\n<tool_call>wait\n</tool_call>",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_published_form_of_calls(form):
    both = [CALL, ToolCall("wait", "{}")]
    assert calls_in(FORMS[form], [ADD, WAIT]) == ("", both)
    if form not in ("Llama 3", "Mistral, without its control tokens"):  # which are calls alone
        assert calls_in(f"See: {FORMS[form]} Done.", [ADD, WAIT]) == ("See:\nDone.", both)
    assert calls_in(FORMS[form], [LOOK]) == (FORMS[form], [])


def test_arguments_with_tags_are_text_or_what_the_schema_says():
    pairs = (("at", "12 }"), ("times", "3"), ("how", "{"))
    coder = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in pairs)
    glm = "".join(f"<arg_key>{name}</arg_key><arg_value>{value}</arg_value>" for name, value in pairs)
    for text in (f"<tool_call><function=look>\n{coder}</function></tool_call>", f"<tool_call>look\n{glm}</tool_call>"):
        assert calls_in(text, [LOOK]) == ("", [TAGGED])


@pytest.mark.parametrize("end", ["<parameter=at>", "<parameter=at>\nx", "<parameter=at>\nx\n</parameter>\n"])
def test_a_call_that_is_cut_off_is_text(end):
    text = f"<tool_call>\n<function=look>\n{end}"
    assert calls_in(text, [LOOK]) == (text, [])


def test_long_answers_are_read_in_time_that_grows_with_them():
    """Where it grew with the square of their length, each of these took minutes."""
    tags = (400_000 * "[TOOL_CALLS]", 400_000 * "\n<tool_call>{")
    for text in ("add" + 400_000 * " ", 40_000 * "[TOOL_CALLS]add<parameter=", *tags):
        assert calls_in(text, [ADD]) == (text, [])


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
        *((text, None) for text in (*PLAIN, '{"name": "other", "arguments": {}}')),
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
