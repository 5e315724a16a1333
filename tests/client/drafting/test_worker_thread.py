"""Jobs in a thread, answered on the loop."""

import asyncio
import threading

import pytest

from outrider_client.drafting.drafting_thread import WorkerThread


@pytest.fixture
def worker():
    worker = WorkerThread("worker under test")
    yield worker
    worker.stop()


def test_cancelling_the_wait_and_closing_the_loop_leave_the_thread_working(worker):
    begun, go_on = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        go_on.wait()

    async def leave(*, is_awaited: bool) -> None:
        waiting = asyncio.create_task(worker.run(job))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        if is_awaited:
            with pytest.raises(asyncio.CancelledError):
                await waiting

    for is_awaited in (True, False):
        begun.clear()
        go_on.clear()
        asyncio.run(leave(is_awaited=is_awaited))
        go_on.set()
        assert asyncio.run(worker.run(lambda: 7)) == 7
