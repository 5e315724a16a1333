"""The plan of the next pass: which requests run, with how many rows. Data in, plan out: no clock, threads or tensors.

    budget  |------------ drafts ------------|-- prefill --|

Drafts come first. While prefill waits, a quarter of the budget is reserved for it, and it may use what drafts leave
free, under two limits:

- Beside drafts of others, a pass may take twice as long as it would with their drafts alone, but no longer (stall-free
  batching; Sarathi-Serve, arXiv 2403.02310). This holds also while their verdicts travel, since the next draft would
  wait for the pass, and for trees that the server grows beside clients who bring their own.
- Where others read prompts too or drafted lately, a pass is no longer than it needs to be efficient: its rows take nine
  tenths of its time.

Drafts and prefill each are shared equally among payers, who get less only if they want less (weighted fair queueing
with equal weights; Demers, Keshav and Shenker 1989):

    level       rows of an equal share in all passes so far, for a payer who always wanted more
    account     rows that a payer has had; at least the level when it comes back, so that time away earns no credit
    due         account + rows of the payer's oldest request: the payer with the smallest goes first

So a client with 60 sessions, or with large trees, gets no more than the others leave. Deficit round robin would share
as well, but a small draft would have to wait for its turn in a round of large ones.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from outrider_server.kv.eviction import fair_level
from outrider_server.scheduling.step_stats import PassTime

Payer: TypeAlias = Hashable
SHORT_CONTEXT = 32  # rows: a request with no more context is a draft, not prefill
_PREFILL_SHARE = 4  # a quarter of the budget is reserved for prefill
_STRETCH = 2.0  # a pass may take so many times as long as the drafts of others in it would alone
_LEAST_BESIDE = 32  # rows of prefill, or of the server's own drafts, that may run beside drafts of others in any case
_AWAY_S = 0.02  # expected time from a payer's first verdict to its next draft
_LONGEST_AWAY_S = 1.0  # a longer time is a pause: somebody reads
_LATELY_S = 10.0  # a payer that drafted within this time may be back at any moment
# Where somebody else may come, a pass of prompts ends where its rows take this share of its time: a longer one saves
# too little.
_EFFICIENT_SHARE = 0.9
_LEAST_PREFILL = 384  # rows that such a pass may have in any case: the cost of a row may be estimated badly


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """The rows that a session's first request would run: context, then the rest in one piece."""

    payer: Payer
    context: int
    rest: int  # root and tree
    since: float  # when it began to wait, in seconds of any clock
    grows: bool = False  # its trees are the server's own drafts

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


class Scheduler:
    """Shares `budget` rows a pass among payers.

    A single draft may exceed the budget; a session's context gets at most `chunk` rows. Requests of one payer run in
    the order in which they came.
    """

    def __init__(self, budget: int, chunk: int) -> None:
        self._budget = budget
        self._chunk = chunk
        self._drafts = _Lane()
        self._prefill = _Lane()
        self._owes_prefill = False  # a large draft took the share of prefill in the last pass
        self._time = PassTime()
        self._ended = 0.0  # when the last pass did
        self._drafting: dict[Payer, _Drafting] = {}  # payers that drafted lately
        self._judging: list[_Drafting] = []  # the payers whose drafts are in the pass that was planned last

    def plan(self, requests: Sequence[SchedulingRequest]) -> list[int]:
        """Return rows for each request, 0 where it waits; at least one runs where there are any."""
        prefill = [request for request in requests if not request.is_draft]
        share = max(self._budget // _PREFILL_SHARE, 1)
        reserved = min(share, sum(min(request.context, self._chunk) for request in prefill))
        drafts = [request for request in requests if request.is_draft]
        room = self._budget - reserved
        # Only while prefill waits: otherwise a draft larger than the budget would find no room, and the pass be empty.
        may_exceed = not (self._owes_prefill and prefill)
        of_drafts = self._drafts.fill(drafts, room, self._budget, may_exceed=may_exceed)
        self._note_drafts(drafts, of_drafts)
        bound = self._prefill_beside(sum(of_drafts), prefill)
        of_prefill = self._prefill.fill(prefill, min(self._budget - sum(of_drafts), bound), self._chunk)
        self._owes_prefill = sum(of_prefill) < min(reserved, bound)
        rows = iter(of_drafts), iter(of_prefill)
        return [next(rows[0] if request.is_draft else rows[1]) for request in requests]

    def learn(self, rows: int, seconds: float, ended: float) -> None:
        """Note how long a pass of so many rows took, and when it ended, on the clock of the requests."""
        self._time.add(rows, seconds)
        for drafting in self._judging:
            drafting.judged_at = ended
        self._judging, self._ended = [], ended

    def rows_beside(
        self, growing: Sequence[SchedulingRequest], others: Sequence[SchedulingRequest], now: float
    ) -> float | None:
        """Return how many rows the requests `growing` on the server may have in the next pass beside the `others`.

        None where nobody else drafts now, or will do so again soon.
        """
        payers = {request.payer for request in growing}
        brought = {payer: one.brought for payer, one in self._beside(payers, now).items()}
        for request in others:
            brought[request.payer] = max(request.rows if request.is_draft else 0, brought.get(request.payer, 0))
        if not brought:
            return None
        rows = sum(brought.values())
        return max(_LEAST_BESIDE, self._time.rows_within(rows, _STRETCH) - rows) if rows else math.inf

    def _beside(self, payers: Set[Payer], now: float) -> dict[Payer, _Drafting]:
        """Return the payers, without `payers`, that draft now or will do so again soon."""
        return {p: one for p, one in self._drafting.items() if p not in payers and not one.is_over(now)}

    def _note_drafts(self, drafts: Sequence[SchedulingRequest], planned: Sequence[int]) -> None:
        now: Counter[Payer] = Counter()
        brought: Counter[Payer] = Counter()
        for request, rows in zip(drafts, planned, strict=True):
            now[request.payer] += rows
            brought[request.payer] += 0 if request.grows else rows
            known = self._drafting.get(request.payer)
            if rows and known is not None and request.since - known.judged_at <= _LONGEST_AWAY_S:
                known.away_s = max(request.since - known.judged_at, 0.0)
        self._judging = []
        for payer, rows in now.items():
            if rows:
                away_s = self._drafting[payer].away_s if payer in self._drafting else _AWAY_S
                self._drafting[payer] = _Drafting(rows, brought[payer], self._ended, away_s)
                self._judging.append(self._drafting[payer])

    def _prefill_beside(self, num_drafted: int, prefill: Sequence[SchedulingRequest]) -> int:
        """Return the most rows of prefill that the next pass may have beside `num_drafted` rows of drafts."""
        now = max([self._ended, *(request.since for request in prefill)])
        self._drafting = {p: one for p, one in self._drafting.items() if now - one.judged_at <= _LATELY_S}
        own = {request.payer for request in prefill}
        if beside := sum(one.rows for one in self._beside(own, now).values()):
            most = self._time.rows_within(beside, _STRETCH)
            return max(_LEAST_BESIDE, round(min(most, self._budget)) - num_drafted)
        # Other prompts wait for this pass, and a payer that drafted lately may be back while it runs.
        if len(own) > 1 or self._drafting.keys() - own:
            return round(min(max(self._time.rows_for_share(_EFFICIENT_SHARE), _LEAST_PREFILL), self._budget))
        return self._budget


@dataclass(slots=True)
class _Drafting:
    """A payer's drafts in the last pass that had any."""

    rows: int
    brought: int  # rows of trees that the server did not grow
    judged_at: float  # when that pass ended
    away_s: float  # time from a verdict to the next draft, the last time

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
        # The share of those who wanted no less; the others got what they wanted.
        self._level += min(fair_level(demands, sum(planned)), max(demands, default=0))
        still = {request.payer for request, rows in zip(requests, planned, strict=True) if rows < request.rows}
        # Not those of others: the table would grow with every payer ever seen, and time away would earn credit.
        self._accounts = {payer: rows for payer, rows in self._accounts.items() if payer in still or rows > self._level}
        return planned

    def _turn(self, requests: Sequence[SchedulingRequest], line: deque[int], most: int) -> tuple[float, int]:
        """Return when the queue's first request is due, and its index."""
        request = requests[line[0]]
        return self._accounts[request.payer] + min(request.rows, most), line[0]


def _by_payer(requests: Sequence[SchedulingRequest]) -> dict[Payer, deque[int]]:
    """Return the indices of each payer's requests, the oldest first."""
    lines: dict[Payer, deque[int]] = {}
    for i in sorted(range(len(requests)), key=lambda i: requests[i].since):
        lines.setdefault(requests[i].payer, deque()).append(i)
    return lines
