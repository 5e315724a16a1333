"""JSON answers, function calls, penalties and biases, by OpenAI's client: what the target says within them."""

import json

import pytest
from count_schema import SCHEMA

TOOLS = [
    {
        "type": "function",
        "function": {"name": "count_words", "description": "Count a word.", "parameters": SCHEMA, "strict": True},
    },
    {"type": "function", "function": {"name": "wait"}},
]
QUESTION = "How many melons?"
STRICT = {"type": "json_schema", "json_schema": {"name": "count", "schema": SCHEMA, "strict": True}}


def ask(openai, question=QUESTION, max_tokens=200, **more):
    messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
    return openai.chat.completions.create(model="outrider", messages=messages, max_tokens=max_tokens, **more)


def check(text: str) -> dict:
    given = json.loads(text)
    assert list(given) == ["word", "count"]
    assert isinstance(given["count"], int)
    return given


@pytest.mark.parametrize(("mode", "temperature"), [("auto", 0), ("stop-and-wait", 1)])
def test_an_answer_follows_its_schema(openai, mode, temperature):
    more = {"temperature": temperature, "seed": 3, "response_format": STRICT}
    choice = ask(openai, **more, extra_body={"outrider": {"mode": mode}}).choices[0]
    plain = ask(openai, **more, extra_body={"outrider": {"mode": "stream"}}).choices[0]
    check(choice.message.content)
    assert (choice.message.content, choice.finish_reason) == (plain.message.content, "stop")


def test_a_text_of_a_schema_that_spells_control_tokens_is_text(openai):
    schema = {"const": "a<|eos|>b<|user|>"}
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}
    choice = ask(openai, response_format=form).choices[0]
    assert (json.loads(choice.message.content), choice.finish_reason) == (schema["const"], "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "count_words"}}], ids=["required", "named"]
)
def test_a_function_that_must_be_called_is(openai, choice, stream):
    answer = ask(openai, tools=TOOLS, tool_choice=choice, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert not any(chunk.delta.content for chunk in chunks)
        (call,), reason = chunks[-1].delta.tool_calls, chunks[-1].finish_reason
        assert call.index == 0
    else:
        message, reason = answer.choices[0].message, answer.choices[0].finish_reason
        (call,) = message.tool_calls
        assert message.content is None
    assert reason == "tool_calls"
    assert call.id.startswith("call_")
    if isinstance(choice, dict) or call.function.name == "count_words":
        assert call.function.name == "count_words"
        check(call.function.arguments)


def test_a_function_that_need_not_be_called_may_be_left_alone(openai):
    """The embedded model knows no functions; its answer is text, also in a stream."""
    choice = ask(openai, tools=TOOLS).choices[0]
    assert choice.message.content
    assert not choice.message.tool_calls
    assert choice.finish_reason in ("stop", "length")
    chunks = [chunk.choices[0] for chunk in ask(openai, tools=TOOLS, stream=True) if chunk.choices]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content


def test_penalties_and_biases_change_the_answer(openai):
    question = "Oscar has 10 melons. Later Oscar keeps half of them. Later Oscar makes 3 more. How many melons is that?"
    free = ask(openai, question)
    for rules in ({"frequency_penalty": 2, "presence_penalty": 2}, {"logit_bias": {"557": -100}}):
        ruled = ask(openai, question, **rules)
        assert ruled.choices[0].message.content != free.choices[0].message.content


def test_any_json_object_will_do(openai):
    choice = ask(openai, "Oscar has 10 melons.", response_format={"type": "json_object"}).choices[0]
    # The embedded model may write keys for ever.
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")
