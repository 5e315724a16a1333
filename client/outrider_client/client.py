"""The client without async: runs an AsyncClient on an event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Coroutine, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from outrider_client.async_client import CLOSED, SESSIONS, AsyncClient, Completion
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.transport import Transport
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event
from outrider_client.models.local_models import LocalModels, Prompt
from outrider_proto.errors import UsageError
from outrider_proto.frames import ServerDescription

T = TypeVar("T")
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """The blocking counterpart of AsyncClient, for any number of threads: `with Client("HOST:PORT") as client`."""

    def __init__(
        self,
        config: ClientConfig | str | None = None,
        *,
        models: LocalModels | None = None,
        transport: Transport | None = None,
        sessions: int = SESSIONS,
    ) -> None:
        self._client = AsyncClient(config, models=models, transport=transport, sessions=sessions)
        self._loop = asyncio.new_event_loop()
        # A daemon: a client that is never closed must not keep the process alive.
        self._thread = threading.Thread(target=self._loop.run_forever, name="outrider client", daemon=True)
        self._thread.start()
        self._closing = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        _open_clients.add(self)

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
        """Start a new conversation; see AsyncClient."""
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
            if self._is_forked:
                raise
            with contextlib.suppress(RuntimeError):  # the client is closed, and its answers have ended
                self._loop.call_soon_threadsafe(pumping.cancel)
            # Drain until the sentinel: only then has the task ended and its session is free for the next request.
            while events.get() is not None:
                pass
            raise
        if pumping.cancelled():
            raise UsageError(CLOSED)
        pumping.result()

    def close(self) -> None:
        """End what is under way, close the sessions and stop the background thread. Safe to call twice."""
        if self._is_forked:
            return
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            closing = asyncio.run_coroutine_threadsafe(self._end_all(), self._loop)
        closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(
        self, prompt: Prompt, overrides: dict[str, Any], events: SimpleQueue[Event | None]
    ) -> asyncio.Task[None]:
        pumping = asyncio.create_task(self._pump(prompt, overrides, events))
        pumping.add_done_callback(lambda done: _put_end(done, events))
        return pumping

    async def _pump(self, prompt: Prompt, overrides: dict[str, Any], events: SimpleQueue[Event | None]) -> None:
        async with contextlib.aclosing(self._client.generate(prompt, **overrides)) as answer:
            async for event in answer:
                events.put(event)

    async def _end_all(self) -> None:
        await self._client.close()
        # Only now: before, this would cancel what the session says goodbye with, too. Calls that other threads still
        # wait for end here, and the loop may stop only after them.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @property
    def _is_forked(self) -> bool:
        """Return whether this process is a fork, without the thread that everything waits for."""
        return os.getpid() != self._process

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._is_forked:
            coroutine.close()
            raise UsageError("this client belongs to the process that made it: start others by spawn, not fork")
        # Under the lock: a call that close() does not see would wait for a loop that has stopped.
        with self._closing:
            if self._is_closed:
                coroutine.close()
                raise UsageError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as cancelled:
            raise UsageError(CLOSED) from cancelled
        except BaseException:
            # Ctrl-C interrupts only this thread; without the cancel the coroutine would run on in the other one.
            future.cancel()
            raise


def _put_end(pumping: asyncio.Task[None], events: SimpleQueue[Event | None]) -> None:
    """Put the sentinel: here and not in _pump, since it must arrive when that fails or is cancelled, too."""
    if not pumping.cancelled():
        pumping.exception()  # retrieved, or asyncio logs it where nobody reads the answer to its end
    events.put(None)


@atexit.register
def _close_all() -> None:
    """Close what a script leaves open: a generator that is finalized later would wait for a thread that is gone."""
    for client in list(_open_clients):
        with contextlib.suppress(Exception):
            client.close()
