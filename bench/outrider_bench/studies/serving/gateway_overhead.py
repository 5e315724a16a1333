"""What the gateway adds to an answer: the same prompts through the library and through HTTP, in turn, on one server."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider_client.async_client import AsyncClient
from outrider_client.core.events import Committed, Finished
from outrider_proto.errors import UsageError

_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: seconds to its first text and to its end, from asking on."""

    text: str
    num_tokens: int
    first_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt both ways."""

    library: Timed
    gateway: Timed

    @property
    def per_token_ms(self) -> float:
        """What a token takes longer, that to the first one included."""
        return (self.gateway.whole_s - self.library.whole_s) * 1e3 / self.library.num_tokens

    @property
    def first_ms(self) -> float:
        return (self.gateway.first_s - self.library.first_s) * 1e3


async def pairs(
    client: AsyncClient,
    port: int,
    prompts: Sequence[Sequence[int]],
    mode: str,
    max_tokens: int,
    step: Callable[[], None],
) -> list[Pair]:
    """Each prompt both ways, every other one through the gateway first. Raises UsageError where the texts differ."""
    timed = []
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for number, prompt in enumerate(prompts):
            asked = {"model": "outrider", "prompt": list(prompt), "max_tokens": max_tokens, "outrider": {"mode": mode}}
            first = through_gateway(connection, asked) if number % 2 else None
            library = await through_library(client, prompt, mode, max_tokens)
            timed.append(Pair(library, first or through_gateway(connection, asked)))
            if timed[-1].gateway.text != library.text:
                raise UsageError(f"prompt {number}: the gateway's text is not the library's")
            step()
    return timed


async def through_library(client: AsyncClient, prompt: Sequence[int], mode: str, max_tokens: int) -> Timed:
    text, first_s, num_tokens = "", 0.0, 0
    started = time.perf_counter()
    async with contextlib.aclosing(client.generate(prompt, mode=mode, max_new_tokens=max_tokens)) as events:
        async for event in events:
            if isinstance(event, Committed | Finished) and event.text:
                first_s = first_s or time.perf_counter() - started
                text += event.text
            if isinstance(event, Finished):
                num_tokens = event.statistics.new_tokens
    return Timed(text, num_tokens, first_s, time.perf_counter() - started)


def through_gateway(connection: http.client.HTTPConnection, asked: dict[str, Any]) -> Timed:  # Any: whatever JSON holds
    """Lines are read as they come, and made sense of afterwards: that is the app's work, not the gateway's."""
    body = json.dumps(asked | {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}})
    lines: list[tuple[float, bytes]] = []
    started = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(_DATA):
            lines.append((time.perf_counter() - started, line.removeprefix(_DATA).strip()))
    chunks = [(at, json.loads(line)) for at, line in lines if line != _DONE]
    texts = [
        (at, chunk["choices"][0]["text"]) for at, chunk in chunks if chunk["choices"] and chunk["choices"][0]["text"]
    ]
    num_tokens = chunks[-1][1]["usage"]["completion_tokens"]
    return Timed("".join(text for _, text in texts), num_tokens, texts[0][0] if texts else 0.0, lines[-1][0])


def figures(timed: Sequence[Pair]) -> dict[str, float]:
    """Medians, in ms."""
    library = [pair.library.whole_s * 1e3 / pair.library.num_tokens for pair in timed]
    gateway = [pair.gateway.whole_s * 1e3 / pair.gateway.num_tokens for pair in timed]
    return {
        "library_token_ms": statistics.median(library),
        "gateway_token_ms": statistics.median(gateway),
        "added_token_ms": statistics.median(pair.per_token_ms for pair in timed),
        "added_first_token_ms": statistics.median(pair.first_ms for pair in timed),
    }
