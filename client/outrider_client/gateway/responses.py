"""HTTP responses: an answer as one JSON body or as server-sent events.

Nothing is sent before the first text or the first error, so that an error still gets its HTTP status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.errors import ApiError, api_error
from outrider_client.gateway.response_bodies import Body, ResponseFormatter
from outrider_client.gateway.text_stream import TextChunk
from outrider_proto.errors import OutriderError

_KEEPALIVE_S = 10


async def respond(request: Request, completion: GatewayCompletion, formatter: ResponseFormatter) -> Response:
    """Raises ApiError, OutriderError or DisconnectedError."""
    if completion.request.stream:
        return await _streamed(request, completion, formatter)
    chunks = await while_connected(request, _all(completion))
    return JSONResponse(formatter.whole(completion, chunks))


async def _all(completion: GatewayCompletion) -> list[TextChunk]:
    async with contextlib.aclosing(completion.chunks()) as chunks:
        return [chunk async for chunk in chunks]


async def _streamed(request: Request, completion: GatewayCompletion, formatter: ResponseFormatter) -> Response:
    chunks = completion.chunks()
    try:
        first = await while_connected(request, _first(chunks))
    except BaseException:  # cancellation, too: the session must be given back now
        await chunks.aclose()
        raise
    # OpenAI's streams end lines with \n; sse-starlette's default is \r\n.
    return EventSourceResponse(_events(first, chunks, completion, formatter), ping=_KEEPALIVE_S, sep="\n")


async def _first(chunks: AsyncGenerator[TextChunk, None]) -> TextChunk | None:
    return await anext(chunks, None)


async def _events(
    first: TextChunk | None,
    chunks: AsyncGenerator[TextChunk, None],
    completion: GatewayCompletion,
    formatter: ResponseFormatter,
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(chunks):
        yield _events_of(formatter.opening(completion))
        if first is not None:
            yield _events_of(formatter.chunk(first))
        try:
            async for chunk in chunks:
                yield _events_of(formatter.chunk(chunk))
        except OutriderError as error:
            yield _events_of([formatter.failed(api_error(error).body)])
        except ApiError as error:
            yield _events_of([formatter.failed(error.body)])
        else:
            yield _events_of(formatter.closing(completion))
            if completion.request.include_usage:
                yield _events_of(formatter.usage(completion))
    if formatter.ends_with_done:
        yield b"data: [DONE]\n\n"


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
