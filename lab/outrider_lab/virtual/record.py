"""Recording of tapes: at every token of the target's answers, what the drafter predicts.

The target writes one token per pass, and at every token the drafter drafts once with all features up to there, and
again with late ones. What it then considers likely after the root and every node is taped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_bench.core.pair import InProcessPair, in_process
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import CorpusQuestion, Question
from outrider_bench.network.plan import NetworkPlan
from outrider_client.connection.transport import Connection
from outrider_drafters.contracts.drafter import UNLIMITED, Drafter, DraftState
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.trees.grow import start_tree
from outrider_lab.virtual.tape import MARGIN, Guess, Tape, TapedAnswer, TapedPosition, TokenPath, Vocabulary
from outrider_lab.virtual.texts import guess_from
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Features, Opened, Verdict
from outrider_proto.tree import ROOT, DraftTree

_Rows = tuple[int, NDArray[np.float32]]  # of features: the first one's position, [n, width]
SAMPLE_ROWS = 64  # feature rows that a tape holds
LAGS = (5, 10)  # tokens whose features are late: a verdict's and two verdicts'


async def record(
    pair: InProcessPair,
    prompts: Sequence[Question],
    plan: TreePlan,
    keep: int,
    limit: int,
    step: Callable[[], None] = lambda: None,
) -> Tape:
    """Tape the target's answers to all prompts, of at most `limit` tokens each.

    `keep`: next tokens taped per node.
    """
    recorder, recordings = _Recorder(pair, plan, keep), []
    for asked in prompts:
        category = None if isinstance(asked, CorpusQuestion) else asked.family
        recordings.append(replace(await recorder.record(asked.name, asked.prompt, limit), category=category))
        step()
    return recorder.tape(recordings)


class _Recorder:
    """Tapes prompt after prompt."""

    def __init__(self, pair: InProcessPair, plan: TreePlan, keep: int) -> None:
        assert pair.models.drafter is not None
        self._pair = pair
        self._drafter: Drafter = pair.models.drafter
        self._plan = plan
        self._keep = keep
        self._rows: list[NDArray[np.float32]] = []
        self._endless = True

    @property
    def _lags(self) -> tuple[int, ...]:
        """The lags to tape; none for a drafter that uses no features or only the newest."""
        tap = self._drafter.tap
        return LAGS if tap.fingerprint and not tap.newest_only else ()

    async def record(self, name: str, prompt: tuple[int, ...], limit: int) -> TapedAnswer:
        """Tape one answer of at most `limit` tokens, and a margin beyond it."""
        session = _TargetSession(await self._pair.transport().connect(), self._pair)
        try:
            answer, draftings = await self._answer(prompt, limit + MARGIN, session)
        finally:
            await session.close()
        fresh, *late = (tuple(drafting.positions) for drafting in draftings)
        return TapedAnswer(name, prompt, answer, fresh, limit, dict(zip(self._lags, late, strict=True)))

    def tape(self, recordings: Sequence[TapedAnswer]) -> Tape:
        models, drafter = self._pair.models, self._drafter
        rows = np.concatenate(self._rows)[:SAMPLE_ROWS] if self._rows else np.zeros((1, drafter.tap.width))
        return Tape(
            drafter=drafter.family,
            tap=drafter.tap,
            stale_tolerant=drafter.stale_tolerant,
            tree_in_one_pass=drafter.tree_in_one_pass,
            levels_per_pass=drafter.levels_per_pass,
            vocabulary=Vocabulary(models.vocab_size, models.eos_token_ids, models.max_context),
            breadth=self._keep if isinstance(self._plan, TreeChoices) else self._plan.breadth,
            levels=self._plan.levels,
            choices=self._plan.paths if isinstance(self._plan, TreeChoices) else None,
            endless=self._endless,
            rows=tuple(tuple(row) for row in rows.tolist()),
            recordings=tuple(recordings),
        )

    async def _answer(
        self, prompt: tuple[int, ...], most: int, session: _TargetSession
    ) -> tuple[tuple[int, ...], list[_LaggedDrafting]]:
        """Return the answer, and the draftings with fresh and with late features."""
        models, draftings = (
            self._pair.models,
            [_LaggedDrafting(self._drafter.new_state(), lag) for lag in (0, *self._lags)],
        )
        answer = [await session.first(prompt)]
        written: tuple[int, ...] = (*prompt, answer[0])
        while True:
            self._record_positions(draftings, written, session.arrived(), is_prompt=len(answer) == 1)
            ended = answer[-1] in models.eos_token_ids
            if ended or len(answer) == most or len(prompt) + len(answer) + 1 >= models.max_context:
                return tuple(answer), draftings
            answer.append(await session.after(answer[-1]))
            written = (answer[-1],)

    def _record_positions(
        self, draftings: Sequence[_LaggedDrafting], written: Sequence[int], arrived: Sequence[_Rows], *, is_prompt: bool
    ) -> None:
        for drafting in draftings:
            drafting.follow(written, arrived, in_time=is_prompt)
            drafting.positions.append(tape_position(drafting.state, self._plan, self._keep))
        self._endless = self._endless and draftings[0].state.max_levels == UNLIMITED
        if not is_prompt and len(self._rows) < SAMPLE_ROWS:
            self._rows += [rows for _, rows in arrived]


class _LaggedDrafting:
    """A draft state whose features come `lag` tokens late (the prompt's in time), and its taped positions."""

    def __init__(self, state: DraftState, lag: int) -> None:
        self.state = state
        self.positions: list[TapedPosition] = []
        self._lag = lag
        self._on_their_way: deque[_Rows] = deque()

    def follow(self, written: Sequence[int], arrived: Sequence[_Rows], *, in_time: bool) -> None:
        """Append written tokens, and add the features whose lag is over."""
        self.state.append(written)
        self._on_their_way += arrived
        while len(self._on_their_way) > (0 if in_time else self._lag):
            first, rows = self._on_their_way.popleft()
            self.state.add_features(first, torch.from_numpy(rows))


@torch.inference_mode()
def tape_position(state: DraftState, plan: TreePlan, keep: int) -> TapedPosition:
    """Draft from the root, and return the likely tokens after the root and every node."""
    if not state.max_levels:
        return TapedPosition({})
    guesses: dict[TokenPath, Guess] = {}
    builder = start_tree(_record_guess(guesses, (), state.root_logits(), keep), plan)
    paths: list[TokenPath] = []
    for _ in range(1, min(plan.levels, state.max_levels)):
        if (level := builder.level()) is None:
            break
        logits = state.expand(level.tokens, level.parents)
        for token, parent, row in zip(level.tokens, level.parents, logits, strict=True):
            paths.append((*(() if parent == ROOT else paths[parent]), token))
            _record_guess(guesses, paths[-1], row, keep)
        builder.take(logits)
    # Last of all: tree_logits starts a new draft, which drops the rows of this one.
    if state.max_levels == UNLIMITED:
        _record_leaves(guesses, builder.drafted().tree, state, keep)
    return TapedPosition(guesses)


def _record_leaves(guesses: dict[TokenPath, Guess], tree: DraftTree, state: DraftState, keep: int) -> None:
    """Record the leaves as well, for the outcomes that end there."""
    paths: list[TokenPath] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[1 + parent], token))
    for path, row in zip(paths, state.tree_logits(tree), strict=True):
        if path not in guesses:
            _record_guess(guesses, path, row, keep)


def _record_guess(guesses: dict[TokenPath, Guess], path: TokenPath, logits: Tensor, keep: int) -> Tensor:
    guesses[path] = guess_from(logits, keep)
    return logits


class _TargetSession:
    """A session with the target that asks for one token after the other, and for all features."""

    def __init__(self, connection: Connection, pair: InProcessPair) -> None:
        self._connection = connection
        self._pair = pair
        self._seq = 0
        self._num_sent = 0
        self._arrived: list[_Rows] = []
        self._has_tap = pair.models.drafter is not None and bool(pair.models.drafter.tap.fingerprint)

    async def first(self, prompt: Sequence[int]) -> int:
        self._connection.send(self._pair.models.open_frame("float32"))
        opened = await self._connection.receive()
        assert isinstance(opened, Opened)
        return await self._ask(tuple(prompt[:-1]), prompt[-1])

    async def after(self, token: int) -> int:
        return await self._ask((), token)

    def arrived(self) -> list[_Rows]:
        """Return the features that came since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived

    async def close(self) -> None:
        await self._connection.close()

    async def _ask(self, context: tuple[int, ...], root: int) -> int:
        self._seq += 1
        self._connection.send(
            Draft(self._seq, self._num_sent, context, root, DraftTree(), features_from=self._num_sent)
        )
        self._num_sent += len(context) + 1
        verdict = await self._connection.receive()
        assert isinstance(verdict, Verdict)
        # Without a tap no features follow, and waiting for them would never end.
        while self._has_tap:
            frame = await self._connection.receive()
            assert isinstance(frame, Features)
            self._arrived.append((frame.first, frame.rows))
            if frame.last:
                break
        assert verdict.bonus is not None  # no tree: nothing else could end the answer
        return verdict.bonus


async def record_plan(plan: NetworkPlan, drafter: str, shape: TreeShape, keep: int, step: Step) -> Tape:
    async with in_process(plan.target, plan.config(drafter)) as pair:
        if pair.models.drafter is None:
            raise UsageError(f"drafter {drafter}: it drafts nothing that could be taped")
        asked, own = plan.prompt_set(pair.models).asked, pair.models.drafter.plan
        counter = ProgressCounter(step, f"taping {drafter}", len(asked))
        tree = own if isinstance(own, TreeChoices) else shape
        tape = await record(pair, asked, tree, keep, plan.max_new_tokens, counter)
    return replace(tape, drafter=drafter)
