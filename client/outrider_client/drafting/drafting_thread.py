"""A drafter, or several heads, in a thread of its own, so that drafting never delays the heartbeats.

An AheadDraft is made before it is needed: it runs while a verdict is awaited, and learns that verdict while it runs.

Every job first brings the state up to date: it rolls back to the common prefix with the given tokens, appends the rest,
and adds the feature rows that have arrived. So callers only ever pass the tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from outrider_drafters.contracts.drafter import Drafter, sync_tokens
from outrider_drafters.contracts.token_draw import choose_tokens
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.emulation.paced_drafter import PacedDrafter
from outrider_drafters.families.suffix.index import History, reading
from outrider_drafters.routing.routed_drafter import RoutedDraft, RoutedDrafter
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import NO_OUTCOME, PreDraft, TreeOutcome, can_predraft, predraft
from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import Sampling, TapInfo
from outrider_proto.tree import DraftTree

T = TypeVar("T")


class WorkerThread:
    """Runs jobs of one event loop one after another, with a third less latency than an executor."""

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        self._prepare = prepare
        self._stopped = False
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon: a client that is never closed must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread and return or raise what it does."""
        # Cancelling the caller only stops its waiting: a job in the thread cannot be interrupted and still runs.
        if self._stopped:
            raise RuntimeError("the worker has been stopped")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            try:
                settle = partial(answer.set_result, work())
            except BaseException as error:
                settle = partial(answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                # The waiting task may have been cancelled meanwhile, and a done future takes no result.
                loop.call_soon_threadsafe(lambda: None if answer.done() else settle())

        self._jobs.put(do)
        return await answer

    def stop(self) -> None:
        """Finish the queued jobs and end the thread. Safe to call twice. Blocks until then."""
        self._stopped = True
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        self._prepare()
        while (job := self._jobs.get()) is not None:
            job()


_Rows = tuple[int, NDArray[np.float32]]
Ready = Callable[[], Awaitable[None]]  # waits until drafting may begin


@dataclass(frozen=True, slots=True)
class AheadCost:
    """Cost of drafting `levels` levels for `outcomes` outcomes side by side."""

    seconds: float
    levels: int
    outcomes: int


class AheadDraft:
    """Drafts for the outcomes of a tree whose verdict is awaited, finished or being made."""

    def __init__(self, make: Callable[[AheadDraft], Awaitable[tuple[PreDraft, ...]]]) -> None:
        self.cost: AheadCost | None = None  # known once there are levels for all outcomes
        self.is_whole = False  # all drafts were finished before the verdict arrived
        self._truth: TreeOutcome | None = None
        self.has_begun = False
        self.task = asyncio.ensure_future(make(self))  # the drafts, the likeliest outcome first

    def truth(self) -> TreeOutcome | None:
        """Return the actual outcome, None until it is known."""
        # Read by the drafting thread while the event loop writes it: one reference, so no lock is needed.
        return self._truth

    def resolve(self, outcome: TreeOutcome) -> None:
        """Set the actual outcome: only its draft is finished, and nothing new is begun."""
        self._truth = outcome
        # Cancel only while it waits for features: a running job polls `truth` and stops between levels by itself.
        if not self.has_begun:
            self.task.cancel()

    @property
    def num_nodes(self) -> int:
        return sum(len(one.drafted.tree) for one in self._drafts)

    def rank_of(self, outcome: TreeOutcome) -> int | None:
        """Return the rank of `outcome`, from 0, among those drafted for; None if it is not among them."""
        return next((rank for rank, one in enumerate(self._drafts) if one.outcome == outcome), None)

    def cancel(self) -> None:
        """Stop: none of the drafts is needed."""
        self.resolve(NO_OUTCOME)
        self.task.cancel()

    async def draft_for(self, outcome: TreeOutcome) -> ScoredTree | None:
        """Return the draft for the actual outcome, once finished; None if there is none."""
        self.resolve(outcome)
        await asyncio.wait((self.task,))
        for made in self._drafts:
            if made.outcome == outcome and made.drafted.tree.tokens:
                return made.drafted
        return None

    @property
    def _drafts(self) -> tuple[PreDraft, ...]:
        return self.task.result() if self.task.done() and not self.task.cancelled() else ()


class AsyncDrafter(Protocol):
    """A drafter as generations use it. `tokens` is always the whole text, and its last token is the root."""

    tap: TapInfo
    stale_tolerant: bool
    levels_per_pass: int
    can_draft_ahead: bool  # on tokens whose features it has not seen
    num_features: int

    @property
    def names(self) -> Sequence[str]: ...  # of the heads

    @property
    def current(self) -> int: ...

    def begin(self, common: int) -> None: ...

    def add_features(self, first: int, rows: NDArray[np.float32]) -> None: ...

    def draft_ahead(
        self, tokens: Sequence[int], tree: DraftTree, wanted: PreDraftSpec, ready: Ready | None = None
    ) -> AheadDraft: ...

    async def grow(self, tokens: Sequence[int], plan: TreePlan, head: int | None = None) -> RoutedDraft: ...

    async def write(
        self, tokens: Sequence[int], sampling: Sampling, rules: AnswerRules | None = None
    ) -> int | None: ...

    async def follow(self, tokens: Sequence[int]) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PreDraftSpec:
    """The drafts to make ahead: by `plan`, for so many outcomes that do not end in one of `ends`."""

    plan: TreePlan
    outcomes: int
    ends: tuple[int, ...]


class DraftingThread:
    """An AsyncDrafter on a thread of its own. Used from one event loop."""

    # The drafter's state (_state, _tokens) is touched only by jobs in the thread; all other fields only by the event
    # loop. Both sides rely on it: there is no lock.

    def __init__(self, drafter: Drafter, num_cpu_threads: int | None = None) -> None:
        heads = RoutedDrafter.of(drafter)
        self.tap = heads.tap
        self.names = heads.names
        self.stale_tolerant = heads.stale_tolerant
        self.levels_per_pass = heads.levels_per_pass
        self._paced = [head for head in heads.heads if isinstance(head, PacedDrafter)]
        self._state = heads.new_state()
        self.can_draft_ahead = can_predraft(self._state)
        self._tokens: list[int] = []  # the tokens that the state holds
        self._arrived: list[_Rows] = []
        self.num_features = 0  # positions whose features have arrived
        self._shared: list[int] = []  # common prefix of each answer with the one before
        self.history: History | None = None  # that the drafts of the next answer may come from, too
        # Always: else it would take what another thread of this process has asked for in the meantime.
        limit = partial(torch.set_num_threads, num_cpu_threads or torch.get_num_threads())
        self._worker = WorkerThread("outrider-draft", limit)

    def begin(self, common: int) -> None:
        """Start an answer that shares only its first `common` tokens with the previous one."""
        self._arrived = [(first, rows[: common - first]) for first, rows in self._arrived if first < common]
        self.num_features = min(self.num_features, common)
        self._shared.append(common)

    def add_features(self, first: int, rows: NDArray[np.float32]) -> None:  # [n, width]
        """Keep rows for the next job. Raises Violation for another width."""
        if rows.shape[1] != self.tap.width:
            raise Violation(Reason.MALFORMED_FEATURES, f"features of width {rows.shape[1]}: need {self.tap.width}")
        # After a gap rows are useless to a drafter that reads all positions in order.
        if len(rows) and (first <= self.num_features or self.tap.newest_only):
            self._arrived.append((first, rows))
            self.num_features = max(self.num_features, first + len(rows))

    @property
    def current(self) -> int:
        """Index of the head in use."""
        return self._state.current

    async def grow(self, tokens: Sequence[int], plan: TreePlan, head: int | None = None) -> RoutedDraft:
        """Draft on `tokens`, whose last one is the root, by the best head or by `head`; empty if none can."""
        return await self._run(tokens, lambda: self._state.draft(plan, head))

    def draft_ahead(
        self, tokens: Sequence[int], tree: DraftTree, wanted: PreDraftSpec, ready: Ready | None = None
    ) -> AheadDraft:
        """Draft for the likeliest outcomes of `tree` below `tokens`, with the head in use, once `ready` returns."""

        async def make(ahead_draft: AheadDraft) -> tuple[PreDraft, ...]:
            if ready is not None:
                await ready()
            ahead_draft.has_begun = True
            return await self._run(tokens, lambda: self._predraft_job(tree, wanted, ahead_draft))

        return AheadDraft(make)

    async def write(self, tokens: Sequence[int], sampling: Sampling, rules: AnswerRules | None = None) -> int | None:
        """Write the next token with the head in use, or another; None if none can within the rules."""
        return await self._run(tokens, lambda: self._write(sampling, rules))

    async def follow(self, tokens: Sequence[int]) -> None:
        """Bring the state up to date without drafting."""
        await self._run(tokens, lambda: None)

    async def close(self) -> None:
        """Safe to call twice."""
        try:
            await asyncio.to_thread(self._worker.stop)
        except RuntimeError:  # the interpreter is ending: executors take no more work
            self._worker.stop()

    async def _run(self, tokens: Sequence[int], job: Callable[[], T]) -> T:
        # Taken before the await: rows that arrive while the job runs belong to the next one.
        arrived, self._arrived = self._arrived, []
        num_begun = len(self._shared)
        result, num_features = await self._worker.run(partial(self._job, list(tokens), arrived, self.history, job))
        # A new answer may have begun while the job ran (a cancelled caller does not stop it): it shares only so much.
        num_features = min([num_features, *self._shared[num_begun:]])
        self.num_features = max((num_features, *(first + len(rows) for first, rows in self._arrived)))
        return result

    def _predraft_job(self, tree: DraftTree, wanted: PreDraftSpec, ahead_draft: AheadDraft) -> tuple[PreDraft, ...]:
        polled_at: list[float] = []  # before and after the tree's own passes, then after each level but the last

        def truth() -> TreeOutcome | None:
            known = ahead_draft.truth()
            if known is None:
                polled_at.append(time.perf_counter())
            return known

        self._batch(wanted.outcomes)
        try:
            made = predraft(self._state, tree, wanted.plan, wanted.outcomes, wanted.ends, truth)
        finally:
            self._batch(1)
        ahead_draft.is_whole = bool(made) and ahead_draft.truth() is None
        if (num_levels := len(polled_at) - 2) > 0:
            ahead_draft.cost = AheadCost(polled_at[-1] - polled_at[1], num_levels, wanted.outcomes)
        return made

    def _batch(self, outcomes: int) -> None:
        for head in self._paced:
            head.outcomes = outcomes

    def _write(self, sampling: Sampling, rules: AnswerRules | None) -> int | None:
        if not self._state.switch_to_able_head():
            return None
        # Not root_logits: those may be a copy's.
        logits = self._state.tree_logits(DraftTree())
        if rules is not None:
            logits = rules.applied(logits, self._tokens[rules.reads_from :])
            if not logits.isfinite().any():
                return None
        return choose_tokens(logits, sampling, [len(self._tokens)])[0]

    @torch.inference_mode()
    def _job(
        self, tokens: list[int], arrived: list[_Rows], history: History | None, job: Callable[[], T]
    ) -> tuple[T, int]:
        sync_tokens(self._state, self._tokens, tokens)
        self._tokens = tokens
        for first, rows in arrived:
            if len(rows) and (first <= self._state.num_features or self.tap.newest_only):
                self._state.add_features(first, torch.from_numpy(rows))
        with reading(history):
            return job(), self._state.num_features
