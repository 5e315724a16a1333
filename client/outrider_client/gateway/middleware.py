"""What stands around the whole app: whose pages and apps may call it, and how large a request may be."""

from __future__ import annotations

import hmac
import json
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_client.core.gateway_config import ANY_ORIGIN
from outrider_client.gateway.errors import ApiError
from outrider_proto.addresses import is_loopback_host

API_PATH = "/v1/"
_PROTECTED = (API_PATH, "/outrider/", "/metrics")  # by the API key; the page itself holds no data
ENDPOINTS = (*_PROTECTED, "/health")  # all paths but the page's begin so
MAX_BODY_BYTES = 8 * 2**20
MAX_PARTS = 2**18  # of a body: objects, lists and names; a mebibyte of JSON as text has fewer
MAX_COMMAS = 2**20  # token ids of a prompt, for one
_MAX_HELD_BYTES = 8 * MAX_BODY_BYTES
_RETRY_S = 5.0
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_OTHER_SITE = "origin: this gateway serves no pages of other sites, unless --allow-origin names them"


class RefusingMiddleware:
    """Answers a request itself if `refusal`, of its scope and headers, returns an error."""

    def __init__(self, app: ASGIApp, refusal: Callable[[Scope, Headers], ApiError | None]) -> None:
        self._app = app
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refusal(scope, Headers(scope=scope))) is not None:
            await JSONResponse(error.body, error.status)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def wrong_origin(scope: Scope, headers: Headers, *, allowed: Collection[str], only_loopback: bool) -> ApiError | None:
    """Refuse a browser's request from a page of another site, unless that may call the API."""
    # DNS rebinding: a site can point its own name at 127.0.0.1, and its page then counts as of one origin with us.
    # The Host header still holds that name.
    host = headers.get("host", "").lower()
    parts = _HOST.fullmatch(host)
    if parts is None if host else only_loopback:
        return ApiError(403, "host: need a name or an address, and a port", code="wrong_host")
    if only_loopback and parts is not None and not is_loopback_host(parts[1].strip("[]")):
        return ApiError(403, "host: this gateway answers to localhost only", code="wrong_host")
    origin = headers.get("origin")
    if scope["path"].startswith(API_PATH) and not {origin, ANY_ORIGIN}.isdisjoint(allowed):
        return None
    return None if _is_own_page(scope, headers, host) else ApiError(403, _OTHER_SITE, code="wrong_origin")


def _is_own_page(scope: Scope, headers: Headers, host: str) -> bool:
    """Return whether a request is a page's of this gateway, or no page's, or the first of a visit to the page."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "none", "same-origin"):
        # Images and scripts of other sites have no Origin header; following a link to the page has none either.
        is_visit = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        return is_visit and origin is None and not scope["path"].startswith(ENDPOINTS)
    # A proxy with TLS in front may not say so, but the page's browser does.
    schemes = {scope["scheme"]} if site is None else {scope["scheme"], "https"}
    return origin is None or origin in {f"{scheme}://{host}" for scheme in schemes}


def wrong_key(scope: Scope, headers: Headers, *, api_key: str | None) -> ApiError | None:
    """Refuse a request without the API key, if there is one."""
    if api_key is None or not scope["path"].startswith(_PROTECTED):
        return None
    # Starlette decodes headers as Latin-1; encoding the key back gives the bytes that were sent. compare_digest takes
    # the same time wherever they differ.
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), api_key.strip().encode()):
        return None
    message = "api key is missing or wrong: send Authorization: Bearer KEY"
    return ApiError(401, message, "authentication_error", code="invalid_api_key")


class BodyLimitMiddleware:
    """Raises ApiError in the app where it reads a body that is too large, or where all bodies together are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held: Counter[str] = Counter()  # bytes by address, of requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        caller = str((scope.get("client") or ("",))[0])
        num_bytes = 0

        def check(size: int) -> None:
            if size > MAX_BODY_BYTES:
                raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB")
            if self._held[caller] > _MAX_HELD_BYTES // 2 or self._held.total() > _MAX_HELD_BYTES:
                message = "other requests' bodies fill the room that there is for them: try again later"
                raise ApiError(503, message, "server_error", code="overloaded", retry_after_s=_RETRY_S)

        async def counted() -> Message:
            nonlocal num_bytes
            # Checked twice: a declared length before anything is read, and what really comes, for chunked bodies.
            check(int(declared) if declared.isdecimal() and len(declared) < 20 else 0)
            message = await receive()
            size = len(message.get("body", b""))
            num_bytes += size
            self._held[caller] += size
            check(num_bytes)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held[caller] -= num_bytes
            self._held += Counter()  # drops those that hold nothing


def parsed_json(data: bytes) -> Any:  # Any: whatever JSON holds
    """Parse a request's body. Takes long for a large one. Raises ApiError."""
    # Counted before they become objects, each of which is much larger than its text.
    num_parts = sum(data.count(mark) for mark in b"{[:")
    if num_parts > MAX_PARTS or data.count(b",") > MAX_COMMAS:
        raise ApiError(400, f"the body has more than {MAX_PARTS} of {{, [ and :, or {MAX_COMMAS} commas")
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"body is not JSON: {error.msg.partition(':')[0]} at character {error.pos}") from None
    except (ValueError, RecursionError):  # not UTF-8, or a number of thousands of digits
        raise ApiError(400, "body: cannot be read as JSON in UTF-8, or is nested too deep") from None


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
