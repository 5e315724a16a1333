"""The chat's emulated link. It runs in an event loop of its own, since the chat blocks while it reads a line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outrider_client.connection.emulated import EmulatedLink, emulated_link


@dataclass(frozen=True, slots=True)
class ChatLink:
    """A running link: connect to `emulated.address`. `run` runs a coroutine in its event loop."""

    emulated: EmulatedLink
    run: Callable[[Coroutine[Any, Any, Any]], Any]  # Any: as asyncio declares it

    def change(self, to: str) -> None:
        """Cut or restore the link, or give it the profile of that name. Raises UsageError."""

        # On the link's own loop: its state is not safe to change from this thread.
        async def on_loop() -> None:
            match to:
                case "cut":
                    self.emulated.cut()
                case "restore":
                    self.emulated.restore()
                case profile:
                    self.emulated.change(profile)

        self.run(on_loop())


@contextmanager
def chat_link(profile: str, server: str) -> Iterator[ChatLink]:
    """Emulate a link to `server`. Raises UsageError if this machine cannot."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="outrider link", daemon=True)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    # Entered in one task and left in another: nothing inside may span the two, such as asyncio.timeout.
    opening = emulated_link(profile, server)
    try:
        emulated = run(opening.__aenter__())
        try:
            yield ChatLink(emulated, run)
        finally:
            run(opening.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
