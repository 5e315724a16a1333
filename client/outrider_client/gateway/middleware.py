"""ASGI middleware around the whole app: whose pages and apps may call it, and how large a request may be."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_client.core.gateway_config import ANY_ORIGIN
from outrider_client.gateway.errors import ApiError
from outrider_proto.addresses import is_loopback_host

API_PATH = "/v1/"
_PROTECTED = (API_PATH, "/outrider/", "/metrics")  # by the API key; the page itself holds no data
ENDPOINTS = (*_PROTECTED, "/health")  # all paths but the page's begin so
MAX_BODY_BYTES = 8 * 2**20


class RefusingMiddleware:
    """Answers a request itself if `refusal`, of its path and headers, returns an error."""

    def __init__(self, app: ASGIApp, refusal: Callable[[str, Headers], ApiError | None]) -> None:
        self._app = app
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refusal(scope["path"], Headers(scope=scope))) is not None:
            await JSONResponse(error.body, error.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def wrong_origin(path: str, headers: Headers, *, allowed: Collection[str], only_loopback: bool) -> ApiError | None:
    """Refuse a browser's request from a page of another site, unless that may call the API."""
    # DNS rebinding: a site can point its own name at 127.0.0.1, and its page then counts as of one origin with us.
    # The Host header still holds that name. A page that posts across origins is stopped by its Origin header, which
    # the preflight request that JSON bodies need has, too.
    host = headers.get("host", "")
    if only_loopback and not is_loopback_host(_hostname(host)):
        return ApiError(403, "host: this gateway answers to localhost only", code="wrong_host")
    origin = headers.get("origin")
    is_allowed = path.startswith(API_PATH) and not {origin, ANY_ORIGIN}.isdisjoint(allowed)
    if origin is None or origin.partition("://")[2] == host or is_allowed:
        return None
    message = "origin: this gateway serves no pages of other sites, unless --allow-origin names them"
    return ApiError(403, message, code="wrong_origin")


def wrong_key(path: str, headers: Headers, *, api_key: str | None) -> ApiError | None:
    """Refuse a request without the API key, if there is one."""
    if api_key is None or not path.startswith(_PROTECTED):
        return None
    # Starlette decodes headers as Latin-1; encoding the key back gives the bytes that were sent. compare_digest takes
    # the same time wherever they differ.
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), api_key.strip().encode()):
        return None
    message = "api key is missing or wrong: send Authorization: Bearer KEY"
    return ApiError(401, message, "authentication_error", code="invalid_api_key")


def _hostname(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host


class BodyLimitMiddleware:
    """Raises HTTPException 413 in the app where it reads a body that is too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        num_bytes = 0

        def check(size: int) -> None:
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB")

        async def counted() -> Message:
            nonlocal num_bytes
            # Checked twice: a declared length before anything is read, and what really comes, for chunked bodies.
            check(int(declared) if declared.isdecimal() else 0)
            message = await receive()
            num_bytes += len(message.get("body", b""))
            check(num_bytes)
            return message

        await self._app(scope, counted, send)


class FaultMiddleware:
    """Answers in place of an app that failed before its response began."""

    def __init__(self, app: ASGIApp, response: Callable[[Exception], Response]) -> None:
        self._app = app
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            await self._response(error)(scope, receive, send)
