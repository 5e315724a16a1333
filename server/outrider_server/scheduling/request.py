"""A request under way, from Draft (one verdict) or Decode (a row of them) to its last reply.

For the engine thread; other threads may only set `cancelled` and `abandoned`. A request whose replies are not read is
paused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, TokenLogprob, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath
from outrider_server.engine.engine import StepInput, StepResult
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.server_drafter import DraftContext
from outrider_server.scheduling.scheduler import SchedulingRequest

_NO_TREE = DraftTree()
_ROWS_AHEAD = 256  # room that a Decode takes at its start


@dataclass(frozen=True, slots=True)
class RequestDone:
    """The last reply of a request."""


Reply = Verdict | Features | Refusal | RequestDone
Post = Callable[[Reply], None]


class Request:
    """One Draft or Decode under way.

    `post` takes its replies, `is_behind` says that enough of them wait to be read; both are called from the engine
    thread.
    """

    def __init__(
        self,
        sequence: Sequence,
        frame: Draft | Decode,
        sampler: Sampler,
        post: Post,
        now: float,
        padded_width: int = 0,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self.sequence = sequence
        self.post = post
        self.cancelled = False
        self.abandoned = False
        self._frame = frame
        self._sampler = sampler
        self._padded_width = padded_width
        self._is_behind = is_behind
        self._paused = False
        self._chain: tuple[int, ...] = (frame.root,)  # tokens behind those held, besides the context
        self._tree = frame.tree if isinstance(frame, Draft) else _NO_TREE
        self._shape = _shape(frame)
        self._grown = False
        self._tokens_left = frame.max_tokens if isinstance(frame, Decode) else 1
        self._features_from = frame.features_from
        self._last_features: Features | None = None  # the last row that was sent
        self._has_replied = False  # there has been a verdict
        self._unposted: Verdict | None = None
        self._begun = False
        self._waiting_since = now
        self._lacks_memory_since: float | None = None
        self._queue_s = 0.0
        self._draft_s = 0.0
        self._verify_s = 0.0
        self._tap_s = 0.0

    @property
    def ended(self) -> bool:
        return self.abandoned or self._tokens_left == 0

    @property
    def over(self) -> bool:
        """True while nothing of it runs, so that its rows may be evicted."""
        return self.ended or self._paused

    @property
    def is_stopped(self) -> bool:
        """True once its replies are no longer wanted."""
        return self.cancelled or self.abandoned

    @property
    def scheduling_request(self) -> SchedulingRequest:
        """The rows it wants to run in the next pass."""
        payer = self.sequence.payer or id(self.sequence)
        return SchedulingRequest(
            payer, self.sequence.num_uncomputed, len(self._chain) + len(self._tree), self._waiting_since
        )

    @property
    def stale(self) -> bool:
        """True if the assumption it was sent on proved wrong; asked before it begins."""
        frame = self._frame
        if self._begun or not isinstance(frame, Draft) or not frame.assumes:
            return False
        return not self.sequence.expects(frame.base_len, frame.root, frame.assumes)

    @property
    def needs_features(self) -> bool:
        """True if its client, or the server's drafter, reads the features of its passes."""
        return self._features_from is not None or self._shape is not None

    @property
    def decodes_on(self) -> bool:
        """True if it goes on by itself, and no features follow its verdicts."""
        return not self.ended and not self.needs_features

    @property
    def needs_draft(self) -> bool:
        """True if the server must draft before the next pass, and holds everything before the root."""
        return self._shape is not None and not self._grown and not self.sequence.num_uncomputed

    def begin(self) -> None:
        """Set the session's text, the first time; make room for the next pass, every time.

        Raises Violation when the client counts on more than is held, Refusal for a text that can never fit, and
        OutOfKVMemory when there is no memory now: then it may be called again.
        """
        rows = len(self._chain) + max(len(self._tree), self._shape.budget if self._shape else 0)
        # Called for every pass until the request has ended: the text is set only once.
        if self._begun:
            self.sequence.reserve(rows)
            return
        ahead = min(self._tokens_left - 1, _ROWS_AHEAD)
        self.sequence.begin(self, self._frame.base_len, self._frame.context, rows + ahead)
        self._begun = True

    def update_paused(self, now: float) -> bool:
        """Return whether its replies must be read before it goes on; that does not count as queueing.

        For the engine thread only, between passes.
        """
        self._paused = not self.is_stopped and self._is_behind()
        if self._paused:
            self._waiting_since = now
            self._lacks_memory_since = None
        return self._paused

    def memory_wait_s(self, now: float) -> float:
        """Return for how many seconds it could not begin or go on for lack of memory."""
        if self._lacks_memory_since is None:
            self._lacks_memory_since = now
        return now - self._lacks_memory_since

    def draft(self, tree_budget: int) -> None:
        """Draft for the next pass, at most as many tokens as are wanted and `tree_budget` nodes (0: any)."""
        assert self._shape is not None
        assert self.sequence.drafter is not None
        self._grown = True
        shape = self._shape.fitted(self._tokens_left - 1, tree_budget or self._shape.budget)
        if shape is not None:
            features = self.sequence.features if self.sequence.tap else None
            known = DraftContext((*self.sequence.tokens, *self._chain), features)
            self._tree = self.sequence.drafter.grow(known, shape, lambda: self.is_stopped)

    def add_draft_time(self, draft_s: float) -> None:
        """Count `draft_s` seconds as drafting, not as queueing."""
        self._draft_s += draft_s
        # Drafting happens while the request waits for its pass: it must not count twice.
        self._queue_s -= draft_s

    def reject_stale(self) -> None:
        """Answer a stale draft and end it; nothing that is held changes."""
        self._tokens_left = 0
        self._post(Verdict(self._frame.seq, (), None, stale=True))
        self._post(RequestDone())

    def cancel(self) -> None:
        """Answer a cancelled Decode and end it."""
        self._tokens_left = 0
        self._post(Verdict(self._frame.seq, (), None, Finish.CANCELLED, draft_us=round(self._draft_s * 1e6)))
        # Sent again: the client waits for a frame marked last, and the rows themselves may be evicted by now.
        if self._last_features is not None:
            self._post(replace(self._last_features, last=True, tap_us=round(self._tap_s * 1e6)))
        self._post(RequestDone())

    def step_input(self, room: int) -> StepInput:
        """Return its share of the next pass: all of it, or the first `room` context tokens."""
        chain = (*self.sequence.uncomputed, *self._chain)
        if len(chain) + len(self._tree) <= room:
            return StepInput(self.sequence, chain, self._tree, self._sampler, self._frame.logprobs)
        return StepInput(self.sequence, chain[: min(room, len(chain) - 1)])

    def apply_result(self, result: StepResult, tree_budget: int) -> None:
        """Note what comes next, and the verdict, if the pass gave one, with the tree size to ask for.

        `take_verdict` returns it.
        """
        self._queue_s += result.timing.started - self._waiting_since
        self._verify_s += result.timing.ended - result.timing.started
        self._waiting_since = result.timing.ended
        self._lacks_memory_since = None
        if result.accepted is None:
            return
        finish = result.accepted.finish
        self._tokens_left = max(0, self._tokens_left - 1 - len(result.accepted.path))
        if finish is not Finish.NOT_YET:
            self._tokens_left = 0
        elif isinstance(self._frame, Decode) and self._tokens_left == 0:
            finish = Finish.LIMIT
        self._unposted = self._verdict(result.accepted, finish, result.logprobs, tree_budget)
        self._has_replied = True
        if result.accepted.bonus is not None:
            self._chain = (result.accepted.bonus,)
        self._tree, self._grown = _NO_TREE, False
        self._queue_s = self._draft_s = self._verify_s = 0.0

    def take_verdict(self) -> Verdict | None:
        """Return the verdict of the last pass for the caller to post, once."""
        verdict, self._unposted = self._unposted, None
        return verdict

    def finish_step(self, tap_s: float) -> None:
        """Post the features that the client lacks, after commit and a tap of `tap_s`, and the end.

        A Draft's features come at its end, a Decode's as they are made, but never before its first token.
        """
        self._tap_s += tap_s
        if self.ended or self._has_replied:
            self._post_features()
        if self.ended:
            self._post(RequestDone())

    def fail(self, refusal: Refusal) -> None:
        """End it with an error."""
        self._tokens_left = 0
        self._post(refusal)
        self._post(RequestDone())

    def _post(self, reply: Reply) -> None:
        """Post a reply behind the verdict."""
        if (verdict := self.take_verdict()) is not None:
            self.post(verdict)
        self.post(reply)

    def _verdict(
        self, accepted: AcceptedPath, finish: Finish, logprobs: tuple[TokenLogprob, ...], tree_budget: int
    ) -> Verdict:
        by_number = isinstance(self._frame, Draft)  # the client knows its own tree: node numbers are enough
        return Verdict(
            self._frame.seq,
            accepted.path if by_number else (),
            accepted.bonus,
            finish,
            queue_us=round(max(self._queue_s, 0.0) * 1e6),
            verify_us=round(self._verify_s * 1e6),
            tokens=() if by_number else self._tree.path_tokens(accepted.path),
            draft_us=round(self._draft_s * 1e6),
            logprobs=logprobs,
            tree_budget=tree_budget,
        )

    def _post_features(self) -> None:
        if self.sequence.tap is None or self._features_from is None:
            return
        first, rows = self.sequence.features(self._features_from)
        if not len(rows):
            return
        self._features_from = first + len(rows)
        tap_us = round(self._tap_s * 1e6) if self.ended else 0
        codec = self._frame.codec
        features = Features(self._frame.seq, first, rows, self.ended, tap_us, self._padded_width, codec=codec)
        if not self.ended:
            self._last_features = replace(features, first=self._features_from - 1, rows=rows[-1:].copy())
        self._post(features)


def _shape(frame: Draft | Decode) -> TreeShape | None:
    """Return the shape of the trees that the server grows."""
    if isinstance(frame, Draft) or frame.tree is None:
        return None
    return TreeShape(frame.tree.breadth, frame.tree.levels, frame.tree.budget)
