"""Jobs in a thread, answered on the loop."""

import asyncio
import threading

import pytest

from outrider_client.drafting.worker_thread import WorkerThread


@pytest.fixture
def worker():
    worker = WorkerThread("worker under test")
    yield worker
    worker.stop()


async def test_answers_come_from_the_thread_in_order(worker):
    assert await asyncio.gather(*(worker.run(lambda i=i: i) for i in range(5))) == list(range(5))
    assert await worker.run(lambda: threading.current_thread().name) == "worker under test"


async def test_errors_reach_the_caller_and_the_thread_goes_on(worker):
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(lambda: 7) == 7


async def test_cancelling_the_wait_leaves_the_thread_working(worker):
    begun, go_on = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        go_on.wait()

    waiting = asyncio.create_task(worker.run(job))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert await worker.run(lambda: 7) == 7


def test_a_closed_loop_does_no_harm(worker):
    begun, go_on = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        go_on.wait()

    async def leave() -> None:
        waiting = asyncio.create_task(worker.run(job))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(worker.run(lambda: 7)) == 7


def test_prepares_in_the_thread_and_stops_twice():
    names: list[str] = []
    worker = WorkerThread("prepared", lambda: names.append(threading.current_thread().name))
    worker.stop()
    worker.stop()
    assert names == ["prepared"]


async def test_after_its_end_it_takes_nothing_more(worker):
    worker.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await worker.run(lambda: 7)
