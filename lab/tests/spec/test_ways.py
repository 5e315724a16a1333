"""Ways of answering end after the step in hand when they are cancelled."""

import asyncio
import threading

import pytest

from outrider_lab.spec.ways import in_thread


async def test_a_cancelled_thread_ends_at_its_next_check():
    begun, ended = threading.Event(), threading.Event()

    def run(check):
        try:
            while True:
                begun.set()
                check()
        finally:
            ended.set()

    task = asyncio.create_task(in_thread(run))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 60)
