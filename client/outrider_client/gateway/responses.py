"""HTTP responses: the answers to a request as one JSON body or as server-sent events.

Nothing is sent before the first text or the first error, so that an error still gets its HTTP status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from outrider_client.gateway.completion import chunks_of, usage_of
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.response_bodies import Body, ResponseFormatter
from outrider_client.gateway.text_stream import TextChunk

_KEEPALIVE_S = 10


_Chunks = AsyncGenerator[tuple[int, TextChunk | None], None]


async def respond(request: Request, answers: Sequence[ResponseFormatter], gateway: Gateway) -> Response:
    """Raises ApiError, OutriderError or DisconnectedError."""
    chunks = chunks_of([answer.completion for answer in answers], gateway.config.sessions)
    if not answers[0].completion.request.stream:
        return JSONResponse(await while_connected(request, _whole(answers, chunks)))
    try:
        first = await while_connected(request, _first(chunks))
    except BaseException:  # cancellation, too: the session must be given back now
        await chunks.aclose()
        raise
    # OpenAI's streams end lines with \n; sse-starlette's default is \r\n.
    return EventSourceResponse(_events(first, answers, chunks, gateway), ping=_KEEPALIVE_S, sep="\n")


async def _whole(answers: Sequence[ResponseFormatter], chunks: _Chunks) -> Body:
    written: list[list[TextChunk]] = [[] for _ in answers]
    async with contextlib.aclosing(chunks):
        async for number, chunk in chunks:
            if chunk is not None:
                if chunk.rollback_to == 0:  # another target writes the answer anew
                    written[number].clear()
                written[number].append(chunk)
    bodies = [answer.whole(its) for answer, its in zip(answers, written, strict=True)]
    if len(bodies) == 1:
        return bodies[0]
    # Of several, each has its own extension.
    choices = [{**body["choices"][0], "outrider": body["outrider"]} for body in bodies]
    common = {name: value for name, value in bodies[0].items() if name != "outrider"}
    return {**common, "choices": choices, "usage": usage_of([answer.completion for answer in answers])}


async def _first(chunks: _Chunks) -> tuple[int, TextChunk | None]:
    return await anext(chunks)


async def _events(
    first: tuple[int, TextChunk | None], answers: Sequence[ResponseFormatter], chunks: _Chunks, gateway: Gateway
) -> AsyncGenerator[bytes, None]:
    one = answers[0]  # of what all answers have in common
    async with contextlib.aclosing(chunks):
        try:
            for answer in answers:
                yield _events_of(answer.opening())
            yield _events_of(_bodies(answers, *first))
            async for number, chunk in chunks:
                yield _events_of(_bodies(answers, number, chunk))
            if one.completion.request.include_usage:
                yield _events_of(one.usage([answer.completion for answer in answers]))
        except Exception as error:  # the response has begun: nobody else can tell the app
            yield _events_of([one.failed(gateway.failed(error).body)])
    if one.ends_with_done:
        yield b"data: [DONE]\n\n"


def _bodies(answers: Sequence[ResponseFormatter], number: int, chunk: TextChunk | None) -> list[Body]:
    return answers[number].closing() if chunk is None else answers[number].chunk(chunk)


def _events_of(bodies: Iterable[Body]) -> bytes:
    return b"".join(_event(body) for body in bodies)


def _event(body: Body) -> bytes:
    name = f"event: {body['type']}\n" if "type" in body else ""
    # JSON text holds no line breaks, which would end the event.
    return f"{name}data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


T = TypeVar("T")


class DisconnectedError(Exception):
    """The app closed the connection, so no response can be delivered."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return or raise what `work` does. If the app goes away first, cancel it and raise DisconnectedError."""
    working = asyncio.create_task(work, name="outrider request")
    disconnecting = asyncio.create_task(_disconnected(request), name="outrider request disconnect")
    try:
        await asyncio.wait({working, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DisconnectedError
        return working.result()
    finally:
        for task in (working, disconnecting):
            task.cancel()
        await asyncio.gather(working, disconnecting, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
