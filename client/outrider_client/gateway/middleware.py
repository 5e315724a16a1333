"""Who may ask: with a key those who know it, without one this device's own programs.

A page of another site must not reach a gateway on loopback by a name that it lets point there, so the Host of a request
is checked, and the Origin that browsers add. Bodies must be JSON (FastAPI sees to that): a page of another site would
have to ask first, and nothing here answers that.
"""

from __future__ import annotations

import hmac

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_client.gateway.errors import ApiError
from outrider_proto.addresses import is_loopback_host

_CLOSED = ("/v1/", "/outrider/", "/metrics")  # to those who do not know the key; the page itself says nothing


class AccessMiddleware:
    """Around the whole app. `api_key` None: anybody on this device."""

    def __init__(self, app: ASGIApp, api_key: str | None, *, only_loopback: bool) -> None:
        self._app = app
        self._api_key = None if api_key is None else api_key.strip().encode()
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._objection(scope["path"], Headers(scope=scope))) is not None:
            await JSONResponse(error.body, error.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _objection(self, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._only_loopback and not is_loopback_host(_hostname(host)):
            return ApiError(403, "host: this gateway answers to localhost only", code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return ApiError(403, "origin: this gateway serves no pages of other sites", code="wrong_origin")
        if self._api_key is None or not path.startswith(_CLOSED):
            return None
        return None if self._knows_key(headers.get("authorization", "")) else _unauthorized()

    def _knows_key(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        assert self._api_key is not None
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), self._api_key)


def _hostname(host: str) -> str:
    """Without the port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host


def _unauthorized() -> ApiError:
    message = "api key is missing or wrong: send Authorization: Bearer KEY"
    return ApiError(401, message, "authentication_error", code="invalid_api_key")


MAX_BODY_BYTES = 8 * 2**20


class BodyLimitMiddleware:
    """Around the app, which gets the error where it reads the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = _CountedReceive(scope, receive) if scope["type"] == "http" else receive
        await self._app(scope, counted, send)


class _CountedReceive:
    def __init__(self, scope: Scope, receive: Receive) -> None:
        declared = Headers(scope=scope).get("content-length", "")
        self._declared = int(declared) if declared.isdecimal() else 0
        self._num_bytes = 0
        self._receive = receive

    async def __call__(self) -> Message:
        """Raises HTTPException."""
        self._check(self._declared)
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        self._check(self._num_bytes)
        return message

    @staticmethod
    def _check(num_bytes: int) -> None:
        if num_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB")
