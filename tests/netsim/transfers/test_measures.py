"""Every measure against a virtual link of which the result can be computed."""

import asyncio
from dataclasses import replace

import pytest

from outrider_netsim.core.errors import EngineError
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.transfers.measures import take
from outrider_netsim.transfers.plan import TransferPlan, TransferTask
from outrider_netsim.transfers.virtual_ends import take_virtually
from outrider_netsim.virtual.clock import VirtualClock

DELAY_MS, RATE_BPS = 20.0, 8e6
LINK = Profile.symmetric("steady", Direction(DELAY_MS, rate_bps=RATE_BPS))
PLAN = TransferPlan(seconds=5, transfers=3, exchanges=200, replies=5, requests=4, cuts_s=(3,))
PING_MS = 2 * (DELAY_MS + 166 * 8 / RATE_BPS * 1000)  # 100 bytes and headers, both ways


def taken(measure, link=LINK, cut_s=0.0, plan=PLAN, seed=1):
    task = TransferTask(measure, cut_s)
    return take_virtually(task, plan.link(task, link), plan, seed)


def test_a_download_fills_the_rate_and_the_pings_beside_it_wait():
    found = taken("download")
    assert found["idle_rtt_ms"] == [pytest.approx(PING_MS, abs=0.5)] * len(found["idle_rtt_ms"])  # beside an ack
    (goodput,) = found["goodput_mbps"]
    assert 0.7 < goodput / (RATE_BPS / 1e6 * 1448 / 1514) <= 1.01
    assert len(found["loaded_rtt_ms"]) > 5
    assert min(found["loaded_rtt_ms"]) > PING_MS


def test_replies_take_their_round_trips_and_their_bytes_time():
    first, *later = taken("reply")["reply_ms"]
    assert [first, *later] == [pytest.approx(2 * DELAY_MS + 8 * 1514 * 8 / RATE_BPS * 1000, abs=1)] * 5


def test_transfers_after_a_pause_are_as_many_as_planned_and_no_quicker_than_the_rate():
    found = taken("after_idle")["after_idle_ms"]
    assert len(found) == 3
    assert min(found) > PING_MS + 150_000 * 8 / RATE_BPS * 1000


def test_lone_losses_stall_the_exchanges_that_lose_one():
    """200 at 4 %: none, or more than 30, once in 3,000."""
    found = taken("lone_loss")["exchange_ms"]
    stalled = [each for each in found if each > PING_MS + 150]
    assert len(found) == 200
    assert 0 < len(stalled) <= 30
    assert min(stalled) >= PING_MS + 200


def test_lone_losses_are_up_only_whatever_the_profile_loses():
    link = PLAN.link(TransferTask("lone_loss"), replace(LINK, down=replace(LINK.down, loss=0.2)))
    assert (link.up.loss, link.down.loss) == (PLAN.loss, 0.0)


def test_answers_after_a_cut_come_with_a_retransmission():
    """Requests begin 3, 2.625, 2.25 and 1.875 s before the restore; back-off at most doubles the wait."""
    found = taken("recovery", cut_s=3.0)["recovery_3s_ms"]
    assert len(found) == 4
    for waited_ms, begun_s in zip(found, (3, 2.625, 2.25, 1.875), strict=True):
        assert PING_MS / 2 < waited_ms < begun_s * 1000 + 700


class SilentEnds:
    """Ends of a link over which nothing is answered after the cut."""

    received_bytes = 0
    is_cut = False

    async def connect(self):
        return self

    async def exchange(self, request_bytes, reply_bytes):
        if self.is_cut:
            await asyncio.sleep(1e6)

    async def cut(self):
        self.is_cut = True

    async def restore(self):
        return asyncio.get_running_loop().time()


def test_a_request_that_is_never_answered_counts_as_a_minute():
    plan = replace(PLAN, requests=1)
    found = VirtualClock().run(take(TransferTask("recovery", 3.0), SilentEnds(), plan))
    assert found == {"recovery_3s_ms": [pytest.approx(60_000)]}


def test_a_dead_link_is_an_error():
    dead = replace(LINK, down=replace(LINK.down, loss=1.0))
    with pytest.raises(EngineError, match="reply: no connection within 180 s"):
        taken("reply", dead)


def test_a_plan_falls_into_plans_of_one_task_each():
    plan = replace(PLAN, cuts_s=(3.0, 8.0))
    assert len(plan.tasks) == 7
    for task in plan.tasks:
        assert plan.only(task).tasks == (task,)
    assert plan.only(TransferTask("lone_loss")).link(TransferTask("lone_loss"), LINK).up.loss == plan.loss
