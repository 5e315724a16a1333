"""An answer to an app: whole, or as server-sent events. Nothing is sent before the first text or the first error, so
that an error has its HTTP status."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator

from fastapi import Request
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from outrider_client.gateway.answering import Answering
from outrider_client.gateway.bodies import Body, Form
from outrider_client.gateway.disconnect import while_connected
from outrider_client.gateway.errors import ApiError, api_error
from outrider_client.gateway.outflow import Piece
from outrider_proto.errors import OutriderError

_KEEPALIVE_S = 10


async def answer(request: Request, answering: Answering, form: Form) -> Response:
    """Raises ApiError, OutriderError or GoneError."""
    if answering.asked.stream:
        return await _streamed(request, answering, form)
    pieces = await while_connected(request, _all(answering))
    return JSONResponse(form.whole(answering, pieces))


async def _all(answering: Answering) -> list[Piece]:
    async with contextlib.aclosing(answering.pieces()) as pieces:
        return [piece async for piece in pieces]


async def _streamed(request: Request, answering: Answering, form: Form) -> Response:
    pieces = answering.pieces()
    try:
        first = await while_connected(request, _first(pieces))
    except BaseException:
        await pieces.aclose()
        raise
    return EventSourceResponse(_events(first, pieces, answering, form), ping=_KEEPALIVE_S, sep="\n")


async def _first(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    return await anext(pieces, None)


async def _events(
    first: Piece | None, pieces: AsyncGenerator[Piece, None], answering: Answering, form: Form
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
