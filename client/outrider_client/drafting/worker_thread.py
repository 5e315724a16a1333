"""One thread that works for an event loop. An executor's way there and back is half as long again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class WorkerThread:
    """Jobs run one after another, in the order in which they came. Used from one event loop."""

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._prepare = prepare
        self._stopped = False
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Whoever is cancelled meanwhile only stops waiting: the work is still done."""
        if self._stopped:
            raise RuntimeError("the worker has been stopped")
        job = _Job(work, asyncio.get_running_loop())
        self._jobs.put(job)  # type: ignore[arg-type] # a job of anything is a job
        return await job.answer

    def stop(self) -> None:
        """End after the jobs given, and wait for that. Safe to call twice."""
        self._stopped = True
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        self._prepare()
        while (job := self._jobs.get()) is not None:
            job.do()


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[T] = loop.create_future()
        self._work = work
        self._loop = loop

    def do(self) -> None:
        try:
            result = self._work()
        except BaseException as error:
            self._tell(self._fail, error)
        else:
            self._tell(self._succeed, result)

    def _tell(self, how: Callable[..., None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(how, what)

    def _succeed(self, result: T) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
