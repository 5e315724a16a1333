"""The chat's emulated link, which lives in an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from outrider_client.connection.emulated import EmulatedLink, emulated_link

T = TypeVar("T")


class ChatLink:
    """Use as `with ChatLink(profile, server) as link`, and connect to `link.address`. Raises UsageError for what cannot
    be emulated here."""

    def __init__(self, profile: str, server: str) -> None:
        self._making = emulated_link(profile, server)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outrider link", daemon=True)
        self._link: EmulatedLink

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._link = self._run(self._making.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._making.__aexit__(None, None, None))
        self._stop()

    @property
    def address(self) -> str:
        return self._link.address

    @property
    def said(self) -> str:
        return self._link.said

    def obey(self, order: str) -> None:
        """`cut`, `restore`, or a profile's name. Raises UsageError."""
        match order:
            case "cut":
                self._call(self._link.cut)
            case "restore":
                self._call(self._link.restore)
            case name:
                self._call(lambda: self._link.change(name))

    def _call(self, change: Callable[[], None]) -> None:
        async def called() -> None:
            change()

        self._run(called())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: what asyncio calls it
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
