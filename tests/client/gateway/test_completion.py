"""The server learns nothing of an answer that depends on private text."""

from __future__ import annotations

import json

import pytest

from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, Finished
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.request_bodies import ChatRequest, CompletionRequest
from outrider_client.gateway.request_mapping import map_chat_request, map_completion_request
from outrider_client.gateway.response_bodies import ChatFormatter, CompletionFormatter
from outrider_client.gateway.responses_api import ResponsesFormatter, ResponsesRequest
from outrider_client.gateway.text_stream import TextChunk
from outrider_client.text.logprobs import TokenLogprobs
from outrider_proto.frames import Sampling, TokenRules


@pytest.fixture
def completion(models):
    gateway = Gateway(ClientConfig(), {"moa": models}, GatewayConfig())

    def prepare(asked) -> GatewayCompletion:
        return GatewayCompletion(gateway, asked)

    return prepare


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
def test_the_limit_does_not_reveal_the_length_of_a_private_value(completion, endpoint):
    """An answer may have as many tokens as there is room for, and the server learns how many those are."""

    def limit(value: str) -> tuple[int, int]:
        text, extension = f"Write to <<private: {value}>>", {"privacy": "placeholder", "fences": True}
        if endpoint == "chat":
            messages = [{"role": "user", "content": text}]
            body = ChatRequest.model_validate({"model": "outrider", "messages": messages, "outrider": extension})
            [asked] = map_chat_request(body, {}, Sampling())
        else:
            fields = {"model": "outrider", "prompt": text, "max_tokens": 10**6, "outrider": extension}
            [asked] = map_completion_request(CompletionRequest.model_validate(fields), {}, Sampling())
        prepared = completion(asked)
        return prepared._overrides["max_new_tokens"], prepared.prompt_tokens

    assert limit("Zoe") == limit("Bartholomew Featherstonehaugh of Kingston upon Hull")


@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>\n{"name": "send", "arguments": {"to": "[NAME_1]"}}\n</tool_call> for [NAME_1]',
        "<tool_call><function=send><parameter=to>[NAME_1]</parameter></function></tool_call> for [NAME_1]",
        '[NAME_1] for {"name": "[NAME_1]"}',
    ],
)
def test_a_value_with_signs_of_json_comes_back_in_a_call(completion, models, written):
    value = 'Zoë "the </tool_call>" M\\üller'
    tools = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}]
    body = {"messages": [{"role": "user", "content": f"Write to <<NAME: {value}>>"}], "tools": tools}
    body |= {"outrider": {"privacy": "placeholder", "fences": True}, "model": "outrider"}
    [asked] = map_chat_request(ChatRequest.model_validate(body), {}, Sampling())
    prepared, tokens = completion(asked), models.encode(written, raw=True)
    shown = written.replace("[NAME_1]", value)
    events = [Committed(0, tuple(tokens), "accepted", shown), Finished("limit", Statistics())]
    chunks = [chunk for event in events for chunk in prepared._text_stream.take(event)]
    message = ChatFormatter({}, prepared, 0).whole(chunks)["choices"][0]["message"]
    items = ResponsesFormatter(prepared, ResponsesRequest(model="m", input="x")).whole(chunks)["output"]
    if "send" not in written:
        assert (message["content"], items[0]["content"][0]["text"]) == (shown, shown)
        return
    assert (message["content"], items[0]["content"][0]["text"]) == (f"for {value}",) * 2
    for call in (message["tool_calls"][0]["function"], items[1]):
        assert (call["name"], json.loads(call["arguments"])) == ("send", {"to": value})


@pytest.mark.parametrize(("headers", "raw"), [({}, True), ({"x-outrider-parse-special": "false"}, "as text")])
def test_what_spells_a_control_token_in_a_raw_prompt(completion, models, headers, raw):
    body = CompletionRequest.model_validate({"model": "outrider", "prompt": "<|user|>x"})
    [asked] = map_completion_request(body, headers, Sampling())
    assert completion(asked)._sent == tuple(models.encode("<|user|>x", raw=raw))
    assert (models.encode("<|user|>", raw=True)[0] in completion(asked)._sent) == (raw is True)


def test_alternatives_keep_their_values(completion, models):
    """Pieces of a character, and tokens that read alike, do not overwrite each other."""
    body = {"model": "outrider", "prompt": "x", "logprobs": 5}
    [asked] = map_completion_request(CompletionRequest.model_validate(body), {}, Sampling())
    first, *others = models.encode("😀", raw=True)
    top = tuple((token, -0.1 * rank) for rank, token in enumerate((*models.eos_token_ids, 0, 2, first, others[0])))
    logprobs = tuple((TokenLogprobs(token, dict(top).get(token, -9.0), top), 3) for token in (first, *others))
    written = CompletionFormatter({}, completion(asked), 0).whole([TextChunk("😀", "accepted", 3, logprobs=logprobs)])
    given = written["choices"][0]["logprobs"]
    assert given["tokens"] == [f"bytes:\\x{byte:02x}" for byte in "😀".encode()]
    assert given["text_offset"] == [3] * len(logprobs)
    assert all(list(one.values()) == [value for _, value in top] for one in given["top_logprobs"])
    assert given["top_logprobs"][0][given["tokens"][0]] == given["token_logprobs"][0]


def test_greedy_requests_keep_the_gateways_rules_and_drop_what_only_sampling_reads():
    defaults = Sampling(temperature=0.7, top_p=0.9, rules=TokenRules(repetition_penalty=1.1))
    body = {"model": "outrider", "messages": [{"role": "user", "content": "x"}]}
    [asked] = map_chat_request(ChatRequest.model_validate(body | {"temperature": 0}), {}, defaults)
    assert asked.overrides["sampling"] == Sampling(rules=defaults.rules)
    [asked] = map_chat_request(ChatRequest.model_validate(body | {"min_p": 0.1}), {}, defaults)
    made = ClientConfig(sampling=defaults).for_answer(**asked.overrides).sampling
    assert (made.temperature, made.top_p, made.min_p, made.rules) == (0.7, 0.9, 0.1, defaults.rules)
