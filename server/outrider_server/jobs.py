"""What a session asks of the model, step by step: a Draft is one verdict, a Decode a row of them. Belongs to the model
thread; other threads may only set `cancelled` and `abandoned`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider_proto.errors import Reason, Refusal, Violation
from outrider_proto.frames import Decode, Draft, Features, Finish, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.choice import Chooser
from outrider_server.engine import Outcome, Work
from outrider_server.held import Held

_NO_TREE = DraftTree()


@dataclass(frozen=True, slots=True)
class Done:
    """A job's last word: how many of its answers came before it is the receiver's to know."""


Answer = Verdict | Features | Refusal | Done
Post = Callable[[Answer], None]


class Job:
    """One Draft or Decode under way. `post` takes its answers and must be safe to call from the model thread."""

    def __init__(self, held: Held, frame: Draft | Decode, chooser: Chooser, post: Post, now: float) -> None:
        self.held = held
        self.post = post
        self.cancelled = False
        self.abandoned = False
        self._frame = frame
        self._chooser = chooser
        self._chain: tuple[int, ...] = (*frame.context, frame.root)
        self._tree = frame.tree if isinstance(frame, Draft) else _NO_TREE
        self._tokens_left = frame.max_tokens if isinstance(frame, Decode) else 1
        self._begun = False
        self._waiting_since = now
        self._queue_s = 0.0
        self._verify_s = 0.0
        self._tap_s = 0.0

    @property
    def over(self) -> bool:
        return self.abandoned or self._tokens_left == 0

    @property
    def num_rows(self) -> int:
        """Rows it would like to run in the next pass."""
        return len(self._chain) + len(self._tree)

    def begin(self) -> None:
        """Drop what the client no longer stands by, once. Raises Violation when it counts on more than is held."""
        if self._begun:
            return
        if self._frame.base_len > len(self.held.tokens):
            raise Violation(
                Reason.BAD_SEQUENCE,
                f"base_len={self._frame.base_len}: the server holds {len(self.held.tokens)} tokens of this session",
            )
        self.held.truncate(self._frame.base_len)
        self._begun = True

    def cancel(self) -> None:
        """Answer a cancelled Decode and end it."""
        self._tokens_left = 0
        self.post(Verdict(self._frame.seq, (), None, Finish.CANCELLED))
        self.post(Done())

    def work(self, room: int) -> Work:
        """Its share of the next pass: all of it, or the first `room` context tokens when it does not fit."""
        if self.num_rows <= room:
            return Work(self.held, self._chain, self._tree, self._chooser)
        return Work(self.held, self._chain[: min(room, len(self._chain) - 1)])

    def judge(self, outcome: Outcome) -> None:
        """Post the verdict, if the pass gave one, and note what comes next."""
        self._queue_s += outcome.timing.started - self._waiting_since
        self._verify_s += outcome.timing.ended - outcome.timing.started
        self._waiting_since = outcome.timing.ended
        if outcome.walk is None:
            self._chain = self._chain[len(outcome.work.chain) :]
            return
        self._tokens_left -= 1
        finish = outcome.walk.finish
        if finish is not Finish.NOT_YET:
            self._tokens_left = 0
        elif isinstance(self._frame, Decode) and self._tokens_left == 0:
            finish = Finish.LIMIT
        if outcome.walk.bonus is not None:
            self._chain = (outcome.walk.bonus,)
        queue_us, verify_us = round(self._queue_s * 1e6), round(self._verify_s * 1e6)
        self._queue_s = self._verify_s = 0.0
        self.post(Verdict(self._frame.seq, outcome.walk.path, outcome.walk.bonus, finish, queue_us, verify_us))

    def settle(self, tap_s: float) -> None:
        """After commit and a tap of `tap_s`: post the features the client lacks, and the end."""
        self._tap_s += tap_s
        if not self.over:
            return
        if self.held.tap is not None and isinstance(self._frame, Draft):
            first, rows = self.held.features(self._frame.features_from)
            if len(rows):
                tap_us = round(self._tap_s * 1e6)
                self.post(Features(self._frame.seq, first, rows, last=True, tap_us=tap_us))
        self.post(Done())

    def fail(self, refusal: Refusal) -> None:
        """End it with an error."""
        self._tokens_left = 0
        self.post(refusal)
        self.post(Done())
