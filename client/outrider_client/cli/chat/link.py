"""The chat's emulated link. It runs in an event loop of its own, since the chat blocks while it reads a line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from outrider_client.connection.emulated import EmulatedLink, emulated_link

T = TypeVar("T")


class ChatLink:
    """Emulates a link while it is entered; connect to `address`. Raises UsageError if this machine cannot."""

    def __init__(self, profile: str, server: str) -> None:
        # Entered in one task and left in another: nothing inside may span the two, such as asyncio.timeout.
        self._opening = emulated_link(profile, server)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outrider link", daemon=True)
        self._link: EmulatedLink

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._link = self._run(self._opening.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._opening.__aexit__(None, None, None))
        self._stop()

    @property
    def address(self) -> str:
        return self._link.address

    @property
    def description(self) -> str:
        return self._link.summary

    def change(self, to: str) -> None:
        """Cut or restore the link, or give it the profile of that name. Raises UsageError."""
        match to:
            case "cut":
                self._call(self._link.cut)
            case "restore":
                self._call(self._link.restore)
            case name:
                self._call(lambda: self._link.change(name))

    def _call(self, change: Callable[[], None]) -> None:
        # On the link's own loop: its state is not safe to change from this thread.
        async def on_loop() -> None:
            change()

        self._run(on_loop())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: as asyncio declares it
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
