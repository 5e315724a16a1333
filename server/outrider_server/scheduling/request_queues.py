"""The requests that wait or run, in a line for each session; the first of each line can be in the next pass."""

from __future__ import annotations

import logging
import time
from collections import abc, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from outrider_proto.errors import Reason, Refusal
from outrider_proto.packing import prefix_hash
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import OutOfKVMemory
from outrider_server.scheduling.request import DraftRequest, Request

_log = logging.getLogger(__name__)
_RETRY_MEMORY_S = 0.005  # least time between two tries of one request: each looks at all sessions

RequestState: TypeAlias = Literal["ready", "waiting", "paused", "over"]


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """Number of leading tokens that a session holds, and their hash."""

    length: int
    hash: bytes


@dataclass(frozen=True, slots=True, eq=False)
class PrefixQuery:
    """A question for what a session holds of its first `limit` tokens, once its earlier requests have ended."""

    sequence: Sequence
    limit: int
    post: Callable[[PrefixInfo], None]

    def answer(self) -> None:
        tokens = self.sequence.tokens[: self.limit]
        try:
            self.post(PrefixInfo(len(tokens), prefix_hash(tokens)))
        except Exception as error:  # concerns no other session
            _log.error("a prefix query failed", exc_info=error)


class RequestQueues:
    """Requests of one session run in the order in which they came; `fail` ends one that cannot run.

    A request that finds no memory for its K/V stays in its line and is tried again, for `room_wait_s`; so does one
    whose client does not read, for as long as that takes.
    """

    def __init__(self, room_wait_s: float, fail: Callable[[Request, Exception], None]) -> None:
        self._room_wait_s = room_wait_s
        self._fail = fail
        self._queues: dict[Sequence, deque[Request | PrefixQuery]] = {}
        self.num_paused = 0  # whose clients must read first: no load

    def __len__(self) -> int:
        """Number of sessions that have requests."""
        return len(self._queues)

    def add(self, item: Request | PrefixQuery) -> None:
        self._queues.setdefault(item.sequence, deque()).append(item)

    def begin(self, tree_budget: int, running: abc.Set[Sequence] = frozenset()) -> list[Request]:
        """Begin the first request of every session that is not in the pass under way; return those that can run."""
        ready: list[Request] = []
        self.num_paused = 0
        for sequence, queue in list(self._queues.items()):
            if sequence in running:
                continue
            state = self._advance(queue, tree_budget, during_pass=bool(running))
            self.num_paused += state == "paused"
            if not queue:
                del self._queues[sequence]
            elif state == "ready" and isinstance(queue[0], Request):
                ready.append(queue[0])
        return ready

    def fail_all(self, error: Exception) -> None:
        """End every request."""
        queues, self._queues = self._queues, {}
        for item in (item for queue in queues.values() for item in queue):
            if isinstance(item, Request):
                self._fail(item, error)
            else:  # a stream waits for the answer to open, or memory to be given back
                item.answer()

    def _advance(self, queue: deque[Request | PrefixQuery], tree_budget: int, *, during_pass: bool) -> RequestState:
        """Remove what is over from a line; return the state of the request that is first then."""
        while queue:
            if isinstance(first := queue[0], PrefixQuery):
                first.answer()
            elif (state := self._state_of(first, tree_budget, during_pass=during_pass)) != "over":
                return state
            # Or the session's next request would have the place in line of this one.
            first.sequence.usage.settle()
            queue.popleft()
        return "over"

    def _state_of(self, request: Request, tree_budget: int, *, during_pass: bool) -> RequestState:
        """Return whether the request can run now; end it where it cannot any more."""
        try:
            return _try_begin(request, tree_budget)
        except OutOfKVMemory:
            # During a pass only free memory counts: whether there is none is seen after it.
            if during_pass or request.memory_wait_s(time.monotonic()) < self._room_wait_s:
                return "waiting"
            message = f"no room for this session's K/V in {self._room_wait_s:g} s; try again later"
            request.fail(Refusal(Reason.SERVER_FULL, message))
        except Refusal as refusal:
            request.fail(refusal)
        except Exception as error:
            self._fail(request, error)
        return "over"


def _try_begin(request: Request, tree_budget: int) -> RequestState:
    if request.ended:
        return "over"
    now = time.monotonic()
    if request.update_paused(now):
        return "paused"
    if request.cancelled:
        request.cancel()
        return "over"
    if isinstance(request, DraftRequest) and request.is_stale:
        request.reject_stale()
        return "over"
    if request.has_lacked_memory(now - _RETRY_MEMORY_S):
        return "waiting"
    request.begin(tree_budget)
    return "ready"
