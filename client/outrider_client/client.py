"""The client without async: runs an AsyncClient on an event loop in a background thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from outrider_client.async_client import AsyncClient, Completion
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.transport import Transport
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event
from outrider_client.models.local_models import LocalModels, Prompt
from outrider_proto.frames import ServerDescription

T = TypeVar("T")


class Client:
    """The blocking counterpart of AsyncClient. Use as `with Client(config) as client`."""

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        models: LocalModels | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._client = AsyncClient(config, models=models, transport=transport)
        self._loop = asyncio.new_event_loop()
        # A daemon: a client that is never closed must not keep the process alive.
        self._thread = threading.Thread(target=self._loop.run_forever, name="outrider client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def link_state(self) -> LinkState:
        return self._client.link_state

    def describe(self) -> ServerDescription:
        return self._run(self._client.describe())

    def begin_conversation(self) -> None:
        """Start a new conversation; see AsyncClient. Not allowed while an answer is being written."""
        self._client.begin_conversation()

    def complete(self, prompt: Prompt, **overrides: Any) -> Completion:  # Any: see ClientConfig.for_answer
        """Return the whole answer; see AsyncClient.complete."""
        return self._run(self._client.complete(prompt, **overrides))

    def generate(self, prompt: Prompt, **overrides: Any) -> Iterator[Event]:  # Any: see ClientConfig.for_answer
        """Yield the answer as events; see AsyncClient.generate.

        Closing the iterator, or Ctrl-C while it waits, cancels the request and keeps the session.
        """
        events: SimpleQueue[Event | None] = SimpleQueue()
        pumping = self._run(self._start(prompt, overrides, events))
        try:
            while (event := events.get()) is not None:
                yield event
        except BaseException:
            self._loop.call_soon_threadsafe(pumping.cancel)
            # Drain until the sentinel: only then has the task ended and the client is free for the next request.
            while events.get() is not None:
                pass
            raise
        pumping.result()

    def close(self) -> None:
        """Close the session and stop the background thread. Safe to call twice."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(
        self, prompt: Prompt, overrides: dict[str, Any], events: SimpleQueue[Event | None]
    ) -> asyncio.Task[None]:
        pumping = asyncio.create_task(self._pump(prompt, overrides, events))
        # The sentinel comes from the callback, not from _pump: it must arrive when _pump fails or is cancelled, too.
        pumping.add_done_callback(lambda _: events.put(None))
        return pumping

    async def _pump(self, prompt: Prompt, overrides: dict[str, Any], events: SimpleQueue[Event | None]) -> None:
        async with contextlib.aclosing(self._client.generate(prompt, **overrides)) as answer:
            async for event in answer:
                events.put(event)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C interrupts only this thread; without the cancel the coroutine would run on in the other one.
            future.cancel()
            raise
