"""The rate limit of a stream: what passes at once, in which order the rest does, and what it all costs in the end."""

import asyncio

import pytest

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Finish, ServerTree, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.scheduling.request import RequestDone
from outrider_server.security.rate_limit import RateLimiter


class Purse:
    """Says how long each has to wait, and adds up."""

    def __init__(self, *waits: float) -> None:
        self.waits = list(waits)
        self.paid: list[int] = []

    def charge(self, num_rows: int) -> float:
        wait = self.waits.pop(0) if self.waits else 0.0
        if wait is None:
            raise Refusal(Reason.OVER_QUOTA, "no")
        self.paid.append(num_rows)
        return wait

    def settle(self, num_rows: int) -> None:
        self.paid.append(num_rows)


class Job:
    def __init__(self, seq: int) -> None:
        self.seq, self.is_stopped = seq, False


def draft(seq: int, context: int = 0, nodes: int = 0) -> Draft:
    return Draft(seq, 0, (1,) * context, 1, DraftTree.chain(range(nodes)))


async def test_without_a_rate_everything_passes_at_once():
    passed = []
    rate_limiter = RateLimiter(None, passed.append)
    for seq in range(3):
        rate_limiter.submit_or_wait(Job(seq), draft(seq), 10)
    rate_limiter.observe(0, RequestDone())
    rate_limiter.close()
    assert [request.seq for request in passed] == [0, 1, 2]


async def test_requests_pass_in_the_order_they_came_whatever_each_has_to_wait():
    passed, all_passed = [], asyncio.Event()

    def submit(request):
        passed.append(request.seq)
        if len(passed) == 5:
            all_passed.set()

    rate_limiter = RateLimiter(Purse(0.0, 0.03, 0.01, 0.0, 0.02), submit)
    for seq in range(5):
        rate_limiter.submit_or_wait(Job(seq), draft(seq), 10)
    assert passed == [0]
    await asyncio.wait_for(all_passed.wait(), 20)
    assert passed == [0, 1, 2, 3, 4]


async def test_what_was_cancelled_waits_no_longer():
    passed = []
    rate_limiter = RateLimiter(Purse(1000.0, 1000.0, 1000.0), passed.append)
    requests = [Job(seq) for seq in range(3)]
    for request in requests:
        rate_limiter.submit_or_wait(request, draft(request.seq), 10)
    requests[1].is_stopped = True
    rate_limiter.recheck()
    assert passed == []
    requests[0].is_stopped = True
    rate_limiter.recheck()
    assert passed == requests[:2]
    rate_limiter.close()


async def test_a_draft_costs_its_context_its_root_and_its_nodes():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), draft(1, context=7, nodes=4), 100)
    rate_limiter.observe(1, Verdict(1, (0, 1), 5))
    rate_limiter.observe(1, RequestDone())
    assert purse.paid == [12, 0]


async def test_a_decode_costs_what_it_came_to():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), Decode(1, 0, (1, 2), 3, 50), 20)
    assert purse.paid == [3 + 20]  # no more than there is room for
    for _ in range(4):
        rate_limiter.observe(1, Verdict(1, (), 9))
    rate_limiter.observe(1, Verdict(1, (), None, Finish.CANCELLED))
    rate_limiter.observe(1, RequestDone())
    assert sum(purse.paid) == 3 + 4


async def test_a_decode_with_server_trees_pays_for_their_nodes():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), Decode(1, 0, (), 3, 5, tree=ServerTree(2, 2, 6)), 20)
    rate_limiter.observe(1, Verdict(1, (), 9, tokens=(7, 8)))
    rate_limiter.observe(1, Verdict(1, (), 9, Finish.LIMIT, tokens=(7,)))
    rate_limiter.observe(1, RequestDone())
    assert sum(purse.paid) == 1 + 5 + 2 * 6


async def test_what_never_ran_costs_nothing_when_the_stream_ends():
    purse = Purse(0.0, 1000.0)
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), draft(1, context=9), 20)
    rate_limiter.submit_or_wait(Job(2), draft(2, context=99), 20)
    rate_limiter.close()
    rate_limiter.close()
    assert sum(purse.paid) == 10


async def test_a_pass_under_way_when_the_stream_ends_is_paid():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), Decode(1, 0, (), 3, 50, tree=ServerTree(2, 2, 6)), 100)
    rate_limiter.submit_or_wait(Job(2), draft(2, context=9, nodes=3), 100)
    rate_limiter.observe(1, Verdict(1, (), 9, tokens=(7, 8)))
    rate_limiter.close()
    assert sum(purse.paid) == (1 + 6 + 3) + 13  # what was paid ahead is back at once
    rate_limiter.observe(1, Verdict(1, (), 9, tokens=(7,)))
    rate_limiter.observe(1, RequestDone())
    rate_limiter.observe(2, Verdict(2, (0,), 9))
    rate_limiter.observe(2, RequestDone())
    rate_limiter.close()
    assert sum(purse.paid) == (1 + 6 + 3 + 6 + 2) + 13


async def test_a_verdict_on_its_way_when_the_stream_ends_is_paid_though_no_end_follows():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), Decode(1, 0, (), 3, 50, tree=ServerTree(2, 2, 6)), 100)
    rate_limiter.close()
    rate_limiter.observe(1, Verdict(1, (), 9, tokens=(7, 8)))
    assert sum(purse.paid) == 1 + 6 + 3
    rate_limiter.observe(1, RequestDone())
    rate_limiter.close()
    assert sum(purse.paid) == 1 + 6 + 3


async def test_a_tree_that_was_drafted_for_a_pass_that_was_cancelled_is_paid():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(1), Decode(1, 0, (), 3, 50, tree=ServerTree(2, 2, 6)), 100)
    rate_limiter.observe(1, Verdict(1, (), None, Finish.CANCELLED, draft_us=40))
    rate_limiter.observe(1, RequestDone())
    assert sum(purse.paid) == 1 + 6


async def test_a_refused_request_goes_nowhere():
    passed = []
    rate_limiter = RateLimiter(Purse(None), passed.append)
    with pytest.raises(Refusal):
        rate_limiter.submit_or_wait(Job(1), draft(1), 10)
    rate_limiter.close()
    assert passed == []


async def test_a_verdict_that_ends_the_text_within_its_draft_is_paid_too():
    purse = Purse()
    rate_limiter = RateLimiter(purse, lambda request: None)
    rate_limiter.submit_or_wait(Job(0), Decode(0, 0, (), 1, 50, tree=ServerTree(4, 4, 8)), 100)
    rate_limiter.observe(0, Verdict(0, (), None, Finish.EOS, tokens=(5, 2)))
    rate_limiter.observe(0, RequestDone())
    assert sum(purse.paid) == 1 + 8 + 2
