"""An answer to an app: whole, or as server-sent events. Nothing is sent before the first text or the first error, so
that an error has its HTTP status."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.errors import ApiError, api_error
from outrider_client.gateway.response_bodies import Body, ResponseFormat
from outrider_client.gateway.text_stream import TextChunk
from outrider_proto.errors import OutriderError

_KEEPALIVE_S = 10


async def answer(request: Request, answering: GatewayCompletion, form: ResponseFormat) -> Response:
    """Raises ApiError, OutriderError or DisconnectedError."""
    if answering.asked.stream:
        return await _streamed(request, answering, form)
    pieces = await while_connected(request, _all(answering))
    return JSONResponse(form.whole(answering, pieces))


async def _all(answering: GatewayCompletion) -> list[TextChunk]:
    async with contextlib.aclosing(answering.pieces()) as pieces:
        return [piece async for piece in pieces]


async def _streamed(request: Request, answering: GatewayCompletion, form: ResponseFormat) -> Response:
    pieces = answering.pieces()
    try:
        first = await while_connected(request, _first(pieces))
    except BaseException:
        await pieces.aclose()
        raise
    return EventSourceResponse(_events(first, pieces, answering, form), ping=_KEEPALIVE_S, sep="\n")


async def _first(pieces: AsyncGenerator[TextChunk, None]) -> TextChunk | None:
    return await anext(pieces, None)


async def _events(
    first: TextChunk | None, pieces: AsyncGenerator[TextChunk, None], answering: GatewayCompletion, form: ResponseFormat
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pieces):
        if (opening := form.opening()) is not None:
            yield _event(opening)
        if first is not None:
            yield _event(form.chunk(first))
        try:
            async for piece in pieces:
                yield _event(form.chunk(piece))
        except OutriderError as error:
            yield _event(api_error(error).body)
        except ApiError as error:
            yield _event(error.body)
        else:
            yield _event(form.closing(answering))
            if answering.asked.include_usage:
                yield _event(form.usage(answering))
    yield b"data: [DONE]\n\n"


def _event(body: Body) -> bytes:
    """JSON has no line breaks of its own."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


T = TypeVar("T")


class DisconnectedError(Exception):
    """The app has hung up; nobody reads what is answered."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises. Raises DisconnectedError, and cancels it, when the app goes away first."""
    working = asyncio.create_task(work, name="outrider request")
    leaving = asyncio.create_task(_left(request), name="outrider request's end")
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DisconnectedError
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
