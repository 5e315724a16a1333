"""No error and no line of log repeats what a request holds, wherever in it that stands.

Of an unknown parameter the name is told, where it could be one.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

CANARY = "zebra7731"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "[a-z]+", "minLength": 1}, "b": {"enum": ["x"]}},
    "required": ["a"],
    "$defs": {"c": {"type": "integer", "minimum": 0}},
    "additionalProperties": {"$ref": "#/$defs/c"},
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}]
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
COMMON = {"model": "outrider", "max_tokens": 2, "stop": ["x"], "seed": 1, "temperature": 1.0, "logit_bias": {"5": 1}}
OPTIONS = {"mode": "auto", "drafter": "none", "privacy": "placeholder", "fences": True, "unverified": "hold"}
BODIES = {
    "/v1/chat/completions": COMMON
    | {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "x", "private": True, "kind": "A", "x": 1}]},
            {"role": "assistant", "content": "y", "tool_calls": CALLS, "refusal": ""},
            {"role": "tool", "tool_call_id": "1", "content": "z"},
        ],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "text", "json_schema": None},
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"a": "x"},
        "outrider": OPTIONS,
        "options": {"mirostat": 0},
    },
    "/v1/chat/completions ": COMMON
    | {
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
    "/v1/completions": COMMON | {"prompt": ["x"], "suffix": "", "outrider": OPTIONS, "grammar": ""},
    "/v1/responses": {
        "model": "outrider",
        "max_output_tokens": 2,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x", "annotations": []}]},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
            {"type": "function_call_output", "output": "y", "call_id": "1"},
        ],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "tool_choice": "auto",
        "outrider": OPTIONS,
    },
    "/outrider/link": {"cut": True, "profile": "x"},
}
PLANTED = (CANARY, f"\ud800{CANARY}", [CANARY], {f"{CANARY} a": CANARY}, f"<<private: {CANARY}", f"<<{CANARY}>>")


def planted(value: Any, secret: Any) -> Iterator[Any]:
    """Yield the value with the secret in place of each of its parts, and in front of each of its names."""
    yield secret
    match value:
        case dict():
            for name, part in value.items():
                yield from ({**value, name: changed} for changed in planted(part, secret))
            if isinstance(secret, str):
                yield {**value, f"{secret} 1": 1}
        case list():
            for at, part in enumerate(value):
                yield from ([*value[:at], changed, *value[at + 1 :]] for changed in planted(part, secret))


@pytest.mark.parametrize("secret", PLANTED, ids=str)
@pytest.mark.parametrize("path", BODIES)
def test_nothing_is_repeated(gateway, caplog, path, secret):
    caplog.set_level(logging.INFO)
    refused = 0
    for body in planted(BODIES[path], secret):
        answer = gateway.request("POST", path.strip(), json.dumps(body).encode())
        assert answer.status in (200, 400, 404, 409)
        if answer.status != 200:
            refused += 1
            assert CANARY not in answer.body.decode(), body
            assert "error" in json.loads(answer.body)
    assert refused > 2
    ours = ("outrider", "uvicorn", "sse", "fastapi", "starlette", "asyncio")
    assert [line for line in caplog.records if line.name.startswith(ours) and CANARY in str(line.__dict__)] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [*itertools.product(("GET", "POST", "PUT"), (f"/v1/{CANARY}", f"/{CANARY}", f"/v1/models/{CANARY}"))],
)
def test_nor_are_paths_and_headers(gateway, method, path):
    for headers in (
        {},
        {"Authorization": CANARY},
        {"Host": CANARY},
        {"Origin": f"http://{CANARY}"},
        {"x-outrider-mode": CANARY},
    ):
        answer = gateway.request(method, path, b"{}", **headers)
        assert answer.status >= 400
        assert CANARY not in answer.body.decode() + str(answer.headers)
    answer = gateway.request(
        "POST", "/v1/completions", json.dumps(COMMON | {"prompt": "x"}).encode(), **{"x-outrider-mode": CANARY}
    )
    assert (answer.status, answer.error["param"]) == (400, "mode")
    assert CANARY not in answer.body.decode()
