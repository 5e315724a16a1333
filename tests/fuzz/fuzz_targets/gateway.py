"""Bodies that apps send to the gateway."""

from __future__ import annotations

import json

from pydantic import BaseModel, ValidationError

from fuzz_targets.target import FuzzTarget
from outrider_client.gateway.request_bodies import ChatRequest, CompletionRequest


def _bodies(data: bytes) -> list[BaseModel]:
    """As FastAPI: JSON first, then both endpoints' models."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):  # FastAPI answers both
        return []
    made: list[BaseModel] = []
    for model in (ChatRequest, CompletionRequest):
        try:
            made.append(model.model_validate(given))
        except ValidationError as error:
            error.errors()
            str(error)
    return made


def _check(made: list[BaseModel]) -> None:
    for body in made:
        assert all(isinstance(stop, str) for stop in body.stops)
        body.model_dump_json()


def _seeds() -> dict[str, bytes]:
    messages = [{"role": "user", "content": "hi"}]
    several = {
        "chat": {"model": "m", "messages": messages},
        "chat-all": {
            "model": "m",
            "messages": [*messages, {"role": "user", "content": [{"type": "text", "text": "a", "private": True}]}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 3,
            "stop": ["a", "b"],
            "max_tokens": 9,
            "logprobs": True,
            "top_logprobs": 2,
            "n": 1,
            "tools": [],
            "outrider": {"mode": "auto", "privacy": "local", "fences": True, "unverified": "keep"},
        },
        "completion": {"model": "m", "prompt": "a", "max_tokens": 3, "echo": False},
        "completion-tokens": {"model": "m", "prompt": [1, 2], "logprobs": 2},
        "half": {"model": "m", "messages": [{"role": "user", "content": "\ud800"}]},
    }
    return {name: json.dumps(body).encode() for name, body in several.items()} | {"no-json": b"{", "list": b"[]"}


TARGETS = (FuzzTarget("gateway-body", _bodies, _seeds, _check, refusals=(), bound=None),)
