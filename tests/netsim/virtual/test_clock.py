"""Virtual time: events in order, jumps instead of sleeping, and real waiting for real work."""

import asyncio
import threading
import time

import pytest

from outrider_netsim.virtual.clock import StandstillError, VirtualClock


def test_events_happen_in_the_order_of_their_times_then_of_planning():
    clock, seen = VirtualClock(), []
    for name, when in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
        clock.call_at(when, lambda name=name: seen.append((clock.now, name)))
    clock.run_until(1.5)
    assert (clock.now, seen) == (1.5, [(1.0, "a"), (1.0, "b")])
    clock.call_at(0.5, lambda: seen.append((clock.now, "late")))
    clock.run_until(2.0)
    assert seen[2:] == [(1.5, "late"), (2.0, "c"), (2.0, "d")]


def test_sleeping_takes_no_time_and_timeouts_come_at_theirs():
    clock = VirtualClock()

    async def program():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(s, s)) for s in (3600.0, 0.25, 7.0)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        return [task.result() for task in tasks]

    assert clock.run(program()) == [3600.0, 0.25, 7.0]
    assert clock.now == pytest.approx(3610)  # the suite's own timeout would not wait for that


def test_the_clocks_events_and_the_loops_timers_interleave():
    clock, seen = VirtualClock(), []
    for when in (1.0, 2.0, 3.0):
        clock.call_at(when, lambda when=when: seen.append(("event", when)))

    async def program():
        for _ in range(2):
            await asyncio.sleep(1.25)
            seen.append(("timer", clock.now))

    clock.run(program())
    assert seen == [("event", 1.0), ("timer", 1.25), ("event", 2.0), ("timer", 2.5)]


def test_a_timer_that_an_event_sets_comes_before_later_events():
    clock, seen = VirtualClock(), []

    async def program():
        loop = asyncio.get_running_loop()
        clock.call_at(1.0, lambda: loop.call_later(1.0, lambda: seen.append(("timer", clock.now))))
        clock.call_at(3.0, lambda: seen.append(("event", clock.now)))
        await asyncio.sleep(4)

    clock.run(program())
    assert seen == [("timer", 2.0), ("event", 3.0)]


def test_time_stands_still_while_a_thread_works():
    clock = VirtualClock()
    release = threading.Event()

    async def program():
        timer = asyncio.create_task(asyncio.sleep(1000))
        threading.Timer(0.05, release.set).start()
        assert await asyncio.to_thread(release.wait, 30)
        in_thread = clock.now
        await timer
        return in_thread

    assert clock.run(program()) == 0.0
    assert clock.now == 1000


def test_work_that_the_loop_cannot_see_is_announced():
    clock = VirtualClock()

    async def program():
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def elsewhere():
            time.sleep(0.02)
            loop.call_soon_threadsafe(done.set_result, "done")

        with clock.busy():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            async with asyncio.timeout(5):  # of virtual time, which does not pass
                result = await done
        thread.join()
        return result, clock.now

    assert clock.run(program()) == ("done", 0.0)


def test_waiting_for_nothing_is_an_error_not_a_hang():
    clock = VirtualClock()
    clock.call_at(2.5, lambda: None)
    with pytest.raises(StandstillError, match=r"stands still at 2\.5 s"):
        clock.run(asyncio.Event().wait())
