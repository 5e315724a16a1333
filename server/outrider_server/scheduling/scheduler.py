"""The plan of the next pass: which requests run, with how many rows. Data in, plan out: no clock, threads or tensors.

    budget  |------------ drafts ------------|-- prefill --|   Drafts first; but while prefill waits a quarter is its
                                                               own, and what drafts leave it takes too: as long as
                                                               nobody drafts whose verdicts would take long by that.

While others draft, prefill may make a pass twice as long as their drafts alone, but no longer (stall-free batching;
Sarathi-Serve, arXiv 2403.02310). So it does while their verdicts travel: the next draft would wait for the pass. The
same holds for trees that the server grows, beside clients who bring their own.

Of each kind the payers get equal shares, or as much less as they want (weighted fair queueing with equal weights;
Demers, Keshav and Shenker 1989):

    level       rows of an equal share in all passes so far, for a payer who always wanted more
    account     rows that a payer has had, at least the level when it comes back: no credit for time away.
                level - account is its deficit
    due         account + rows of its oldest request; the payer with the smallest goes first

So a client with 60 sessions, or with large trees, gets no more than the others leave. Deficit round robin would share
as well, but a small draft would have to wait for its turn in a round of large ones.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias, assert_never

from outrider_proto.tree import MAX_NODES
from outrider_server.config.config import SchedulerName
from outrider_server.scheduling.step_stats import PassTime

Payer: TypeAlias = Hashable
SHORT_CONTEXT = 32  # rows: a request with no more context is a draft, not prefill
_PREFILL_SHARE = 4  # one part in so many of the budget
_SHORT_ROWS = MAX_NODES + 1
_STRETCH = 2.0  # times as long as their drafts alone may passes be for those who draft
_LEAST_BESIDE = 32  # rows of a pass all the same, of prefill or of the server's own drafts
_AWAY_S = 0.02  # after a payer's first draft in which the next one is expected
_LONGEST_AWAY_S = 1.0
_LATELY_S = 10.0  # after its last draft in which a payer may be back
_WORTH = 0.9  # of a pass's time for its rows: where somebody else may come, a longer pass of prompts saves too little
_LEAST_WORTH = 384  # rows of it all the same: what a row costs may be known badly


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """The rows that a session's first request would run: `context`, then `rest` (root and tree) in one piece.

    It has been waiting since `since`, in seconds of any clock. `grows`: its trees are the server's own drafts.
    """

    payer: Payer
    context: int
    rest: int
    since: float
    grows: bool = False

    @property
    def rows(self) -> int:
        return self.context + self.rest

    @property
    def is_draft(self) -> bool:
        return self.context <= SHORT_CONTEXT

    def part(self, room: int) -> int:
        """Return the rows it can run within `room`: of prefill the first ones, of a draft all or none."""
        if self.rows <= room:
            return self.rows
        return 0 if self.is_draft else max(min(self.context, room), 0)


class Scheduler(Protocol):
    def plan(self, requests: Sequence[SchedulingRequest]) -> list[int]:
        """Return rows for each request, 0 where it waits; at least one runs where there are any."""
        ...

    def learn(self, rows: int, seconds: float, ended: float) -> None:
        """Note how long a pass of so many rows took, and when it ended, on the clock of the requests."""
        ...

    def rows_beside(
        self, growing: Sequence[SchedulingRequest], others: Sequence[SchedulingRequest], now: float
    ) -> float | None:
        """Return how many rows those whose drafts the server grows may have in the next pass, for the sake of others.

        `others`: the rest of the requests that are ready. None: nobody else drafts now, or will soon again.
        """
        ...


def new_scheduler(name: SchedulerName, budget: int, chunk: int) -> Scheduler:
    match name:
        case "fair":
            return FairScheduler(budget, chunk)
        case "plain":
            return PlainScheduler(chunk)
        case _:
            assert_never(name)


class PlainScheduler:
    """Runs every short request whole; long ones share `chunk` rows, first come first served."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    def plan(self, requests: Sequence[SchedulingRequest]) -> list[int]:
        room = self._chunk
        planned = []
        for request in requests:
            if request.rows <= _SHORT_ROWS:
                planned.append(request.rows)
            else:
                planned.append(request.part(room))
                room -= planned[-1]
        return planned

    def learn(self, rows: int, seconds: float, ended: float) -> None:
        """Do nothing: its plans do not depend on time."""

    def rows_beside(
        self, growing: Sequence[SchedulingRequest], others: Sequence[SchedulingRequest], now: float
    ) -> float | None:
        """Return no bound: it does not remember who drafts, or how long that takes."""
        return math.inf if others else None


class FairScheduler:
    """Shares `budget` rows a pass among payers.

    A single draft may exceed the budget; a session's context gets at most `chunk` rows. Requests of one payer run in
    the order in which they came.
    """

    def __init__(self, budget: int, chunk: int) -> None:
        self._budget = budget
        self._chunk = chunk
        self._drafts = _Lane()
        self._prefill = _Lane()
        self._owes_prefill = False  # a large draft took its share of the pass before
        self._time = PassTime()
        self._ended = 0.0  # the last pass
        self._drafting: dict[Payer, _Drafting] = {}  # who drafted lately
        self._judging: list[_Drafting] = []  # those of the pass that was planned last

    def plan(self, requests: Sequence[SchedulingRequest]) -> list[int]:
        prefill = [request for request in requests if not request.is_draft]
        share = max(self._budget // _PREFILL_SHARE, 1)
        reserved = min(share, sum(min(request.context, self._chunk) for request in prefill))
        drafts = [request for request in requests if request.is_draft]
        room = self._budget - reserved
        # A debt to prefill that no longer waits would leave a draft larger than the budget, and the whole pass, empty.
        may_exceed = not (self._owes_prefill and prefill)
        of_drafts = self._drafts.fill(drafts, room, self._budget, may_exceed=may_exceed)
        self._note_drafts(drafts, of_drafts)
        bound = self._prefill_beside(sum(of_drafts), prefill)
        of_prefill = self._prefill.fill(prefill, min(self._budget - sum(of_drafts), bound), self._chunk)
        self._owes_prefill = sum(of_prefill) < min(reserved, bound)
        rows = iter(of_drafts), iter(of_prefill)
        return [next(rows[0] if request.is_draft else rows[1]) for request in requests]

    def learn(self, rows: int, seconds: float, ended: float) -> None:
        """Note how long a pass of so many rows took, and when it ended."""
        self._time.add(rows, seconds)
        for drafting in self._judging:
            drafting.judged_at = ended
        self._judging, self._ended = [], ended

    def rows_beside(
        self, growing: Sequence[SchedulingRequest], others: Sequence[SchedulingRequest], now: float
    ) -> float | None:
        payers = {request.payer for request in growing}
        brought = {payer: one.brought for payer, one in self._beside(payers, now).items()}
        for request in others:
            brought[request.payer] = max(request.rows if request.is_draft else 0, brought.get(request.payer, 0))
        if not brought:
            return None
        rows = sum(brought.values())
        return max(_LEAST_BESIDE, self._time.rows_within(rows, _STRETCH) - rows) if rows else math.inf

    def _beside(self, payers: Set[Payer], now: float) -> dict[Payer, _Drafting]:
        """Return who drafts now, or soon will again, without `payers`."""
        return {p: one for p, one in self._drafting.items() if p not in payers and not one.is_over(now)}

    def _note_drafts(self, drafts: Sequence[SchedulingRequest], planned: Sequence[int]) -> None:
        now: Counter[Payer] = Counter()
        brought: Counter[Payer] = Counter()
        for request, rows in zip(drafts, planned, strict=True):
            now[request.payer] += rows
            brought[request.payer] += 0 if request.grows else rows
            known = self._drafting.get(request.payer)
            # Longer is a pause: somebody reads.
            if rows and known is not None and request.since - known.judged_at <= _LONGEST_AWAY_S:
                known.away_s = max(request.since - known.judged_at, 0.0)
        self._judging = []
        for payer, rows in now.items():
            if rows:
                away_s = self._drafting[payer].away_s if payer in self._drafting else _AWAY_S
                self._drafting[payer] = _Drafting(rows, brought[payer], self._ended, away_s)
                self._judging.append(self._drafting[payer])

    def _prefill_beside(self, num_drafted: int, prefill: Sequence[SchedulingRequest]) -> int:
        """Return the most rows of prefill in a pass with so many of drafts, for the sake of other payers."""
        now = max([self._ended, *(request.since for request in prefill)])
        self._drafting = {p: one for p, one in self._drafting.items() if now - one.judged_at <= _LATELY_S}
        own = {request.payer for request in prefill}
        if beside := sum(one.rows for one in self._beside(own, now).values()):
            most = self._time.rows_within(beside, _STRETCH)
            return max(_LEAST_BESIDE, round(min(most, self._budget)) - num_drafted)
        # Those who read prompts too wait for this pass, and whoever drafted lately may be back while it runs.
        if len(own) > 1 or self._drafting.keys() - own:
            return round(min(max(self._time.rows_of_worth(_WORTH), _LEAST_WORTH), self._budget))
        return self._budget


@dataclass(slots=True)
class _Drafting:
    """A payer's drafts in a pass, when that ended, and how long its next draft was on its way the last time.

    `brought`: rows of those that the server did not grow.
    """

    rows: int
    brought: int
    judged_at: float
    away_s: float

    def is_over(self, now: float) -> bool:
        """Return whether the next draft would have come by now."""
        return now - self.judged_at > 2 * self.away_s


class _Lane:
    """The queue for one kind of rows, with each payer's account."""

    def __init__(self) -> None:
        self._level = 0.0
        self._accounts: dict[Payer, float] = {}  # of those who wait or have had more than the level

    def fill(
        self, requests: Sequence[SchedulingRequest], room: int, most: int, *, may_exceed: bool = False
    ) -> list[int]:
        """Return rows for each request, at most `most`.

        Where a payer's oldest request finds no room, its others wait too, or it would starve. `may_exceed`: the first
        request runs whatever room it takes.
        """
        lines = _by_payer(requests)
        demands = [sum(min(requests[i].rows, most) for i in line) for line in lines.values()]
        for payer in lines:
            self._accounts.setdefault(payer, self._level)
        planned = [0] * len(requests)
        turns = [self._turn(requests, line, most) for line in lines.values()]
        heapify(turns)
        while turns:
            _, i = heappop(turns)
            request = requests[i]
            rows = request.rows if may_exceed else request.part(min(most, room))
            may_exceed = False
            if not rows:
                continue
            planned[i] = rows
            room -= rows
            self._accounts[request.payer] += rows
            line = lines[request.payer]
            line.popleft()
            if line:
                heappush(turns, self._turn(requests, line, most))
        self._level += _equal_share(demands, sum(planned))
        still = {request.payer for request, rows in zip(requests, planned, strict=True) if rows < request.rows}
        # Or the table would grow with every payer ever seen, and time away would earn credit.
        self._forget_all_but(still)
        return planned

    def _forget_all_but(self, waiting: Set[Payer]) -> None:
        """Keep the accounts of `waiting` payers, and those above the level."""
        self._accounts = {
            payer: rows for payer, rows in self._accounts.items() if payer in waiting or rows > self._level
        }

    def _turn(self, requests: Sequence[SchedulingRequest], line: deque[int], most: int) -> tuple[float, int]:
        """Return when the queue's first request is due, and its index."""
        request = requests[line[0]]
        return self._accounts[request.payer] + min(request.rows, most), line[0]


def _equal_share(demands: Sequence[int], rows: int) -> float:
    """Return the share of `rows` of those who wanted no less; the others got what they wanted."""
    left = float(rows)
    for i, demand in enumerate(sorted(demands)):
        share = left / (len(demands) - i)
        if demand >= share:
            return share
        left -= demand
    return float(max(demands, default=0))


def _by_payer(requests: Sequence[SchedulingRequest]) -> dict[Payer, deque[int]]:
    """Return the indices of each payer's requests, the oldest first."""
    lines: dict[Payer, deque[int]] = {}
    for i in sorted(range(len(requests)), key=lambda i: requests[i].since):
        lines.setdefault(requests[i].payer, deque()).append(i)
    return lines
