"""Functions as the target's own chat template shows them: transformers' rendering is the oracle."""

from __future__ import annotations

import json
import shutil

import pytest
from transformers import AutoTokenizer

from outrider_client.core.config import ClientConfig
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.core.prompt import ChatForm
from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.request_bodies import ChatRequest
from outrider_client.gateway.request_mapping import map_chat_request
from outrider_client.models.local_models import LocalModels
from outrider_client.models.tokenizer import TargetTokenizer
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling

TEMPLATE = """
{%- if tools %}Functions: {% for tool in tools %}{{ tool.function | tojson }} {% endfor %}{{ "\\n" }}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if call.id and call.id | length > 9 %}{{ raise_exception("an id has up to nine characters") }}{% endif %}
{{- "CALL " + call.function.name + " with " + (call.function.arguments | tojson) + "\\n" }}
{%- endfor %}
{%- else %}{{ message.role + ": " + message.content + "\\n" }}{% endif %}
{%- endfor %}{{ "assistant: " }}"""
TOOL = {"type": "function", "function": {"name": "wait", "description": "", "parameters": {"type": "object"}}}
ASKED = {"role": "user", "content": "Wait one second."}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The embedded target with a chat template that knows tools."""
    directory = tmp_path_factory.mktemp("target") / "target"
    shutil.copytree(target_dir(), directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return directory


@pytest.fixture(scope="module")
def models(directory):
    return LocalModels.load(ClientConfig(target=str(directory), drafter="none"))


def sent(models: LocalModels, **body) -> tuple[int, ...]:
    """Return what the server gets of a chat."""
    asked = {"model": "outrider", "messages": [ASKED], **body}
    [request] = map_chat_request(ChatRequest.model_validate(asked), {}, Sampling())
    config = ClientConfig(target="embedded", drafter="none")
    return GatewayCompletion(Gateway(config, {"none": models}, GatewayConfig()), request)._sent


def rendered(directory, messages, tools) -> tuple[int, ...]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_tools_calls_and_what_they_gave_are_shown_by_the_template(directory, models):
    call = {"id": "c1", "type": "function", "function": {"name": "wait", "arguments": '{"s": 1}'}}
    gave = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, gave]
    as_object = {**call, "function": {"name": "wait", "arguments": {"s": 1}}}
    shown = [ASKED, {"role": "assistant", "content": "", "tool_calls": [as_object]}, gave]
    assert sent(models, messages=messages, tools=[TOOL]) == rendered(directory, shown, [TOOL])
    assert sent(models, messages=messages) == rendered(directory, shown, None)
    assert "CALL wait with" in models.decode(sent(models, messages=messages))


def test_where_the_template_refuses_the_functions_are_text(directory, models):
    call = {"id": "call_0123456789", "type": "function", "function": {"name": "wait", "arguments": "{}"}}
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, ASKED]
    assert "<tool_call>" in models.decode(sent(models, messages=messages, tools=[TOOL]))


def test_private_chats_have_the_functions_as_text(models):
    private = {"role": "user", "content": "Wait <<private: two>> seconds."}
    options = {"fences": True, "privacy": "placeholder"}
    text = models.decode(sent(models, messages=[private], tools=[TOOL], outrider=options))
    assert "<tools>" in text
    assert "two" not in text


def test_a_template_without_tools_says_so():
    with pytest.raises(UsageError, match="shows no tools"):
        TargetTokenizer(target_dir()).encode_chat([ASKED], ChatForm(tools=[TOOL]))
