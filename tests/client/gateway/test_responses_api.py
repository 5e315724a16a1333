"""OpenAI's client on /v1/responses: the same answers as of a chat, whole and in events."""

import json

import openai as openai_library
import pytest
from count_schema import SCHEMA

from ...marks import slow

QUESTION = "Oscar has 10 melons. Later Oscar keeps half of them. How many melons is that?"
TOOL = {"type": "function", "name": "count_words", "description": "Count.", "parameters": SCHEMA, "strict": True}


def ask(openai, given=QUESTION, **more):
    return openai.responses.create(model="outrider", input=given, max_output_tokens=200, **more)


def chat(openai, messages) -> str:
    answer = openai.chat.completions.create(model="outrider", messages=messages, max_tokens=200)
    return answer.choices[0].message.content


def test_an_answer_is_a_chats(openai):
    answer = ask(openai)
    assert answer.output_text == chat(openai, [{"role": "user", "content": QUESTION}])
    assert (answer.status, answer.incomplete_details, answer.error) == ("completed", None, None)
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.outrider["reason"] == "eos"


def test_instructions_and_earlier_turns_are_read(openai):
    first = ask(openai, "I live in Boston.")
    turns = [
        {"role": "user", "content": [{"type": "input_text", "text": "I live in Boston."}]},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"role": "user", "content": "Which city is my home?"},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "I live in Boston."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Which city is my home?"},
    ]
    answer = ask(openai, turns, instructions="Be brief.", store=False, metadata={"a": "b"})
    assert answer.output_text == chat(openai, messages)


def test_a_stream_has_the_events_that_clients_expect(openai):
    with openai.responses.stream(model="outrider", input=QUESTION, max_output_tokens=200) as stream:
        events = list(stream)
        final = stream.get_final_response()
    whole = ask(openai)
    assert final.output_text == whole.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_an_answer_that_is_cut_is_incomplete(openai):
    answer = openai.responses.create(model="outrider", input=QUESTION, max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    events = list(openai.responses.create(model="outrider", input=QUESTION, max_output_tokens=3, stream=True))
    assert events[-1].type == "response.incomplete"


@pytest.mark.parametrize("stream", [True, *slow(False)])
def test_a_function_is_called_and_its_result_read(openai, stream):
    if stream:
        events = list(ask(openai, tools=[TOOL], tool_choice="required", stream=True))
        (answer,) = [event.response for event in events if event.type == "response.completed"]
        assert "response.function_call_arguments.done" in {event.type for event in events}
        assert "response.output_text.delta" not in {event.type for event in events}
    else:
        answer = ask(openai, tools=[TOOL], tool_choice="required")
    (call,) = answer.output
    assert (call.type, call.name) == ("function_call", "count_words")
    assert list(json.loads(call.arguments)) == ["word", "count"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "7"}]}
    after = ask(openai, [{"role": "user", "content": QUESTION}, call.model_dump(exclude_none=True), result])
    written = f'<tool_call>\n{{"name": "count_words", "arguments": {call.arguments}}}\n</tool_call>'
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": written},
        {"role": "user", "content": "<tool_response>\n7\n</tool_response>"},
    ]
    assert after.output_text == chat(openai, messages)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: nothing is stored here"),
        ({"background": True}, "background: answers are given at once"),
        ({"max_output_tokens": 0}, "max_output_tokens: Input should be greater than or equal to 1"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"input": []}, "input: need at least 1"),
        ({"input": [{"content": "x"}]}, "input.0: a message needs a role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type: "),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type: Input should be 'function'"),
        ({"tool_choice": "required"}, "tool_choice: there is no such function in tools"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "foo"}}}},
            "response_format: Invalid type",
        ),
        ({"wibble": 1}, "wibble: no such parameter"),
    ],
)
def test_bad_requests(openai, more, message):
    with pytest.raises(openai_library.BadRequestError, match=message):
        openai.responses.create(**{"model": "outrider", "input": "x", "extra_body": more})
