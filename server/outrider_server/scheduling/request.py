"""A request under way, from Draft (one verdict) or Decode (a row of them) to its last reply.

Requests belong to the engine thread; other threads may only set `cancelled` and `abandoned`. A request pauses while its
client does not read its replies, or its payer is over its rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import ScoredTree, TreeGrowth
from outrider_proto.errors import Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, TokenLogprob, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath
from outrider_server.engine.engine import StepInput, StepResult, StepTiming
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.server_drafter import SessionDrafter
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.reply_poster import Reply, ReplyRoute, RequestDone, RowsAgain
from outrider_server.scheduling.scheduler import SchedulingRequest

_NO_TREE = DraftTree()
_LEAST_NODES = 16  # of a draft are verified however busy the server is
_ROWS_AHEAD = 256  # room that a Decode takes at its start


class RequestTimes:
    """Where the time since the last verdict went, in seconds. Drafting does not count as queueing."""

    def __init__(self, now: float) -> None:
        self.waiting_since = now
        self.draft_s = 0.0
        self.verify_s = 0.0
        self._waited_s = 0.0

    @property
    def queue_s(self) -> float:
        # The server drafts while the request waits for its pass: that time must not count twice.
        return max(self._waited_s - self.draft_s, 0.0)

    def add_pass(self, timing: StepTiming) -> None:
        self._waited_s += timing.started - self.waiting_since
        self.verify_s += timing.ended - timing.started
        self.waiting_since = timing.ended

    def restart(self) -> None:
        self._waited_s = self.draft_s = self.verify_s = 0.0


class Request(ABC):
    """What a DraftRequest and a DecodeRequest share."""

    grows_trees = False  # the server drafts for it
    num_drafted = 0  # nodes that the server's drafter ran, and those of its trees

    def __init__(
        self, sequence: Sequence, frame: Draft | Decode, sampler: Sampler, route: ReplyRoute, now: float
    ) -> None:
        self.sequence = sequence
        self.post = route.post
        self.cancelled = False
        self.abandoned = False
        self.times = RequestTimes(now)
        self._frame = frame
        self._sampler = sampler
        self._route = route
        self._feed = route.feed or FeatureFeed(sequence)
        self._chain: tuple[int, ...] = (frame.root,)  # tokens behind those held, besides the context
        self._tree = _NO_TREE
        self._features_from = frame.features_from
        self._rows_ahead = 0  # room that it takes at its start, besides its first pass
        self._tap_s = 0.0
        self._begun = False
        self._has_replied = False  # there has been a verdict
        self._completed = False
        self._paused = False
        self._lacks_memory_since: float | None = None
        self._lacked_memory_at = 0.0  # its last try

    @property
    def ended(self) -> bool:
        return self.abandoned or self._completed

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
            payer=self.sequence.usage.payer,
            context=self.sequence.num_uncomputed,
            rest=len(self._chain) + len(self._tree),
            since=self.times.waiting_since,
            grows=self.grows_trees,
        )

    @property
    def is_stale(self) -> bool:
        """True if it rests on an assumption that has proved wrong; ask before it begins."""
        return False

    @property
    def needs_features(self) -> bool:
        """True if its client, or the server's drafter, reads the features of its passes."""
        return self._features_from is not None or self.grows_trees

    @property
    def _pass_rows(self) -> int:
        """The most rows that its next pass can have, besides the context."""
        return len(self._chain) + len(self._tree)

    def begin(self, tree_budget: int) -> None:
        """Set the session's text, the first time; make room for the next pass, every time.

        `tree_budget`: the tree size that the server asks for (0: any). Raises Violation when the client counts on more
        than is held, Refusal for a text that can never fit, and OutOfKVMemory when there is no memory now: then it may
        be called again.
        """
        # The loop calls this for every pass until the request has ended: only the first call may set the text.
        if self._begun:
            self.sequence.reserve(self._pass_rows)
            return
        self._feed.begin(self._frame.base_len)
        self.sequence.begin(self, self._frame.base_len, self._frame.context, self._pass_rows + self._rows_ahead)
        self._begun = True
        tap = self.sequence.tap
        if self._features_from is not None and tap is not None and not tap.info.newest_only:
            self._features_from, num_again = self._feed.claim(self._features_from)
            if num_again:
                self.post(RowsAgain(num_again))

    def update_paused(self, now: float) -> bool:
        """Return whether it must wait for its client or its payer's rate; that does not count as queueing.

        For the engine thread only, between passes.
        """
        self._paused = not self.is_stopped and self._route.is_behind()
        if self._paused:
            self.times.waiting_since = now
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

    def step_input(self, room: int) -> StepInput:
        """Return its share of the next pass: all of it, or the first `room` context tokens."""
        chain = (*self.sequence.uncomputed, *self._chain)
        if len(chain) + len(self._tree) <= room:
            logprobs, most = self._frame.logprobs, self._route.max_context
            return StepInput(self.sequence, chain, self._tree, self._sampler, logprobs, most)
        return StepInput(self.sequence, chain[: min(room, len(chain) - 1)])

    def apply_result(self, result: StepResult, tree_budget: int) -> None:
        """Post the verdict, if the pass gave one, with the tree size to ask for; note what comes next."""
        self.times.add_pass(result.timing)
        self._lacks_memory_since = None
        if result.accepted is not None:
            self._has_replied = True
            self.post(self._settle(result.accepted, result.logprobs, tree_budget))
            self.times.restart()

    def finish_step(self, tap_s: float) -> None:
        """Post the features that the client lacks, after commit and a tap of `tap_s`, and the end.

        A Draft's features come at its end, a Decode's as they are made, but never before its first token.
        """
        self._tap_s += tap_s
        if self._has_replied:
            self._post_features()
        if self.ended:
            self.post(RequestDone())

    def cancel(self) -> None:
        """Answer a cancelled request and end it."""
        self._end_with(Verdict(seq=self._frame.seq, path=(), bonus=None, finish=Finish.CANCELLED))

    def fail(self, refusal: Refusal) -> None:
        """End it with an error."""
        self._end_with(refusal)

    def _end_with(self, reply: Reply) -> None:
        self._completed = True
        self.post(reply)
        self.post(RequestDone())

    @abstractmethod
    def _settle(self, accepted: AcceptedPath, logprobs: tuple[TokenLogprob, ...], tree_budget: int) -> Verdict:
        """Return the verdict on its tree, and take what comes next from it."""

    def _post_features(self) -> Features | None:
        """Send the rows that the client lacks; return their frame, without the rows."""
        if self.sequence.tap is None or self._features_from is None:
            return None
        first, stop = self.sequence.first_feature(self._features_from), self.sequence.num_features
        if first >= stop:
            return None
        self._features_from = stop
        features = Features(
            seq=self._frame.seq,
            first=first,
            rows=np.empty((0, self.sequence.tap.info.width), np.float32),
            last=self.ended,
            tap_us=round(self._tap_s * 1e6) if self.ended else 0,
            padded_width=self._route.padded_width,
            codec=self._frame.codec,
        )
        self._feed.promise(self.post, features, first, stop)
        return features


class DraftRequest(Request):
    """A client's tree, for one verdict."""

    def __init__(self, sequence: Sequence, frame: Draft, sampler: Sampler, route: ReplyRoute, now: float) -> None:
        super().__init__(sequence, frame, sampler, route, now)
        self._tree = frame.tree
        self._assumes = frame.assumes

    @property
    def is_stale(self) -> bool:
        if self._begun or not self._assumes:
            return False
        return not self.sequence.expects(self._frame.base_len, self._frame.root, self._assumes)

    def begin(self, tree_budget: int) -> None:
        # Twice the advice: it halves at a time, and a draft may have left before it came. The first nodes are verified
        # as ever: a node's parent always comes before it.
        most = max(2 * tree_budget, _LEAST_NODES)
        if tree_budget and not self._begun and len(self._tree) > most:
            self._tree = DraftTree(self._tree.tokens[:most], self._tree.parents[:most])
        super().begin(tree_budget)

    def reject_stale(self) -> None:
        """Answer a stale draft and end it; nothing that is held changes."""
        self._end_with(Verdict(seq=self._frame.seq, path=(), bonus=None, stale=True))

    def _settle(self, accepted: AcceptedPath, logprobs: tuple[TokenLogprob, ...], tree_budget: int) -> Verdict:
        self._completed = True
        return Verdict(
            seq=self._frame.seq,
            path=accepted.path,  # the client knows its own tree: node numbers are enough
            bonus=accepted.bonus,
            finish=accepted.finish,
            queue_us=round(self.times.queue_s * 1e6),
            verify_us=round(self.times.verify_s * 1e6),
            logprobs=logprobs,
            tree_budget=tree_budget,
        )


class DecodeRequest(Request):
    """Up to so many tokens, a verdict a pass; with a tree shape the server drafts before each pass."""

    def __init__(self, sequence: Sequence, frame: Decode, sampler: Sampler, route: ReplyRoute, now: float) -> None:
        super().__init__(sequence, frame, sampler, route, now)
        tree = frame.tree
        self.tunes_trees = tree is not None and tree.auto  # within the limits that the client gave
        self.drafted: ScoredTree | None = None  # the server's draft for the next pass
        self._shape = None if tree is None else TreeShape(tree.breadth, tree.levels, tree.budget)
        self.grows_trees = self._shape is not None
        self._grown = False
        self._growth: TreeGrowth | None = None  # the draft under way
        self._tokens_left = frame.max_tokens
        self._rows_ahead = min(frame.max_tokens - 1, _ROWS_AHEAD)
        self._newest_features: Features | None = None  # the last row that was sent

    @property
    def _pass_rows(self) -> int:
        return len(self._chain) + (self._shape.budget if self._shape else 0)

    @property
    def drafter(self) -> SessionDrafter:
        """The server's drafter for its session; only of a request for which the server drafts."""
        assert self.sequence.drafter is not None
        return self.sequence.drafter

    @property
    def needs_draft(self) -> bool:
        """True if the server must draft before the next pass, and holds everything before the root."""
        return self._shape is not None and not self._grown and not self.sequence.num_uncomputed

    def begin_draft(self, tree_budget: int, tuned: Callable[[TreeShape], TreeShape] | None = None) -> bool:
        """Draft the first level for the next pass; return whether there may be more.

        The tree has at most as many levels as tokens are wanted, and at most `tree_budget` nodes (0: any). `tuned`
        returns the shape of the next tree within one of limits.
        """
        assert self._shape is not None
        self._grown = True
        shape = self._shape.fitted(self._tokens_left - 1, tree_budget or self._shape.budget)
        if shape is not None:
            shape = shape if tuned is None else tuned(shape)
            features = self.sequence.features if self.sequence.tap else None
            self._growth = self.drafter.begin(self.sequence.tokens, self._chain, features, shape)
        return self._growth is not None

    @property
    def draft_group(self) -> int:
        """Key of the drafts that can grow together with the one under way."""
        assert self._growth is not None
        joins = self._growth.can_step_together and not self.drafter.alone
        return id(self.drafter.drafter if joins else self)

    @staticmethod
    def grow_drafts(requests: abc.Sequence[DecodeRequest]) -> list[bool]:
        """Draft one more level for each of a group; return for each whether there may be more."""
        return TreeGrowth.step_together([request._growth for request in requests if request._growth is not None])

    def end_draft(self) -> None:
        """Take the draft as far as it has grown."""
        growth, self._growth = self._growth, None
        if growth is not None:
            self.drafted = growth.drafted()
            self._tree = self.drafted.tree
            self.num_drafted += growth.num_expanded + len(self._tree)

    def cancel(self) -> None:
        self._completed = True
        draft_us = round(self.times.draft_s * 1e6)
        self.post(Verdict(seq=self._frame.seq, path=(), bonus=None, finish=Finish.CANCELLED, draft_us=draft_us))
        # The client waits for a frame marked last, and the rows themselves may be evicted by now: send the last again.
        if self._newest_features is not None:
            mark = replace(self._newest_features, last=True, tap_us=round(self._tap_s * 1e6))
            self._feed.promise(self.post, mark, 0, 0)
        self.post(RequestDone())

    def _settle(self, accepted: AcceptedPath, logprobs: tuple[TokenLogprob, ...], tree_budget: int) -> Verdict:
        self._tokens_left = max(0, self._tokens_left - 1 - len(accepted.path))
        finish = accepted.finish
        if finish is Finish.NOT_YET and self._tokens_left == 0:
            finish = Finish.LIMIT
        self._completed = finish is not Finish.NOT_YET
        verdict = Verdict(
            seq=self._frame.seq,
            path=(),
            tokens=self._tree.path_tokens(accepted.path),
            bonus=accepted.bonus,
            finish=finish,
            queue_us=round(self.times.queue_s * 1e6),
            verify_us=round(self.times.verify_s * 1e6),
            logprobs=logprobs,
            tree_budget=tree_budget,
            draft_us=round(self.times.draft_s * 1e6),
            draft_levels=max(self.drafted.tree.depths(), default=0) if self.drafted else 0,
        )
        if accepted.bonus is not None:
            self._chain = (accepted.bonus,)
        self._tree, self.drafted, self._grown = _NO_TREE, None, False
        return verdict

    def _post_features(self) -> Features | None:
        features = super()._post_features()
        if features is not None and not self.ended:
            newest = self.sequence.num_features - 1
            rows = self.sequence.feature_rows(newest, newest + 1)
            self._newest_features = replace(features, first=newest, rows=rows)
        return features


def new_request(sequence: Sequence, frame: Draft | Decode, sampler: Sampler, route: ReplyRoute, now: float) -> Request:
    """Return the request that a client's frame asks for; it has been waiting since `now`."""
    if isinstance(frame, Draft):
        return DraftRequest(sequence, frame, sampler, route, now)
    return DecodeRequest(sequence, frame, sampler, route, now)
