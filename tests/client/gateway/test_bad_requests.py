"""Bad requests get errors in OpenAI's format and never reach a model."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai as openai_library
import pytest
from starlette.datastructures import Headers
from typer.testing import CliRunner

from outrider_client.cli.app import app
from outrider_client.cli.gateway import _api_key
from outrider_client.core.config import ClientConfig
from outrider_client.gateway.gateway import GatewayConfig
from outrider_client.gateway.middleware import MAX_BODY_BYTES, AccessMiddleware
from outrider_client.gateway.serving import ServingConfig, _socket
from outrider_proto.errors import UsageError

SECRET = "zebra-7731"
GOOD = {"model": "outrider", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}


def post(gateway, body, path: str = "/v1/chat/completions", **headers) -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(gateway.url + path, data, {"Content-Type": "application/json"} | headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]


def message(**fields) -> dict:
    return GOOD | {"messages": [{"role": "user", "content": SECRET} | fields]}


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (b'{"model": ', 400, None, None),
        (b"\xff\xfe", 400, None, None),
        ([GOOD], 400, None, None),
        (GOOD | {"model": "gpt-5"}, 404, "model", "model_not_found"),
        ({"messages": GOOD["messages"]}, 400, "model", None),
        (GOOD | {"messages": []}, 400, "messages", None),
        (GOOD | {"wibble": 1}, 400, "wibble", "unknown_parameter"),
        (GOOD | {"n": 2}, 400, "n", "unsupported_parameter"),
        (GOOD | {"n": True}, 400, "n", "unsupported_parameter"),
        (GOOD | {"presence_penalty": 0.5}, 400, "presence_penalty", "unsupported_parameter"),
        (GOOD | {"logit_bias": {"5": 1}}, 400, "logit_bias", "unsupported_parameter"),
        (GOOD | {"tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
        (GOOD | {"response_format": {"type": "json_object"}}, 400, "response_format", "unsupported_parameter"),
        (GOOD | {"temperature": 3}, 400, "temperature", None),
        (GOOD | {"temperature": "hot"}, 400, "temperature", None),
        (GOOD | {"top_p": 0}, 400, "top_p", None),
        (GOOD | {"max_tokens": 0}, 400, "max_tokens", None),
        (GOOD | {"stop": ["a", "b", "c", "d", "e"]}, 400, "stop", None),
        (GOOD | {"stop": ""}, 400, "stop", None),
        (GOOD | {"top_logprobs": 2}, 400, "top_logprobs", None),
        (GOOD | {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", None),
        (GOOD | {"stream_options": {"include_usage": True}}, 400, "stream_options", None),
        (message(role="tool"), 400, "messages.0.role", None),
        (message(name="Ann"), 400, "messages.0.name", "unsupported_parameter"),
        (message(content=[{"type": "image_url", "image_url": {}}]), 400, None, None),
        (message(content=f"{SECRET}\ud800"), 400, "messages.0.content", None),
        (message(content=[{"type": "text", "text": f"{SECRET}\ud800"}]), 400, "messages.0.content.0.text", None),
        (message(content=SECRET * 400), 400, "messages", "context_length_exceeded"),
        (GOOD | {"outrider": {"mode": "fast"}}, 400, "outrider.mode", None),
        (GOOD | {"outrider": {"wibble": 1}}, 400, "outrider.wibble", "unknown_parameter"),
        (GOOD | {"outrider": {"drafter": "eagle"}}, 400, "outrider.drafter", None),
        (message(content=f"call <<private: {SECRET}") | {"outrider": {"fences": True}}, 400, None, None),
        (message(content=[{"type": "text", "text": SECRET, "private": True, "kind": "e-mail"}]), 400, None, None),
    ],
)
def test_bad_bodies(gateway, body, status, param, code):
    got, error = post(gateway, body)
    assert got == status, error
    assert error["code"] == code
    if param is not None:
        assert error["param"] == param
        assert param in error["message"] or code == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert SECRET not in json.dumps(error)


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "ann"},
        {"tools": None, "tool_choice": "auto", "response_format": {"type": "text"}, "store": False, "metadata": {}},
        {"messages": [{"role": "developer", "content": "x", "name": None}, {"role": "user", "content": "y"}]},
        {"stop": None, "seed": None, "logprobs": False, "stream_options": None},
    ],
)
def test_parameters_without_effect_are_accepted(gateway, neutral):
    assert post(gateway, GOOD | neutral)[0] == 200


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


def test_a_long_chat_loses_its_oldest_turns_and_is_told(gateway, start_gateway, server):
    turns = [{"role": role, "content": SECRET * 60} for role in ("user", "assistant")] * 2
    long = GOOD | {"messages": [{"role": "system", "content": "x"}, *turns, {"role": "user", "content": SECRET}]}
    status, answer = post(gateway, long)
    assert status == 200
    [warning] = answer["outrider"]["warnings"]
    assert "oldest messages are left out" in warning
    assert answer["usage"]["prompt_tokens"] < 1024
    with start_gateway(server, on_full_context="error") as strict:
        status, error = post(strict, long)
    assert (status, error["code"]) == (400, "context_length_exceeded")


def test_a_prompt_of_megabytes_is_refused_by_its_length(gateway, models, monkeypatch):
    """Tokenizing one takes seconds and a gigabyte."""
    monkeypatch.setattr(models.text, "encode_part", None)
    monkeypatch.setattr(models.text, "encode", None)
    huge = "y" * (7 * 2**20)
    for body, path in (
        (message(content=huge), "/v1/chat/completions"),
        (message(content=[{"type": "text", "text": huge, "private": True}]), "/v1/chat/completions"),
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


def test_headers_are_checked_too(gateway):
    assert post(gateway, GOOD, **{"x-outrider-mode": "stream"})[0] == 200
    status, error = post(gateway, GOOD, **{"x-outrider-mode": "fast"})
    assert (status, error["param"]) == (400, "mode")


@pytest.mark.parametrize(
    ("headers", "code"), [({"Host": "evil.example"}, "wrong_host"), ({"Origin": "http://evil.example"}, "wrong_origin")]
)
def test_pages_of_other_sites_are_refused(gateway, headers, code):
    status, error = post(gateway, GOOD, **headers)
    assert (status, error["code"]) == (403, code)


def test_a_link_that_is_real_cannot_be_cut(gateway):
    assert post(gateway, {"cut": True}, "/outrider/link")[0] == 409


def test_several_prompts_at_once_are_refused(gateway):
    body = {"model": "outrider", "prompt": ["a", "b"]}
    assert post(gateway, body, "/v1/completions")[0] == 400


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


def test_the_page_loads_nothing_from_elsewhere(gateway):
    for path in ("/", "/main.js"):
        with urllib.request.urlopen(gateway.url + path, timeout=30) as answer:
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-cache"  # modules of one version


def test_a_key_may_hold_any_letters_and_is_not_shown():
    config = GatewayConfig(api_key=" schlüssel\n")
    middleware = AccessMiddleware(None, config.api_key, only_loopback=False)
    headers = Headers(raw=[(b"authorization", "Bearer schlüssel".encode())])
    assert middleware._refusal("/v1/models", headers) is None
    assert middleware._refusal("/v1/models", Headers({"authorization": "Bearer schl"})).status == 401
    assert "schl" not in repr(config)


def test_an_address_for_others_needs_a_key(tmp_path):
    with pytest.raises(UsageError, match="api-key"):
        ServingConfig(ClientConfig(), GatewayConfig(), host="0.0.0.0")
    (tmp_path / "key").write_text("k-1\n")
    assert _api_key(None, tmp_path / "key") == "k-1"
    with pytest.raises(UsageError, match="cannot be read"):
        _api_key(None, tmp_path / "none")
    with pytest.raises(UsageError, match="one of them"):
        _api_key("k-1", tmp_path / "key")
    with pytest.raises(UsageError, match="api-key is empty"):
        GatewayConfig(api_key=" ")


def test_an_address_in_use(start_gateway, gateway, server, models):
    port = int(gateway.url.rpartition(":")[2])
    with pytest.raises(UsageError, match="cannot listen"):
        _socket(ServingConfig(ClientConfig(), GatewayConfig(), port=port))


def test_the_command_checks_before_it_loads():
    for options, what in (
        (["--host", "0.0.0.0"], "api-key"),
        (["--sessions", "0"], "sessions=0"),
        (["--on-reconnect", "verify"], "on-reconnect: each request"),
        (["--logprobs", "2"], "logprobs: each request"),
    ):
        failed = CliRunner().invoke(app, ["gateway", *options]).exception
        assert isinstance(failed, UsageError)
        assert what in str(failed)


def test_an_unknown_profile(start_gateway, server):
    with pytest.raises(UsageError, match="profile"), start_gateway(server, profile="avian"):
        pass
