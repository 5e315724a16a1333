"""The policy of full memory: who gives way to whom, and who waits. Numbers in, an order out: no clock, no tensors.

    parked    has no stream                               goes first, for whoever asks
    resting   unused for longer than its hold             goes next, for whoever asks
    active    works, waits for memory, or for its link    goes only by preemption

Between two drafts a session waits for its link, and needs its rows again a round trip later. If the least recently used
session were evicted, one active session more than fit would make every draft run a whole text again. So active sessions
keep their rows, and those that find no room wait in line. Rows change hands

    at once    from a payer that holds more than the fair level to one that stays within it
    in turns   among payers above the level: the session that has waited longest gets the rows of the one that has had
               them longest, so seldom that running rows again takes at most one part in eight of the time

The fair level is that of max-min fairness: payers that want less get what they want, the others share the rest equally.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

_CONTEXT_ROWS = 32  # a pass with so many rows a session, on average, tells what a row of context costs
# A session stays active for a hold: the shortest hold, or longer after longer passes and pauses.
_HOLD_PAUSES = 3  # a hold lasts three passes, and three times the session's last pause between two requests
_LONGEST_HOLD = 5  # but a pause makes it at most five times the shortest hold
# Turns cost time, since the rows that were taken away must run again.
_RERUN_SHARE = 8  # that takes at most one part in eight of the time
_CROWDED_RERUN_SHARE = 2  # or half of it, where the line is too long for that


@dataclass(slots=True)
class Usage:
    """What a session does with its rows; times are seconds of one clock."""

    payer: Hashable
    used: int = 0  # number of its last use, counted over all sessions
    used_at: float = 0.0
    pause_s: float = 0.0  # between its last two requests
    placed_at: float = 0.0  # when it got the rows it has
    wanted_bytes: int = 0  # what it waits for
    waits_since: float | None = None

    def ask(self, used: int, now: float) -> None:
        """Note the beginning of a request, or another try at it."""
        if self.waits_since is None:
            self.pause_s = now - self.used_at
        self.used, self.used_at = used, now

    def wait(self, num_bytes: int, now: float) -> None:
        """Note that it waits for `num_bytes`."""
        self.wanted_bytes, self.used_at = num_bytes, now
        self.waits_since = now if self.waits_since is None else self.waits_since

    def settle(self) -> None:
        """Note that it has the rows it needs."""
        self.wanted_bytes, self.waits_since = 0, None


Status: TypeAlias = Literal["parked", "idle", "waiting", "working"]


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """One session as the policy sees it."""

    usage: Usage
    status: Status
    num_bytes: int  # of its own, as rows are
    num_rows: int
    frees: bool  # whether evicting it frees anything

    @property
    def demand_bytes(self) -> int:
        """Bytes that it holds, or those that it waits for."""
        return max(self.num_bytes, self.usage.wanted_bytes)


class EvictionPolicy:
    """Decides who may be evicted.

    `hold_s` is the shortest hold; rows change hands in turns only after a session has had them for so long.
    `patience_s` is the longest that a session waits for memory: turns come sooner where the line is too long for that.
    """

    def __init__(self, limit_bytes: int, hold_s: float = 0.0, patience_s: float = 0.0) -> None:
        self._limit_bytes = limit_bytes
        self._hold_s = hold_s
        self._patience_s = patience_s
        self._pass_s = 0.0  # time of the last pass
        self._row_s = 0.0  # time that running one row again takes
        self._rerun_s = 0.0  # time to run again what was taken from active sessions, less what has been paid off since
        self._preempted_at = 0.0

    def learn(self, num_rows: int, num_sessions: int, seconds: float) -> None:
        """Learn from a pass how long others wait for one, and what rows cost that run again."""
        self._pass_s = seconds
        if num_rows >= _CONTEXT_ROWS * max(num_sessions, 1):
            row_s = seconds / num_rows
            self._row_s = row_s if self._row_s == 0.0 else (self._row_s + row_s) / 2

    def is_active(self, holding: Holding, now: float) -> bool:
        if holding.status == "working":
            return True
        pause_s = min(holding.usage.pause_s * _HOLD_PAUSES, self._hold_s * _LONGEST_HOLD)
        # The policy sees a draft that comes during a pass only after it.
        hold_s = max(self._hold_s, pause_s, self._pass_s * _HOLD_PAUSES)
        return holding.status != "parked" and now - holding.usage.used_at < hold_s

    def order(self, asking: Holding | None, others: Sequence[Holding], now: float) -> list[Holding]:
        """Return the sessions that may be evicted for the one that is `asking`, if any; the first to go first."""
        held, active, free = _by_payer(others), list[Holding](), list[Holding]()
        for holding in others:
            (active if self.is_active(holding, now) else free).append(holding)
        free.sort(key=lambda h: (h.status != "parked", -held[h.usage.payer], h.usage.used))
        return [h for h in free + self._preemptible(asking, active, now) if h.frees]

    def preempt(self, evicted: Holding, now: float, *, runs_again: bool = True) -> None:
        """Count the rows that an active session will run again, or a turn of one whose rows are kept elsewhere."""
        if self.is_active(evicted, now):
            paid_s = (now - self._preempted_at) / _RERUN_SHARE
            rerun_s = self._row_s * evicted.num_rows if runs_again else 0.0
            self._rerun_s = max(self._rerun_s - paid_s, 0.0) + rerun_s
            self._preempted_at = now

    def _preemptible(self, asking: Holding | None, active: Sequence[Holding], now: float) -> list[Holding]:
        if asking is None:
            return []
        demands = _by_payer([asking, *active])
        level = fair_level(demands.values(), self._limit_bytes)
        above = [holding for holding in active if demands[holding.usage.payer] > level]
        if demands[asking.usage.payer] <= level and above:
            return sorted(above, key=lambda h: (-demands[h.usage.payer], h.usage.placed_at))
        if demands[asking.usage.payer] <= level:  # nobody has too much: the free memory is in pieces too small
            above = list(active)
        if now < self._next_turn_at(above) or self._is_behind(asking, above, active):
            return []
        placed = [holding for holding in above if now - holding.usage.placed_at >= self._hold_s]
        return sorted(placed, key=lambda h: h.usage.placed_at)

    def _next_turn_at(self, above: Iterable[Holding]) -> float:
        num_waiting = 1 + sum(holding.usage.waits_since is not None for holding in above)
        pause_s = min(self._patience_s / (2 * num_waiting), _RERUN_SHARE * self._rerun_s)
        return self._preempted_at + max(pause_s, _CROWDED_RERUN_SHARE * self._rerun_s)

    def _is_behind(self, asking: Holding, above: Sequence[Holding], active: Sequence[Holding]) -> bool:
        """Return whether another session is to have the next turn: one that waits longer, and would find room."""
        since = asking.usage.waits_since
        staying = sum(holding.num_bytes for holding in active) - sum(holding.num_bytes for holding in above)
        return any(
            holding.usage.waits_since is not None
            and (since is None or holding.usage.waits_since < since)
            and holding.demand_bytes <= self._limit_bytes - staying
            for holding in above
        )


def fair_level(demands: Iterable[int], limit: int) -> float:
    """Return the most that each may have, so that all of them together have at most `limit`."""
    left = float(limit)
    ordered = sorted(demands)
    for i, demand in enumerate(ordered):
        if (share := left / (len(ordered) - i)) < demand:
            return share
        left -= demand
    return float("inf")


def _by_payer(holdings: Iterable[Holding]) -> dict[Hashable, int]:
    total: dict[Hashable, int] = defaultdict(int)
    for holding in holdings:
        total[holding.usage.payer] += holding.demand_bytes
    return total
