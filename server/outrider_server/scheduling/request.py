"""A request under way, from Draft (one verdict) or Decode (a row of them) to its last reply.

For the engine thread; other threads may only set `cancelled` and `abandoned`. A request whose replies are not read, or
whose payer is over its rate, is paused.
"""

from __future__ import annotations

import sys
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import ScoredTree, TreeGrowth
from outrider_proto.errors import Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, TokenLogprob, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath
from outrider_server.engine.engine import StepInput, StepResult
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.server_drafter import DraftContext
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.scheduler import SchedulingRequest

_NO_TREE = DraftTree()
_LEAST_NODES = 16  # of a draft are verified however busy the server is
_ROWS_AHEAD = 256  # room that a Decode takes at its start


@dataclass(frozen=True, slots=True)
class RequestDone:
    """The last reply of a request."""


@dataclass(frozen=True, slots=True)
class RowsAgain:
    """The request asked for so many feature rows that its session was sent before."""

    num_rows: int


Reply = Verdict | Features | Refusal | RowsAgain | RequestDone
Post = Callable[[Reply], None]


class Request:
    """One Draft or Decode under way.

    `post` takes its replies, `is_behind` says that it must wait, for its client to read or for its payer's rate; both
    are called from the engine thread. The text ends at `max_context` tokens, where that is less than the
    target's. `feed`: that of its stream.
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
        max_context: int = sys.maxsize,
        feed: FeatureFeed | None = None,
    ) -> None:
        self.sequence = sequence
        self.post = post
        self.cancelled = False
        self.abandoned = False
        self._frame = frame
        self._sampler = sampler
        self._padded_width = padded_width
        self._is_behind = is_behind
        self._max_context = max_context
        self._feed = feed or FeatureFeed(sequence)
        self._paused = False
        self._chain: tuple[int, ...] = (frame.root,)  # tokens behind those held, besides the context
        self._tree = frame.tree if isinstance(frame, Draft) else _NO_TREE
        self._shape = _shape(frame)
        self._grown = False
        self._growth: TreeGrowth | None = None  # the draft under way
        self.drafted: ScoredTree | None = None  # the server's draft for the next pass
        self.num_drafted = 0  # nodes that the server's drafter ran, and those of its trees
        self._tokens_left = frame.max_tokens if isinstance(frame, Decode) else 1
        self._features_from = frame.features_from
        self._last_features: Features | None = None  # the last row that was sent
        self._has_replied = False  # there has been a verdict
        self._unposted: Verdict | None = None
        self._begun = False
        self._waiting_since = now
        self._lacks_memory_since: float | None = None
        self._lacked_memory_at = 0.0  # its last try
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
        return SchedulingRequest(
            self.sequence.usage.payer,
            self.sequence.num_uncomputed,
            len(self._chain) + len(self._tree),
            self._waiting_since,
            grows=self._shape is not None,
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
        self._feed.begin(self._frame.base_len)
        ahead = min(self._tokens_left - 1, _ROWS_AHEAD)
        self.sequence.begin(self, self._frame.base_len, self._frame.context, rows + ahead)
        self._begun = True
        if self._features_from is not None and self.sequence.tap is not None and not self.sequence.tap.info.newest_only:
            self._features_from, num_again = self._feed.claim(self._features_from)
            if num_again:
                self.post(RowsAgain(num_again))

    def fit_tree(self, tree_budget: int) -> None:
        """Before it begins, leave out a draft's last nodes where there are far more than the server asks for (0: any).

        The others are verified as ever: a node's parent always comes before it.
        """
        # Twice as many: the advice halves at a time, and a draft may have left before it came.
        most = max(2 * tree_budget, _LEAST_NODES)
        if tree_budget and not self._begun and len(self._tree) > most:
            self._tree = DraftTree(self._tree.tokens[:most], self._tree.parents[:most])

    def update_paused(self, now: float) -> bool:
        """Return whether it must wait for its client or its payer's rate; that does not count as queueing.

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
        self._lacked_memory_at = now
        return now - self._lacks_memory_since

    def has_lacked_memory(self, since: float) -> bool:
        """Return whether it has found no memory `since` then."""
        return self._lacks_memory_since is not None and self._lacked_memory_at > since

    @property
    def tunes_trees(self) -> bool:
        """True if the server chooses the size of its trees, within the limits that the client gave."""
        return isinstance(self._frame, Decode) and self._frame.tree is not None and self._frame.tree.auto

    def begin_draft(self, tree_budget: int, tuned: Callable[[TreeShape], TreeShape] | None = None) -> bool:
        """Draft the first level for the next pass; return whether there may be more.

        The tree has at most as many levels as tokens are wanted, and at most `tree_budget` nodes (0: any). `tuned`
        returns the shape of the next tree within one of limits.
        """
        assert self._shape is not None
        assert self.sequence.drafter is not None
        self._grown = True
        shape = self._shape.fitted(self._tokens_left - 1, tree_budget or self._shape.budget)
        if shape is not None:
            shape = shape if tuned is None else tuned(shape)
            features = self.sequence.features if self.sequence.tap else None
            known = DraftContext(self.sequence.tokens, self._chain, features)
            self._growth = self.sequence.drafter.begin(known, shape)
        return self._growth is not None

    @property
    def draft_group(self) -> int:
        """Key of the drafts that can grow together with the one under way."""
        assert self.sequence.drafter is not None
        assert self._growth is not None
        joins = self._growth.can_step_together and not self.sequence.drafter.alone
        return id(self.sequence.drafter.drafter if joins else self)

    @staticmethod
    def grow_drafts(requests: abc.Sequence[Request]) -> list[bool]:
        """Draft one more level for each of a group; return for each whether there may be more."""
        return TreeGrowth.step_together([request._growth for request in requests if request._growth is not None])

    def end_draft(self) -> None:
        """Take the draft as far as it has grown."""
        growth, self._growth = self._growth, None
        if growth is not None:
            self.drafted = growth.drafted()
            self._tree = self.drafted.tree
            self.num_drafted += growth.num_expanded + len(self._tree)

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
            mark = replace(self._last_features, last=True, tap_us=round(self._tap_s * 1e6))
            self._feed.promise(self.post, mark, 0, 0)
        self._post(RequestDone())

    def step_input(self, room: int) -> StepInput:
        """Return its share of the next pass: all of it, or the first `room` context tokens."""
        chain = (*self.sequence.uncomputed, *self._chain)
        if len(chain) + len(self._tree) <= room:
            logprobs, most = self._frame.logprobs, self._max_context
            return StepInput(self.sequence, chain, self._tree, self._sampler, logprobs, most)
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
        self._tree, self.drafted, self._grown = _NO_TREE, None, False
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
        self._post_verdict()
        self.post(reply)

    def _post_verdict(self) -> None:
        if (verdict := self.take_verdict()) is not None:
            self.post(verdict)

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
            draft_levels=max(self.drafted.tree.depths(), default=0) if self.drafted else 0,
            logprobs=logprobs,
            tree_budget=tree_budget,
        )

    def _post_features(self) -> None:
        if self.sequence.tap is None or self._features_from is None:
            return
        first, stop = self.sequence.first_feature(self._features_from), self.sequence.num_features
        if first >= stop:
            return
        self._features_from = stop
        no_rows = np.empty((0, self.sequence.tap.info.width), np.float32)
        tap_us = round(self._tap_s * 1e6) if self.ended else 0
        codec = self._frame.codec
        features = Features(self._frame.seq, first, no_rows, self.ended, tap_us, self._padded_width, codec=codec)
        if not self.ended:
            newest = self.sequence.feature_rows(stop - 1, stop)
            self._last_features = replace(features, first=stop - 1, rows=newest)
        self._post_verdict()
        self._feed.promise(self.post, features, first, stop)


def _shape(frame: Draft | Decode) -> TreeShape | None:
    """Return the shape of the trees that the server grows."""
    if isinstance(frame, Draft) or frame.tree is None:
        return None
    return TreeShape(frame.tree.breadth, frame.tree.levels, frame.tree.budget)
