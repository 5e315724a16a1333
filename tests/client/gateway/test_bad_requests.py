"""Bad requests get errors in OpenAI's format and never reach a model."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai as openai_library
import pytest
from starlette.datastructures import Headers
from typer.testing import CliRunner

from outrider_client.cli.app import app
from outrider_client.core import gateway_parameters
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.core.gateway_parameters import UNSUPPORTED as UNSUPPORTED_PARAMETERS
from outrider_client.core.prompt import ChatForm
from outrider_client.gateway.middleware import MAX_BODY_BYTES, wrong_key
from outrider_client.gateway.request_bodies import ChatRequest, CompletionRequest
from outrider_proto.errors import UsageError

SECRET = "zebra-7731"
GOOD = {"model": "outrider", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}


def post(gateway, body, path: str = "/v1/chat/completions", **headers) -> tuple[int, dict]:
    answer = gateway.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), **headers)
    return answer.status, json.loads(answer.body) if answer.status == 200 else answer.error


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def message(**fields) -> dict:
    return {"messages": [{"role": "user", "content": SECRET} | fields]}


def schema(given: dict) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": given}}


CALL = {"type": "function", "function": {"name": SECRET, "arguments": "{}"}}
CHOICE = {"type": "function", "function": {"name": SECRET}}
PRIVATE = [{"type": "text", "text": SECRET, "private": True}]
BAD = [  # a part of a request and what the error begins with: the name of its parameter
    ({"messages": []}, "messages: need at least 1"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: need text or a list"),
    ({"wibble": 1}, "wibble: "),
    ({"n": 0}, "n: Input should be greater than or equal to 1"),
    ({"n": 33}, "n: "),
    ({"best_of": 2}, "best_of: all answers are given, as they were written: leave it out, or send 1"),
    ({"audio": {}}, "audio: the model reads and writes text only: leave it out"),
    ({"presence_penalty": 2.5}, "presence_penalty: "),
    ({"logit_bias": {"five": 1}}, "logit_bias: "),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias: its names must be token ids"),
    ({"logit_bias": {"2048": 1}}, "logit_bias has token 2048: the vocabulary has 2048"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5: "),
    ({"tools": [{}]}, "tools.0.type: Field required"),
    ({"tools": TOOLS, "tool_choice": CHOICE}, "tool_choice: "),
    ({"tool_choice": "must"}, "tool_choice: Input should be 'none', 'auto' or 'required'"),
    ({"tool_choice": "required"}, "tool_choice: there is no such function in tools"),
    ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format: "),
    ({"response_format": {"type": "json_schema"}}, "response_format: type json_schema and a json_schema go together"),
    (schema({"schema": {"type": "foo"}}), "response_format: "),
    ({"temperature": 3}, "temperature: "),
    ({"top_p": 0}, "top_p: "),
    ({"min_p": 1.1}, "min_p: "),
    ({"repetition_penalty": 0}, "repetition_penalty: "),
    ({"max_tokens": [SECRET]}, "max_tokens: "),
    ({"stop": ["a"] * 65}, "stop: at most 64 are allowed, not 65"),
    ({"stop": ["a", 5]}, "stop.1: Input should be a valid string"),
    ({"stop": 5}, "stop: need text or a list"),
    ({"stop": [""]}, "stop.0: String should have at least 1 character"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: "),
    ({"stream_options": {"include_usage": True}}, "stream_options: "),
    ({"functions": [{"name": "f"}]}, "functions: "),
    ({"echo": True}, "echo: "),
    *(({"chat_template_kwargs": {name: value}}, "chat_template_kwargs: need the template's own names")
      for name, value in (("a", f"{SECRET}\n"), ("a", [1]), ("a", "x" * 257), ("tools", 1), ("a b", 1))),
    ({"chat_template_kwargs": {f"a{number}": 1 for number in range(17)}}, "chat_template_kwargs: at most 16 are"),
    ({"chat_template_kwargs": {"a": 1}} | message(content=PRIVATE), "chat_template_kwargs: private text"),
    *(({"continue_final_message": True} | more, "continue_final_message: needs an assistant's text at the end")
      for more in ({}, message(role="assistant", content=" "), message(role="assistant", tool_calls=[CALL]),
                   message(role="assistant", content=PRIVATE),
                   message(role="assistant") | {"add_generation_prompt": True})),
    ({"suffix": SECRET}, "suffix: fill-in-the-middle is not offered by /v1/completions"),
    ({"ignore_eos": True}, "ignore_eos: answers end where the model ends them"),
    ({"mirostat": 2}, "mirostat: answers are sampled with temperature,"),
    ({"options": {"repeat_last_n": 64}}, "repeat_last_n: penalties count all of the text: leave it out, or send -1"),
    ({"guided_choice": [SECRET]}, "guided_choice: answers have the form that response_format says: leave it out"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty: means the same as repetition_penalty"),
    *(({"guided_json": bad}, "response_format: ") for bad in ({"type": "foo"}, 5, SECRET, "[" * 99_999)),
    ({"structured_outputs": {"regex": SECRET}}, "structured_outputs: answers have the form"),
    ({"options": [1]}, "options: no such parameter"),
    (message(role="function"), "messages.0.role: "),
    (message(role="assistant", tool_calls=[{"id": SECRET}]), "messages.0.tool_calls.0.function: "),
    (message(content=[{"type": "input_audio"}]), "messages.0.content.0.type: the model reads text only"),
    (message(content=[{"type": "text", "text": 5}]), "messages.0.content.0.text: Input should be a valid string"),
    (message(content=[{"type": "text", "text": f"{SECRET}\ud800"}]), "messages.0.content.0.text: "),
    ({"outrider": {"mode": "fast"}}, "outrider.mode: "),
    ({"outrider": {"wibble": 1}}, "outrider.wibble: "),
    ({"outrider": {"drafter": "eagle"}}, "outrider.drafter: "),
    ({"messages": [{"role": "user", "content": SECRET}] * 4097}, "messages: at most 4096 are allowed, not 4097"),
    (message(content=[{"type": "text", "text": "x"}] * 1025), "messages.0.content: at most 1024 are allowed"),
    (message(role="assistant", tool_calls=[CALL] * 129), "messages.0.tool_calls: at most 128 are allowed"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias: at most 1024 are allowed"),
    (message(content=[{"type": "text", "text": SECRET, "private": True, "kind": SECRET}]), "messages.0.content.0.kind"),
    (message(content=f"{'x' * 2**19} << {SECRET}") | {"outrider": {"fences": True}}, "outrider.fences: are read in"),
    ({"metadata": {"a": f"{'x' * 2**19} << {SECRET}"}} | {"outrider": {"fences": True}}, "metadata: private markers"),
]  # fmt: skip
UNSUPPORTED = {"repeat_penalty"} | {name for names in UNSUPPORTED_PARAMETERS.values() for name in names}


@pytest.mark.parametrize(("fields", "expected"), BAD)
def test_a_bad_parameter_is_named(gateway, fields, expected):
    status, error = post(gateway, GOOD | fields)
    name = re.match(r"[\w.]+", expected)[0]
    known = "unsupported_parameter" if name in UNSUPPORTED else None
    kind = "unknown_parameter" if name in ("options", "wibble", "outrider.wibble") else known
    assert (status, error["param"], error["code"]) == (400, name, kind)
    assert error["message"].startswith(expected)
    assert error["type"] == "invalid_request_error"
    assert SECRET not in json.dumps(error)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": ', 400, None),
        (b'{"messages": [' + b"{}," * 2**18 + b"{}]}", 400, None),
        (b'{"prompt": [' + b"1," * 2**20 + b"1]}", 400, None),
        (b'{"a": {' + b",".join(b'"%d":1' % number for number in range(2**18)) + b"}}", 400, None),
        *((opening * 100_000, 400, None) for opening in (b"[", b'{"a":', b'{"messages": [')),
        (b'{"model": "\xff"}', 400, None),
        ([GOOD], 400, None),
        (GOOD | {"model": "gpt-5"}, 404, "model_not_found"),
        ({"messages": GOOD["messages"]}, 400, None),
        (GOOD | message(content=SECRET * 400), 400, "context_length_exceeded"),
        (GOOD | message(content=f"call <<private: {SECRET}") | {"outrider": {"fences": True}}, 400, None),
        (GOOD | message(content=[{"type": "text", "text": SECRET, "private": True, "kind": "e-mail"}]), 400, None),
    ],
)
def test_bad_bodies(gateway, body, status, code):
    got, error = post(gateway, body)
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert SECRET not in json.dumps(error)


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "ann"},
        {"tools": None, "tool_choice": "auto", "response_format": {"type": "text"}},
        {"tools": [{"type": "function"}], "tool_choice": "none", "parallel_tool_calls": False},
        {"functions": [{"name": "f"}], "function_call": "none"},
        {"store": True, "metadata": {"chat": "7"}, "prompt_cache_key": "k", "service_tier": "flex"},
        {"reasoning_effort": "high", "verbosity": "low", "chat_template_kwargs": {}, "priority": 3},
        {"ignore_eos": False, "min_tokens": 0, "min_p": 0, "repetition_penalty": 1, "stop_token_ids": []},
        {"stop": None, "seed": None, "logprobs": False, "top_logprobs": 0, "stream_options": None, "stream": None},
        {"messages": [{"role": "developer", "content": "x", "name": None}, {"role": "user", "content": "y"}]},
        {"best_of": 1, "echo": False, "suffix": None, "guided_json": None, "stream_options": None, "max_tokens": -1},
        {
            "keep_alive": "5m",
            "options": {"num_ctx": 8192, "num_gpu": 99, "mirostat": 0},
            "mirostat_tau": 5.0,
            "tfs_z": 1,
        },
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}},
        {"stop": [f"\n{number}" for number in range(17)], "max_completion_tokens": 3},  # as Continue completes code
        message(role="assistant", reasoning_content="Hm", reasoning="Hm"),
    ],
)
def test_parameters_without_effect_are_accepted(gateway, neutral):
    assert gateway.request("POST", "/v1/chat/completions", json.dumps(GOOD | neutral).encode()).status == 200


OBJECT = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"options": {"num_predict": 5, "repeat_penalty": 1.7}}, {"max_tokens": 5, "repetition_penalty": 1.7}),
        ({"n_predict": 5, "temperature": None}, {"max_tokens": 5}),
        *((given, schema({"schema": OBJECT}))
          for given in ({"guided_json": OBJECT}, {"guided_json": json.dumps(OBJECT)}, {"format": OBJECT},
                        {"json_schema": OBJECT}, {"structured_outputs": {"json": OBJECT}})),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        ({"think": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"chat_template_kwargs": {"unknown_to_it": True, "date_string": "26 Jul 2024"}}, {}),
    ],
)  # fmt: skip
def test_other_spellings_mean_the_same(gateway, theirs, ours):
    base = {"model": "outrider", "messages": GOOD["messages"]}
    answers = [post(gateway, base | {"max_tokens": 9} | given if "max" not in str(ours) else base | given)
               for given in (theirs, ours)]  # fmt: skip
    assert [status for status, _ in answers] == [200, 200]
    assert answers[0][1]["choices"] == answers[1][1]["choices"]


def test_an_assistants_last_message_is_gone_on_with(gateway, models, plain):
    question = {"role": "user", "content": "Oscar has 10 melons. Oscar makes 3 more. How many melons?"}
    tokens, text = plain([question], 40)
    begun = {"role": "assistant", "content": models.decode(tokens[:6])}

    def said(**more) -> str:
        status, answer = post(gateway, GOOD | {"messages": [question, begun], "max_tokens": 34} | more)
        assert status == 200
        return answer["choices"][0]["message"]["content"]

    assert begun["content"] + said() == text
    assert said(continue_final_message=True, add_generation_prompt=False) == said()
    anew = plain([question, begun], 34)[1]
    assert said(add_generation_prompt=True) == said(continue_final_message=False) == anew != said()
    bare = models.encode([question], raw=False, form=ChatForm(begins_answer=False))
    asked = models.encode([question], raw=False)
    assert asked[: len(bare)] == bare != asked


def test_any_model_where_that_is_allowed(gateway, start_gateway, server):
    status, error = post(gateway, GOOD | {"model": "gpt-4o"})
    assert (status, error["message"].partition(":")[0]) == (404, "model")
    assert error["message"].endswith("choose one of outrider, embedded, or start the gateway with --any-model")
    with start_gateway(server, GatewayConfig(any_model=True)) as anything:
        status, answer = post(anything, GOOD | {"model": "gpt-4o"})
        assert (status, answer["model"]) == (200, "gpt-4o")
        assert anything.get("/v1/models/gpt-4o")["id"] == "gpt-4o"
        assert [model["id"] for model in anything.get("/v1/models")["data"]] == ["outrider", "embedded"]


def test_the_documentation_names_each_parameter():
    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()
    fields = {name for body in (ChatRequest, CompletionRequest) for name in body.model_fields}
    ignored = gateway_parameters.HINTS | gateway_parameters.MESSAGE_HINTS | gateway_parameters.SPELLINGS.keys()
    tables = (*UNSUPPORTED_PARAMETERS.values(), *gateway_parameters.MESSAGE_UNSUPPORTED.values())
    refused = {name for names in tables for name in names}
    assert [name for name in sorted(fields | ignored | refused) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v1/responses", 405, "POST"),
        ("POST", "/chat/completions", 404, None),  # an app whose base address lacks /v1
        ("GET", "/none.js", 404, None),
        ("OPTIONS", "/v1/completions", 405, "POST"),
        ("DELETE", "/outrider/link", 405, "GET, POST"),
    ],
)
def test_unknown_paths_and_methods(gateway, method, path, status, allowed):
    answer = gateway.request(method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.headers["Allow"]) == (status, allowed)
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["code"] == ("method_not_supported" if allowed else "unknown_url")
    assert (allowed or "/v1/chat/completions") in answer.error["message"]


def test_a_body_not_declared_as_json_is_refused(gateway):
    """A page of another site can send such a request without a preflight."""
    status, error = post(gateway, GOOD, **{"Content-Type": "text/plain"})
    assert (status, "Content-Type" in error["message"]) == (400, True)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_too_large_is_refused_before_it_is_read(gateway, declared):
    """The body never ends here."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(gateway.url.rpartition(":")[2]), 30)) as app:
        app.putrequest("POST", "/v1/chat/completions")
        app.putheader("Content-Type", "application/json")
        app.putheader(*("Content-Length", MAX_BODY_BYTES + 1) if declared else ("Transfer-Encoding", "chunked"))
        app.endheaders()
        if not declared:
            app.send(b"%x\r\n" % (MAX_BODY_BYTES + 1) + b" " * (MAX_BODY_BYTES + 1) + b"\r\n")
        answer = app.getresponse()
        error = json.loads(answer.read())["error"]
    assert (answer.status, error["type"]) == (413, "invalid_request_error")
    assert "8 MiB" in error["message"]


def test_a_prompt_of_megabytes_is_refused_by_its_length(gateway, models, monkeypatch):
    """Tokenizing one takes seconds and a gigabyte."""
    monkeypatch.setattr(models.text, "encode_part", None)
    monkeypatch.setattr(models.text, "encode", None)
    huge = "y" * (7 * 2**20)
    for body, path in (
        (GOOD | message(content=huge), "/v1/chat/completions"),
        (GOOD | message(content=[{"type": "text", "text": huge, "private": True}]), "/v1/chat/completions"),
        ({"model": "outrider", "prompt": huge}, "/v1/completions"),
    ):
        status, error = post(gateway, body, path)
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert len(error["message"]) < 200


def test_others_are_answered_while_a_prompt_is_tokenized(gateway, models, monkeypatch):
    begun, proceed, encode = threading.Event(), threading.Event(), models.text.encode_part

    def slow(text: str) -> list[int]:
        begun.set()
        assert proceed.wait(60)
        return encode(text)

    monkeypatch.setattr(models.text, "encode_part", slow)
    with ThreadPoolExecutor(1) as others:
        asking = others.submit(post, gateway, GOOD)
        assert begun.wait(30)
        assert gateway.get("/health")["model"] == "outrider"
        proceed.set()
        assert asking.result()[0] == 200


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        ({"x-outrider-mode": "stream"}, 200, None),
        ({"x-outrider-mode": "fast"}, 400, ("mode", None)),
        ({"x-outrider-fence": "true"}, 400, (None, None)),
        ({"Host": "evil.example"}, 403, (None, "wrong_host")),
        ({"Origin": "http://evil.example"}, 403, (None, "wrong_origin")),
    ],
)
def test_headers_are_checked_and_pages_of_other_sites_refused(gateway, headers, status, told):
    got, answer = post(gateway, GOOD, **headers)
    assert (got, told and (answer["param"], answer["code"])) == (status, told)


FENCE = f"send <<NAME: {SECRET}>>"
NUMBERED = json.dumps({"to": FENCE}).replace("<", "\\u003c")
FENCED_TOOL = {"name": "f", "parameters": {"properties": {"a": {"enum": [FENCE]}}}}
FENCED_FORM = {"type": "json_schema", "name": "a", "schema": {"title": FENCE}}
CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"


def called(arguments: str = "{}", name: str = "send") -> dict:
    return message(role="assistant", tool_calls=[{"function": {"name": name, "arguments": arguments}}])


def tool(**function) -> dict:
    return {"tools": [{"type": "function", "function": {"name": "f"} | function}]}


@pytest.mark.parametrize("by_header", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "place"),
    [
        (CHAT, called(json.dumps({"to": FENCE})), "messages.0.tool_calls.0.function.arguments"),
        (CHAT, called(NUMBERED), "messages.0.tool_calls.0.function.arguments"),
        (CHAT, called(name=FENCE), "messages.0.tool_calls.0.function.name"),
        (CHAT, message(name=FENCE), "messages.0.name"),
        (CHAT, tool(**FENCED_TOOL), "tools.0.function.parameters"),
        (CHAT, tool(description=FENCE), "tools.0.function.description"),
        (CHAT, schema({"schema": {"const": FENCE}}), "response_format.json_schema.schema"),
        (CHAT, schema({"schema": {"properties": {FENCE: {}}}}), "response_format.json_schema.schema"),
        (CHAT, {"stop": ["a", "<<private: b>>"]}, "stop.1"),
        (CHAT, {"user": FENCE}, "user"),
        (CHAT, {"metadata": {SECRET: FENCE}}, "metadata"),
        (CHAT, {"user": "<<Private: b>>"}, "user"),
        (COMPLETIONS, {"prompt": "a", "user": FENCE}, "user"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f", "arguments": FENCE}]}, "input.0.arguments"),
        (RESPONSES, {"input": "a", "tools": [{"type": "function", **FENCED_TOOL}]}, "tools.0.parameters"),
        (RESPONSES, {"input": "a", "metadata": {"a": FENCE}}, "metadata"),
        (RESPONSES, {"input": "a", "text": {"format": FENCED_FORM}}, "text.format.schema"),
    ],
)  # fmt: skip
def test_a_private_marker_that_nothing_reads_is_refused_by_its_place(gateway, path, fields, place, by_header):
    body = {"model": "outrider"} | (GOOD if path == CHAT else {}) | fields
    headers = {"x-outrider-fences": "true"} if by_header else {}
    body |= {} if by_header else {"outrider": {"fences": True, "privacy": "placeholder"}}
    status, error = post(gateway, body, f"/v1/{path}", **headers)
    assert (status, error["param"]) == (400, place)
    assert error["message"].startswith(f"{place}: private markers are not read here")
    assert SECRET not in json.dumps(error)


PARTS = [{"type": "text", "text": "send <<NAME: ze"}, {"type": "text", "text": "bra-7731>>"}]
DIGITS = [{"role": "user", "content": "call <<PHONE: 77315550>>"}]


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        (CHAT, message(content=PARTS), None),
        (CHAT, message(content=f"\\u003c\\u003cNAME: {SECRET}>>"), "is not read where it is escaped"),
        (CHAT, message(content=f"&lt;&lt;NAME: {SECRET}&gt;&gt;"), "is not read where it is escaped"),
        (CHAT, called(FENCE) | {"options": {"outrider": {"fences": True}}, "outrider": None}, "are not read here"),
        (CHAT, {"messages": DIGITS} | schema({"schema": {"const": 77315550}}), "a pattern or number holds"),
        (CHAT, {"messages": DIGITS} | schema({"schema": {"pattern": "^x77315550$"}}), "a pattern or number holds"),
        (COMPLETIONS, {"prompt": [FENCE, SECRET]}, "private text goes with one prompt in a request"),
    ],
)  # fmt: skip
def test_private_text_that_would_leave_another_way_is_refused(gateway, path, fields, says):
    body = {"model": "outrider", "outrider": {"fences": True, "privacy": "placeholder"}, "max_tokens": 3}
    status, answer = post(gateway, body | (GOOD if path == CHAT else {}) | fields, f"/v1/{path}")
    assert status == (200 if says is None else 400), answer
    assert says is None or says in answer["message"]
    assert SECRET not in json.dumps(answer) or says is None


def test_a_link_that_is_real_cannot_be_cut(gateway):
    assert post(gateway, {"cut": True}, "/outrider/link")[0] == 409


def test_a_key_is_required_where_one_is_set(start_gateway, server):
    with start_gateway(server, GatewayConfig(api_key="k-1")) as gateway:
        with gateway.openai(api_key="k-1") as openai:
            assert openai.chat.completions.create(**GOOD).choices
        with gateway.openai(api_key="k-2") as openai, pytest.raises(openai_library.AuthenticationError) as refused:
            openai.models.list()
        assert refused.value.code == "invalid_api_key"
        for path in ("/v1/chat/completions", "/outrider/link"):
            assert post(gateway, GOOD, path)[0] == 401
        assert gateway.get("/health")["model"] == "outrider"


def test_an_app_cannot_name_a_file_as_profile(start_gateway, server, tmp_path):
    (tmp_path / "own.toml").write_text(SECRET)
    with start_gateway(server, profile="paper-4g") as gateway:
        status, error = post(gateway, {"profile": str(tmp_path / "own.toml")}, "/outrider/link")
        assert (status, error["param"]) == (400, "profile")
        assert "choose one of" in error["message"]
        assert post(gateway, {"profile": "paper-5g"}, "/outrider/link")[0] == 200
    with pytest.raises(UsageError, match="profile"), start_gateway(server, profile="avian"):
        pass


def test_the_page_loads_nothing_from_elsewhere(gateway):
    for path in ("/", "/main.js"):
        with urllib.request.urlopen(gateway.url + path, timeout=30) as answer:
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-cache"  # modules of one version


def test_a_key_may_hold_any_letters_and_is_not_shown():
    config = GatewayConfig(api_key=" schlüssel\n")
    headers = Headers(raw=[(b"authorization", "Bearer schlüssel".encode())])
    assert wrong_key({"path": "/v1/models"}, headers, api_key=config.api_key) is None
    headers = Headers({"authorization": "Bearer schl"})
    assert wrong_key({"path": "/v1/models"}, headers, api_key=config.api_key).status == 401
    assert "schl" not in repr(config)


def test_an_address_for_others_needs_a_key(tmp_path):
    with pytest.raises(UsageError, match="api-key"):
        GatewayConfig("0.0.0.0")
    (tmp_path / "key").write_text("k-1\n")
    assert GatewayConfig("0.0.0.0", api_key_file=tmp_path / "key").read_key() == "k-1"
    with pytest.raises(UsageError, match="cannot be read"):
        GatewayConfig(api_key_file=tmp_path / "none").read_key()
    with pytest.raises(UsageError, match="one of them"):
        GatewayConfig(api_key="k-1", api_key_file=tmp_path / "key")
    with pytest.raises(UsageError, match="API key is empty"):
        GatewayConfig(api_key=" ")


def test_the_key_comes_from_the_environment_and_from_no_option():
    outcomes = []
    for options, key in ((["--host", "0.0.0.0"], "k"), (["--host", "0.0.0.0"], ""), (["--api-key", "k"], "")):
        run = CliRunner().invoke(app, ["gateway", *options, "--allow-origin", "x"], env={"OUTRIDER_API_KEY": key})
        outcomes.append(f"{run.exception} {run.output}")
    assert "allow-origin=x" in outcomes[0]  # the address is all right
    assert "OUTRIDER_API_KEY" in outcomes[1]
    assert "--api-key" in outcomes[2]
    assert "allow-origin" not in outcomes[2]


def test_the_command_checks_before_it_loads():
    for options, what in (
        (["--host", "0.0.0.0"], "api-key"),
        (["--sessions", "0"], "sessions=0"),
        (["--allow-origin", "*"], "allow-origin=*"),
        (["--set", "on-reconnect=verify"], "on_reconnect: each request"),
        (["--set", "logprobs=2"], "logprobs: each request"),
    ):
        failed = CliRunner().invoke(app, ["gateway", *options]).exception
        assert isinstance(failed, UsageError)
        assert what in str(failed)
