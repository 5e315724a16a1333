"""What clients other than OpenAI's get from a gateway, as JSON: run in an environment of their own."""

import json
import os
import sys

from pydantic import BaseModel, Field

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": [1, 2]}},
    "required": ["a", "b"],
}
QUESTION = "How many melons?"


class Count(BaseModel):
    """A count."""

    word: str = Field(max_length=8)
    count: int = Field(ge=0, le=99)


def langchain() -> dict:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="outrider", temperature=0, max_tokens=200, max_retries=0)
    tool = {"type": "function", "function": {"name": "add", "parameters": ADD}}
    called = model.bind_tools([tool], tool_choice="required").invoke(QUESTION)
    (call,) = called.tool_calls
    return {
        "text": model.invoke(QUESTION).content,
        "streamed": "".join(chunk.content for chunk in model.stream(QUESTION)),
        "objects": [
            model.with_structured_output(Count, method=method).invoke(QUESTION).model_dump()
            for method in ("json_schema", "function_calling")
        ],
        "call": [call["name"], call["args"]],
        "after": model.invoke([HumanMessage(QUESTION), called, ToolMessage("7", tool_call_id=call["id"])]).content,
    }


def litellm() -> dict:
    import litellm

    def ask(**more):
        messages = [{"role": "user", "content": QUESTION}]
        model = {"model": "openai/outrider", "api_base": os.environ["OPENAI_BASE_URL"], "api_key": "none"}
        return litellm.completion(messages=messages, max_tokens=200, num_retries=0, **model, **more)

    tool = {"type": "function", "function": {"name": "add", "parameters": ADD}}
    call = ask(tools=[tool], tool_choice="required").choices[0].message.tool_calls[0].function
    return {
        "text": ask().choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "objects": [json.loads(ask(response_format=Count).choices[0].message.content)],
        "call": [call.name, json.loads(call.arguments)],
    }


def instructor() -> dict:
    import instructor
    from openai import OpenAI

    client, messages = OpenAI(max_retries=0), [{"role": "user", "content": QUESTION}]
    return {
        "text": client.chat.completions.create(model="outrider", messages=messages, max_tokens=200)
        .choices[0]
        .message.content,
        "objects": [
            instructor.from_openai(client, mode=mode)
            .chat.completions.create(
                model="outrider", response_model=Count, messages=messages, max_tokens=200, max_retries=0
            )
            .model_dump()
            for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
        ],
    }


def llm() -> dict:
    import llm

    # What `llm` makes of an entry in extra-openai-models.yaml.
    from llm.default_plugins.openai_models import Chat

    model = Chat(
        "outrider", model_name="outrider", api_base=os.environ["OPENAI_BASE_URL"], supports_schema=True, key="none"
    )
    assert llm.Model
    return {
        "text": model.prompt(QUESTION, stream=False, max_tokens=200).text(),
        "streamed": "".join(model.prompt(QUESTION, stream=True, max_tokens=200)),
        "objects": [json.loads(model.prompt(QUESTION, schema=Count, stream=False, max_tokens=200).text())],
    }


if __name__ == "__main__":
    print(json.dumps({"langchain": langchain, "litellm": litellm, "instructor": instructor, "llm": llm}[sys.argv[1]]()))
