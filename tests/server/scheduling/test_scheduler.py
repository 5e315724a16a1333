"""The plan of a pass: it keeps the budget, starves no payer, wastes no room, and gives no more to who asks for more."""

import math
from collections import Counter
from itertools import count, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider_server.scheduling.scheduler import SHORT_CONTEXT, Scheduler, SchedulingRequest

LARGEST = 256  # rows of a draft
DRAFT = st.tuples(st.integers(0, SHORT_CONTEXT), st.integers(1, LARGEST - SHORT_CONTEXT))
PREFILL = st.tuples(st.integers(SHORT_CONTEXT + 1, 700), st.integers(1, LARGEST))
CROWD = st.lists(st.tuples(st.integers(0, 4), DRAFT | PREFILL), min_size=1, max_size=12)
BUDGETS = st.integers(20, 1200)
CHUNKS = st.integers(20, 600)


def crowd(members) -> list[SchedulingRequest]:
    return [SchedulingRequest(payer, context, rest, since) for since, (payer, (context, rest)) in enumerate(members)]


def left_over(requests: list[SchedulingRequest], planned: list[int], now: float) -> list[SchedulingRequest]:
    """What waits after a pass: those that did not run, and what is left of a prefill."""
    return [
        request if not rows else SchedulingRequest(request.payer, request.context - rows, request.rest, now + i / 100)
        for i, (request, rows) in enumerate(zip(requests, planned, strict=True))
        if rows < request.rows
    ]


def kind_of(request: SchedulingRequest) -> tuple[object, bool]:
    return request.payer, request.is_draft


def passes(scheduler, requests: list[SchedulingRequest]):
    """Run pass after pass until no request waits."""
    for now in count(1000):
        if not requests:
            return
        planned = scheduler.plan(requests)
        yield requests, planned
        requests = left_over(requests, planned, now)


OWED = [(0, (0, 1)), (4, (34, 38)), (0, (39, 6)), (0, (33, 31)), (0, (322, 101)), (0, (309, 127))]


@given(CROWD, BUDGETS, CHUNKS)
@example(OWED, 130, 78)  # prefill is owed its share when none is left, and the last draft exceeds the budget
def test_a_pass_keeps_budget_and_order_and_leaves_no_room_that_somebody_could_use(members, budget, chunk):
    """And everything runs in the end, no row twice; of a payer and a kind, requests begin as they came."""
    all_rows, num_run, num_passes = sum(request.rows for request in crowd(members)), 0, 0
    for requests, planned in passes(Scheduler(budget, chunk), crowd(members)):
        num_run, num_passes, room = num_run + sum(planned), num_passes + 1, budget - sum(planned)
        assert any(planned)
        assert room >= 0 or [rows for rows in planned if rows] == [max(planned)]  # alone
        for request, rows in zip(requests, planned, strict=True):
            assert rows in (0, request.rows) or (not request.is_draft and rows <= min(chunk, request.context))
        for kind in {(request.payer, request.is_draft) for request in requests}:
            line = sorted(
                ((request, rows) for request, rows in zip(requests, planned, strict=True) if kind_of(request) == kind),
                key=lambda pair: (pair[0].since, pair[1] > 0),
            )
            ran = [rows > 0 for _, rows in line]
            assert ran == sorted(ran, reverse=True)
            oldest = next((request for request, rows in line if not rows), None)
            assert oldest is None or oldest.part(room if oldest.is_draft else min(room, chunk)) == 0
    assert num_run == all_rows
    assert num_passes <= all_rows


class Clients:
    """Each has so many sessions, each of which sends its next draft as soon as it has a verdict."""

    def __init__(self, clients: list[tuple[int, int]]) -> None:
        requests = [[SchedulingRequest(payer, 0, rows, 0)] * sessions for payer, (sessions, rows) in enumerate(clients)]
        self.waiting = [request for of_client in requests for request in of_client]
        self.rows: Counter = Counter()
        self.longest_wait = 0

    def run(self, scheduler, num_passes: int) -> None:
        for now in range(1, num_passes + 1):
            planned = scheduler.plan(self.waiting)
            for i, rows in enumerate(planned):
                request = self.waiting[i]
                if rows:
                    self.longest_wait = max(self.longest_wait, now - int(request.since))
                    self.waiting[i] = SchedulingRequest(request.payer, 0, request.rest, now)
                    self.rows[request.payer] += rows


@settings(max_examples=25)
@given(st.lists(st.integers(1, LARGEST), min_size=2, max_size=4), st.integers(LARGEST, 600))
def test_clients_who_always_wait_get_the_same_but_for_a_bound(sizes, budget):
    """The deficit is bounded by the largest drafts, however long it goes on."""
    clients = Clients([(budget // size + 1, size) for size in sizes])  # always one left over
    scheduler = Scheduler(budget, 512)
    for _ in range(5):
        clients.run(scheduler, 10)
        served = [clients.rows[payer] for payer in range(len(sizes))]
        assert max(served) - min(served) <= 3 * max(sizes)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, LARGEST)), min_size=1, max_size=6), st.integers(1, 1200))
def test_no_draft_waits_for_ever(clients, budget):
    """A round in which everybody who was there has run takes at most a pass for each, and the due ones come first:
    nobody is passed over by more than its own rows of each of the others."""
    crowd = Clients(clients)
    crowd.run(Scheduler(budget, 512), 100)
    largest = max(rows for _, rows in clients)
    smallest = min(rows for _, rows in clients)
    sessions = sum(sessions for sessions, _ in clients)
    waited = max(100 - int(request.since) for request in crowd.waiting)
    assert max(crowd.longest_wait, waited) <= 2 + sessions * (1 + largest // smallest)


def test_newcomers_do_not_pass_by_those_who_wait():
    """Small drafts of ever new sessions, more than a pass takes: a large one runs all the same."""
    scheduler = Scheduler(300, 512)
    large, names, since = SchedulingRequest("large", 0, LARGEST, 0), count(), count(1)
    for number in range(100):
        planned = scheduler.plan([large, *(SchedulingRequest(next(names), 0, 5, next(since)) for _ in range(100))])
        if planned[0]:
            assert number <= LARGEST * 101 / 300 + 1  # of each pass an equal share is its own
            return
    raise AssertionError("it never ran")


@pytest.mark.parametrize("budget", [1, 60, 256, 1024])
def test_prefill_never_starves_behind_drafts(budget):
    """Nor is it passed over twice in a row, where drafts are as large as the budget."""
    scheduler, given_rows = Scheduler(budget, 512), []
    for now in range(40):
        drafts = [SchedulingRequest(f"draft {i}", 0, min(budget, LARGEST), now) for i in range(20)]
        *of_drafts, rows = scheduler.plan([*drafts, SchedulingRequest("long", 5000, 1, 0)])
        given_rows.append(rows)
        assert rows >= max(budget // 4, 1) or sum(of_drafts) == budget
    assert all(max(two) >= max(budget // 4, 1) for two in pairwise(given_rows))


def test_long_contexts_of_several_share_what_drafts_leave():
    scheduler = Scheduler(1000, 300)
    requests = [SchedulingRequest("a", 0, 100, 0), *(SchedulingRequest(name, 2000, 1, 0) for name in "bcd")]
    assert scheduler.plan(requests) == [100, 300, 300, 300]
    assert Scheduler(500, 300).plan(requests) == [100, 300, 100, 0]


def slow_machine() -> Scheduler:
    """Passes take 5 ms and 0.1 ms a row: those of 17 rows 6.7 ms, those of 84 twice as long."""
    scheduler = Scheduler(1024, 512)
    for rows in (17, 34, 300, 17, 34):
        scheduler.learn(rows, 5e-3 + 1e-4 * rows, 0.0)
    return scheduler


def draft(payer: str = "a", since: float = 0.0, *, grows: bool = False) -> SchedulingRequest:
    return SchedulingRequest(payer, 0, 17, since, grows)


def long(payer: str = "long", since: float = 0.0) -> SchedulingRequest:
    return SchedulingRequest(payer, 5000, 1, since)


def test_prefill_makes_a_pass_twice_as_long_for_those_who_draft():
    scheduler = slow_machine()
    assert scheduler.plan([draft(), long()]) == [17, 84 - 17]
    scheduler.learn(84, 13.4e-3, 1.0)
    assert scheduler.plan([long(since=1.0)]) == [84]  # the verdict travels, and the next draft will come


def test_a_draft_is_waited_for_as_long_as_the_last_one_took_to_come_and_as_long_again():
    scheduler = slow_machine()
    scheduler.plan([draft(since=0.9)])
    scheduler.learn(17, 6.7e-3, 1.0)
    scheduler.plan([draft(since=1.05)])  # 50 ms after its verdict
    scheduler.learn(17, 6.7e-3, 1.1)
    assert scheduler.plan([long(since=1.1)]) == [84]
    scheduler.learn(84, 13.4e-3, 1.19)
    assert scheduler.plan([long(since=1.1)]) == [84]
    scheduler.learn(84, 13.4e-3, 1.21)
    assert scheduler.plan([long(since=1.1)]) == [450]


def test_trees_that_the_server_grows_may_double_the_pass_of_those_who_bring_their_own():
    scheduler = slow_machine()
    growing = [draft("a", grows=True)]
    # 17 rows take 6.7 ms here and 84 twice as long.
    assert scheduler.rows_beside(growing, [draft("b")], 0.0) == pytest.approx(84 - 17)
    scheduler.plan([draft("a", grows=True), draft("b"), draft("c", grows=True)])
    scheduler.learn(51, 10.1e-3, 1.0)
    assert scheduler.rows_beside(growing, [], 1.03) == pytest.approx(84 - 17)
    assert scheduler.rows_beside(growing, [draft("b")], 1.03) == pytest.approx(84 - 17)
    assert scheduler.rows_beside([*growing, draft("b", grows=True)], [], 1.03) == math.inf  # only c, who brings none
    assert scheduler.rows_beside(growing, [long("d")], 1.1) == math.inf
