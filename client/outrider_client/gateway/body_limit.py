"""How large a request may be. Nothing beyond that is read, whether its length was declared or not."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 8 * 2**20


class BodyLimit:
    """Around the app, which gets the error where it reads the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = _Counted(scope, receive) if scope["type"] == "http" else receive
        await self._app(scope, counted, send)


class _Counted:
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
