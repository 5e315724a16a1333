"""A clock of events that keeps up with an event loop; here with one whose time jumps."""

import asyncio

import pytest

from outrider_netsim.engines.link_clock import HALF_TICK_S, LinkClock
from outrider_netsim.virtual.clock import VirtualClock


def test_events_run_at_their_times_and_lead_to_others():
    async def program():
        loop, clock, seen = asyncio.get_running_loop(), LinkClock(), []

        def tell():
            seen.append((clock.now, loop.time()))
            if len(seen) < 3:
                clock.call_at(clock.now + 0.25, tell)

        await asyncio.sleep(5)
        clock.start()
        with clock.present():
            clock.call_at(1.0, tell)
        await asyncio.sleep(3)
        return seen

    seen = VirtualClock().run(program())
    assert [now for now, _ in seen] == [1.0, 1.25, 1.5]
    assert [real for _, real in seen] == pytest.approx([6.0, 6.25, 6.5], abs=HALF_TICK_S * 1.01)


def test_a_late_loop_runs_everything_that_was_due_at_its_own_time_first():
    async def program():
        clock, seen = LinkClock(), []
        clock.start()
        clock.call_at(0.1, lambda: seen.append(clock.now))  # planned by nothing: as if the loop had been busy
        clock.call_at(0.2, lambda: seen.append(clock.now))
        await asyncio.sleep(1)
        assert not seen
        with clock.present():
            assert seen == [0.1, 0.2]
            assert clock.now == pytest.approx(1, abs=0.001)

    VirtualClock().run(program())
