"""The rate of a key: bursts and jumps on a clock of the test's own; and of a stream: what passes at once, in
which order the rest does, and what it all costs in the end."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talk import Clock

from outrider_proto.frames import Decode, Draft, Finish, ServerTree, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.scheduling.reply_poster import RequestDone, RowsAgain
from outrider_server.security.gcra import Gcra
from outrider_server.security.principal import ANONYMOUS, Principal, Quota
from outrider_server.security.rate_limit import Quotas, QuotaUsage, RateLimiter

BURST = 1000  # rows that may be used at once, at 6000 a minute


class Payer:
    """A key of 6000 tokens a minute, and the streams that it opens."""

    def __init__(self, longest_wait_s: float = 1e9) -> None:
        self.clock = Clock()
        self.usage = QuotaUsage(6000, longest_wait_s, self.clock)
        self.passed = []

    def stream(self) -> RateLimiter:
        return RateLimiter(self.usage, lambda request: self.passed.append(request.seq))

    @property
    def paid(self) -> int:
        return round((self.usage._gcra._full_at - self.clock.now) * 100) if self.usage._gcra._full_at > 0 else 0


class Job:
    def __init__(self, seq: int) -> None:
        self.seq, self.is_stopped, self.num_drafted = seq, False, 0


def draft(seq: int, context: int = 0, nodes: int = 0) -> Draft:
    return Draft(seq, 0, (1,) * context, 1, DraftTree.chain(range(nodes)))


@pytest.fixture
def payer() -> Payer:
    return Payer()


async def test_requests_pass_in_the_order_they_came_whatever_each_has_to_wait():
    passed, all_passed = [], asyncio.Event()

    def submit(request):
        passed.append(request.seq)
        if len(passed) == 5:
            all_passed.set()

    usage = QuotaUsage(60_000, 1000.0, asyncio.get_running_loop().time)  # 1000 a second
    one, other = RateLimiter(usage, submit), RateLimiter(usage, submit)
    one.submit_or_wait(Job(0), draft(0, 10_000), 10)  # more than may be had at once: 1 ms for each row above
    for seq, rows in ((1, 29), (2, 9), (3, 0), (4, 19)):
        (one if seq % 2 else other).submit_or_wait(Job(seq), draft(seq, rows), 10)
    assert passed == [0]
    await asyncio.wait_for(all_passed.wait(), 20)
    assert passed == [0, 1, 2, 3, 4]


async def test_what_was_cancelled_waits_no_longer_and_costs_nothing(payer):
    stream, other = payer.stream(), payer.stream()
    other.submit_or_wait(Job(9), draft(9, BURST), 10)
    other.submit_or_wait(Job(10), draft(10), 10)
    requests = [Job(seq) for seq in range(3)]
    for request in requests:
        stream.submit_or_wait(request, draft(request.seq), 10)
    requests[1].is_stopped = True
    stream.recheck()
    assert payer.passed == [9]
    requests[0].is_stopped = True
    stream.recheck()
    assert payer.passed == [9, 0, 1]
    for seq in (0, 1):
        stream.observe(seq, RequestDone())
    assert payer.paid == BURST + 1
    stream.close()


async def test_a_long_decode_keeps_no_other_session_from_asking(payer):
    payer = Payer(longest_wait_s=30.0)
    one, other = payer.stream(), payer.stream()
    one.submit_or_wait(Job(1), Decode(1, 0, (), 3, 100_000), 200_000)
    other.submit_or_wait(Job(2), draft(2), 10)
    assert payer.passed == [1, 2]


async def test_a_pass_under_way_when_the_stream_ends_is_paid(payer):
    stream, job = payer.stream(), Job(1)
    stream.submit_or_wait(job, Decode(1, 0, (), 3, 50, tree=ServerTree(2, 2, 6)), 100)
    stream.submit_or_wait(Job(2), draft(2, context=9, nodes=3), 100)
    job.num_drafted = 6
    stream.observe(1, Verdict(1, (), 9, tokens=(7, 8)))
    stream.close()
    assert payer.paid == (1 + 6 + 3) + 13  # what was paid ahead is back at once
    job.num_drafted = 12
    stream.observe(1, Verdict(1, (), 9, tokens=(7,)))
    stream.observe(1, RequestDone())
    stream.observe(2, Verdict(2, (0,), 9))
    stream.observe(2, RequestDone())
    stream.close()
    assert payer.paid == (1 + 6 + 3 + 6 + 2) + 13


TREE = ServerTree(2, 2, 6)
CANCELLED = Verdict(1, (), None, Finish.CANCELLED, draft_us=40)
COSTS = {
    "a draft: context, root and nodes": (draft(1, 7, 4), [(0, Verdict(1, (0, 1), 5))], 12),
    "a stale draft: one row": (draft(1, nodes=60), [(0, Verdict(1, (), None, stale=True))], 1),
    "feature rows that are sent again": (draft(1, nodes=3), [(0, RowsAgain(700))], 704),
    "a decode: what it came to": (Decode(1, 0, (1, 2), 3, 50), [(0, Verdict(1, (), 9))] * 4 + [(0, CANCELLED)], 3 + 4),
    "what the server drafted": (
        Decode(1, 0, (), 3, 5, tree=TREE),
        [(9, Verdict(1, (), 9, tokens=(7, 8))), (16, Verdict(1, (), 9, Finish.LIMIT, tokens=(7,)))],
        1 + 5 + 16,
    ),
    "and for a pass that was cancelled": (Decode(1, 0, (), 3, 50, tree=TREE), [(6, CANCELLED)], 1 + 6),
    "and where the text ends in it": (
        Decode(1, 0, (), 1, 50, tree=TREE),
        [(8, Verdict(1, (), None, Finish.EOS, tokens=(5, 2)))],
        1 + 8 + 2,
    ),
}


@pytest.mark.parametrize(("frame", "replies", "paid"), COSTS.values(), ids=COSTS)
async def test_what_a_request_costs_in_the_end(payer, frame, replies, paid):
    stream, job = payer.stream(), Job(1)
    stream.submit_or_wait(job, frame, 20)
    for job.num_drafted, reply in replies:
        stream.observe(1, reply)
    stream.observe(1, RequestDone())
    assert payer.paid == paid


@given(st.lists(st.tuples(st.floats(0.01, 300), st.floats(0, 3)), max_size=60))
def test_who_waits_as_told_never_gets_more_than_rate_burst_and_one_cost(steps):
    rate, now, spent, largest = Gcra(rate=10, burst=20), 0.0, 0.0, 0.0
    for cost, pause in steps:
        now += pause
        now += rate.wait_s(now) + 1e-9
        rate.charge(cost, now)
        spent, largest = spent + cost, max(largest, cost)
        assert spent <= 10 * now + 20 + largest + 1e-3


@given(st.lists(st.floats(-1e6, 0), min_size=1, max_size=10))
def test_a_clock_that_jumps_back_earns_nothing_and_takes_nothing(jumps):
    rate, now = Gcra(rate=10, burst=10), 0.0
    rate.charge(100, now)
    for jump in jumps:
        now += jump
        assert rate.wait_s(now) == pytest.approx(9, abs=1e-3)


def test_a_clock_that_jumps_ahead_brings_one_burst_and_no_more():
    rate = Gcra(rate=10, burst=10)
    rate.charge(10, 0)
    rate.charge(10, 1e9)
    rate.charge(10, 1e9)
    assert rate.wait_s(1e9) == pytest.approx(1)


def test_sessions_of_one_payer_share_its_rate_and_others_have_their_own():
    allowances = Quotas(30, Clock())
    alice, bob = (Principal(name, quota=Quota(tokens_per_minute=60)) for name in ("alice", "bob"))
    assert allowances.of(alice) is allowances.of(alice)
    assert allowances.of(alice) is not allowances.of(bob)
    assert allowances.of(ANONYMOUS) is None
    richer = Principal("alice", quota=Quota(tokens_per_minute=120))
    assert allowances.of(richer).tokens_per_minute == 120
