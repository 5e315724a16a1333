"""No canary of a private part of a request leaves by the gateway: not to the server, not into logs, metrics, errors or
the page's figures."""

from __future__ import annotations

import json
import logging
import random

import openai as openai_library
import pytest
from in_thread import InThread

from outrider_client.core.prompt import Segment

from ..canaries import Asked, Relay, asked, needles

NUM_ASKED = 24


def parts(content) -> list[dict]:
    return [
        {"type": "text", "text": each.text}
        | ({"private": True} | ({"kind": each.kind} if each.kind else {}) if each.private else {})
        for each in content
    ]


def request_of(made: Asked) -> list[dict]:
    if isinstance(made.prompt[0], Segment):
        return [{"role": "user", "content": parts(made.prompt)}]
    return [{"role": turn["role"], "content": parts(turn["content"])} for turn in made.prompt]


def ask(client, made: Asked, number: int) -> str:
    """Ask in one of many ways; return the text of an error."""
    extension = {"privacy": ("local", "placeholder")[number % 2], "mode": ("auto", "stream", "proactive")[number % 3]}
    body = {"model": "outrider", "messages": request_of(made), "max_tokens": 8}
    if number % 8 == 7:
        body |= {"tools": [{"type": made.canaries[0]}]}  # refused
    try:
        if number % 2:
            client.chat.completions.create(**body, extra_body={"outrider": extension})
        else:
            list(client.chat.completions.create(**body, stream=True, extra_body={"outrider": extension}))
    except openai_library.APIError as error:
        return json.dumps(error.body) + error.message
    return ""


@pytest.fixture
def relay(server):
    with InThread(lambda: Relay(server)) as relay:
        yield relay


def found(asked_for: list[Asked], models, haystack: bytes) -> list[str]:
    def encode(text: str) -> list[int]:
        return models.encode(text, raw=True)

    return [made.canaries[0] for made in asked_for if any(needle in haystack for needle in needles(made, encode))]


def test_no_canary_leaves_by_the_gateway(start_gateway, relay, models, caplog):
    caplog.set_level(logging.DEBUG)
    generator = random.Random(7)
    made = [asked(generator) for _ in range(NUM_ASKED)]
    with start_gateway(relay.address) as gateway, gateway.openai() as client:
        gateway.wait_for_link("online")
        answers = [ask(client, each, number) for number, each in enumerate(made)]
        shown = gateway.get("/metrics") + json.dumps(gateway.get("/health")) + json.dumps(next(gateway.link_states()))
    gone = bytes(relay.up + relay.down)
    ours = ("outrider", "uvicorn", "sse", "fastapi", "starlette", "asyncio")  # the app's own client logs what it sends
    logged = [str(record.__dict__) for record in caplog.records if record.name.startswith(ours)]
    assert len(gone) > 2000
    assert sum(map(bool, answers)) == NUM_ASKED // 8
    assert found(made, models, gone + "\n".join([shown, *answers, *logged]).encode()) == []
    assert found(made[:1], models, gone + made[0].canaries[0].encode()) == made[0].canaries[:1]  # the search finds
