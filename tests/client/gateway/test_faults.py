"""A fault of the gateway's own is an error in OpenAI's form, counted, and in a stream an event. It quotes nothing."""

from __future__ import annotations

import json
import re

import pytest

from outrider_client.async_client import AsyncClient
from outrider_client.gateway import app, responses
from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.link_watch import LinkWatch
from outrider_client.gateway.metrics import GatewayMetrics
from outrider_client.gateway.response_bodies import ChatFormatter, CompletionFormatter
from outrider_client.gateway.responses_api import ResponsesFormatter
from outrider_client.gateway.text_stream import TextStream
from outrider_client.models.local_models import LocalModels

SECRET = "zebra-7731"
FORMATTERS = (ChatFormatter, CompletionFormatter, ResponsesFormatter)
COMMON = {"model": "outrider", "temperature": 0}
BODIES = {
    "/v1/chat/completions": COMMON | {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 6},
    "/v1/completions": COMMON | {"prompt": SECRET, "max_tokens": 6},
    "/v1/responses": COMMON | {"input": SECRET, "max_output_tokens": 6},
}
PLACES = [  # functions, after how many calls they fail, and the streams and whole answers that get there
    (Gateway, "models_for", 0, (True, False)),
    (GatewayCompletion, "_limit", 0, (True, False)),
    (LocalModels, "encode_newest", 0, (True, False)),
    (AsyncClient, "generate", 0, (True, False)),
    (TextStream, "take", 0, (True, False)),
    (TextStream, "take", 4, (True, False)),
    (GatewayCompletion, "_record", 0, (True, False)),
    (FORMATTERS, "opening", 0, (True,)),
    (FORMATTERS, "chunk", 1, (True,)),
    (FORMATTERS, "closing", 0, (True,)),
    (FORMATTERS, "whole", 0, (False,)),
    (responses, "JSONResponse", 0, (False,)),
]


@pytest.fixture
def fail(monkeypatch):
    """Have a function fail after some calls."""

    def make(owners, name: str, num_calls: int = 0) -> None:
        for owner in owners if isinstance(owners, tuple) else (owners,):
            calls, real = iter(range(num_calls)), getattr(owner, name)

            def failing(*args, calls=calls, real=real, **options):
                if next(calls, None) is None:
                    raise TypeError(SECRET)
                return real(*args, **options)

            monkeypatch.setattr(owner, name, failing)

    return make


def num_counted(gateway) -> float:
    counted = re.search(r'outrider_request_errors_total\{status="500"\} (\S+)', gateway.get("/metrics"))
    return float(counted[1]) if counted else 0


@pytest.mark.parametrize(
    ("place", "stream"), [(place, stream) for place in PLACES for stream in place[3]], ids=lambda each: str(each)[-60:]
)
@pytest.mark.parametrize("path", BODIES)
def test_answers(gateway, fail, caplog, place, stream, path):
    before = num_counted(gateway)
    fail(*place[:3])
    answer = gateway.request("POST", path, json.dumps(BODIES[path] | {"stream": stream}).encode())
    if answer.status == 500:
        error = answer.error
    else:
        assert (answer.status, stream) == (200, True)
        lines = [line for line in answer.body.decode().splitlines() if line.startswith("data: ")]
        if path != "/v1/responses":  # whose streams have no such end
            assert lines.pop() == "data: [DONE]"
        event = json.loads(lines[-1].removeprefix("data: "))
        error = event | {"type": "server_error"} if event.get("type") == "error" else event["error"]
    assert error["message"].startswith("the gateway failed (TypeError)")
    assert (error["type"], error["code"]) == ("server_error", None)
    assert num_counted(gateway) == before + 1
    assert "TypeError" in caplog.text
    assert SECRET not in caplog.text + json.dumps(error)


@pytest.mark.parametrize(
    ("method", "path", "owner", "name"),
    [
        ("GET", "/health", LinkWatch, "wake"),
        ("GET", "/metrics", GatewayMetrics, "exposition"),
        ("GET", "/v1/models/none", Gateway, "check_model"),
        ("GET", "/main.js", app._Page, "file_response"),
        ("GET", "/outrider/link", LinkWatch, "reports"),
        ("POST", "/outrider/link", app, "ApiError"),
        ("POST", "/v1/completions", app, "invalid_request"),
    ],
)
def test_other_endpoints(gateway, fail, monkeypatch, method, path, owner, name):
    before = num_counted(gateway)
    fail(owner, name)
    answer = gateway.request(method, path, b"{}" if method == "POST" else None)
    monkeypatch.undo()
    text = answer.body.decode().removeprefix("data: ").removesuffix("data: [DONE]\n\n")
    assert (answer.status, path) in ((500, path), (200, "/outrider/link"))
    assert json.loads(text)["error"]["type"] == "server_error"
    assert num_counted(gateway) == before + 1
