"""Callbacks run on the event loop in order, and one wake-up serves all that are put in together."""

import asyncio
import threading

from outrider_server.scheduling.callback_queue import CallbackQueue


class CountingLoop:
    """Counts wake-ups and runs their callbacks when told to."""

    def __init__(self) -> None:
        self.waking: list = []

    def call_soon_threadsafe(self, callback) -> None:
        self.waking.append(callback)

    def run(self) -> None:
        waking, self.waking = self.waking, []
        for callback in waking:
            callback()


def test_what_is_put_in_while_held_wakes_the_loop_once_at_the_end():
    loop, seen = CountingLoop(), []
    queue = CallbackQueue(loop)
    with queue.held():
        for number in range(3):
            queue.put(lambda number=number: seen.append(number))
        assert not loop.waking
    assert len(loop.waking) == 1
    loop.run()
    assert seen == [0, 1, 2]
    with queue.held():
        pass
    assert not loop.waking


def test_an_error_while_held_keeps_no_callback_back():
    loop, seen = CountingLoop(), []
    queue = CallbackQueue(loop)
    try:
        with queue.held():
            queue.put(lambda: seen.append(1))
            raise ValueError
    except ValueError:
        pass
    loop.run()
    assert seen == [1]


def test_callbacks_from_a_thread_run_on_the_loop():
    async def ride() -> list[int]:
        queue, seen, done = CallbackQueue(asyncio.get_running_loop()), [], asyncio.Event()

        def work() -> None:
            with queue.held():
                queue.put(lambda: seen.append(1))
                queue.put(lambda: seen.append(2))
            queue.put(done.set)

        thread = threading.Thread(target=work)
        thread.start()
        await done.wait()
        thread.join()
        return seen

    assert asyncio.run(ride()) == [1, 2]
