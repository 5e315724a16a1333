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


async def test_answers_and_errors_come_from_the_thread_in_order_until_its_end(worker):
    assert await asyncio.gather(*(worker.run(lambda i=i: i) for i in range(5))) == list(range(5))
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(lambda: threading.current_thread().name) == "worker under test"
    worker.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await worker.run(lambda: 7)


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


def test_prepares_in_the_thread_and_stops_twice():
    names: list[str] = []
    worker = WorkerThread("prepared", lambda: names.append(threading.current_thread().name))
    worker.stop()
    worker.stop()
    assert names == ["prepared"]
