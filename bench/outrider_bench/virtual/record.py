"""Taping: the real target writes its answers one token a pass, and at every token the real drafter, which has all
features up to there, drafts once. What it then holds likely after the root and after every node is the tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_bench.pair import Pair
from outrider_bench.virtual.tape import MARGIN, Guess, Place, Recording, Tape, TokenPath, Vocabulary
from outrider_bench.virtual.texts import guess_from
from outrider_client.transport import Connection
from outrider_drafters.drafter import ENDLESS, Drafter, DraftState
from outrider_drafters.trees.choices import Choices
from outrider_drafters.trees.grow import begin_growth
from outrider_drafters.trees.shape import TreePlan
from outrider_proto.frames import Draft, Features, Opened, Verdict
from outrider_proto.tree import ROOT, DraftTree

SAMPLE_ROWS = 64  # feature rows that a tape holds


async def record(
    pair: Pair,
    prompts: Mapping[str, tuple[int, ...]],
    plan: TreePlan,
    keep: int,
    limit: int,
    step: Callable[[], None] = lambda: None,
) -> Tape:
    """A tape of the target's answers to all prompts, given by name, of at most `limit` tokens each. `keep`: next tokens
    taped of every node."""
    recorder, recordings = _Recorder(pair, plan, keep), []
    for name, prompt in prompts.items():
        recordings.append(await recorder.record(name, prompt, limit))
        step()
    return recorder.tape(recordings)


class _Recorder:
    """Tapes prompt after prompt."""

    def __init__(self, pair: Pair, plan: TreePlan, keep: int) -> None:
        assert pair.models.drafter is not None
        self._pair = pair
        self._drafter: Drafter = pair.models.drafter
        self._plan = plan
        self._keep = keep
        self._rows: list[NDArray[np.float32]] = []
        self._endless = True

    async def record(self, name: str, prompt: tuple[int, ...], limit: int) -> Recording:
        """One answer of at most `limit` tokens, and what is taped beyond it."""
        teller = _Teller(await self._pair.transport().connect(), self._pair)
        try:
            answer, places = await self._answer(prompt, limit + MARGIN, teller)
        finally:
            await teller.close()
        return Recording(name, prompt, answer, places, limit)

    def tape(self, recordings: Sequence[Recording]) -> Tape:
        models, drafter = self._pair.models, self._drafter
        rows = np.concatenate(self._rows)[:SAMPLE_ROWS] if self._rows else np.zeros((1, drafter.tap.width))
        return Tape(
            drafter=drafter.family,
            tap=drafter.tap,
            stale_tolerant=drafter.stale_tolerant,
            tree_in_one=drafter.tree_in_one,
            vocabulary=Vocabulary(models.vocab_size, models.eos_token_ids, models.max_context),
            breadth=self._keep if isinstance(self._plan, Choices) else self._plan.breadth,
            levels=self._plan.levels,
            choices=self._plan.paths if isinstance(self._plan, Choices) else None,
            endless=self._endless,
            rows=tuple(tuple(row) for row in rows.tolist()),
            recordings=tuple(recordings),
        )

    async def _answer(
        self, prompt: tuple[int, ...], most: int, teller: _Teller
    ) -> tuple[tuple[int, ...], tuple[Place, ...]]:
        """The answer, and the drafts at each of its tokens."""
        state, models = self._drafter.new_state(), self._pair.models
        answer, places = [await teller.first(prompt)], list[Place]()
        state.append((*prompt, answer[0]))
        while True:
            self._feed(state, teller, is_prompt=not places)
            self._endless = self._endless and state.reach == ENDLESS
            places.append(taped_place(state, self._plan, self._keep))
            ended = answer[-1] in models.eos_token_ids
            if ended or len(answer) == most or len(prompt) + len(answer) + 1 >= models.max_context:
                return tuple(answer), tuple(places)
            answer.append(await teller.after(answer[-1]))
            state.append(answer[-1:])

    def _feed(self, state: DraftState, teller: _Teller, is_prompt: bool) -> None:
        for first, rows in teller.arrived():
            state.add_features(first, torch.from_numpy(rows))
            if not is_prompt and len(self._rows) < SAMPLE_ROWS:
                self._rows.append(rows)


@torch.inference_mode()
def taped_place(state: DraftState, plan: TreePlan, keep: int) -> Place:
    """What the state would draft from its root, and hold likely after all of it."""
    if not state.reach:
        return Place({})
    guesses: dict[TokenPath, Guess] = {}
    growth = begin_growth(_noted(guesses, (), state.root_logits(), keep), plan)
    paths: list[TokenPath] = []
    for _ in range(1, min(plan.levels, state.reach)):
        if (level := growth.level()) is None:
            break
        logits = state.expand(level.tokens, level.parents)
        for token, parent, row in zip(level.tokens, level.parents, logits, strict=True):
            paths.append((*(() if parent == ROOT else paths[parent]), token))
            _noted(guesses, paths[-1], row, keep)
        growth.take(logits)
    if state.reach == ENDLESS:
        _note_all(guesses, growth.drafted().tree, state, keep)
    return Place(guesses)


def _note_all(guesses: dict[TokenPath, Guess], tree: DraftTree, state: DraftState, keep: int) -> None:
    """Also after the leaves, for the outcomes that end there."""
    paths: list[TokenPath] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[1 + parent], token))
    for path, row in zip(paths, state.tree_logits(tree), strict=True):
        if path not in guesses:
            _noted(guesses, path, row, keep)


def _noted(guesses: dict[TokenPath, Guess], path: TokenPath, logits: Tensor, keep: int) -> Tensor:
    guesses[path] = guess_from(logits, keep)
    return logits


class _Teller:
    """A session of its own with the target: asked for one token after the other, and for all features."""

    def __init__(self, connection: Connection, pair: Pair) -> None:
        self._connection = connection
        self._pair = pair
        self._seq = 0
        self._held = 0
        self._arrived: list[tuple[int, NDArray[np.float32]]] = []
        self._has_tap = pair.models.drafter is not None and bool(pair.models.drafter.tap.fingerprint)

    async def first(self, prompt: Sequence[int]) -> int:
        self._connection.send(self._pair.models.introduction("float32"))
        opened = await self._connection.receive()
        assert isinstance(opened, Opened)
        return await self._ask(tuple(prompt[:-1]), prompt[-1])

    async def after(self, token: int) -> int:
        return await self._ask((), token)

    def arrived(self) -> list[tuple[int, NDArray[np.float32]]]:
        """Features that have come since this was asked last."""
        arrived, self._arrived = self._arrived, []
        return arrived

    async def close(self) -> None:
        await self._connection.close()

    async def _ask(self, context: tuple[int, ...], root: int) -> int:
        self._seq += 1
        self._connection.send(Draft(self._seq, self._held, context, root, DraftTree(), features_from=self._held))
        self._held += len(context) + 1
        verdict = await self._connection.receive()
        assert isinstance(verdict, Verdict)
        while self._has_tap:
            frame = await self._connection.receive()
            assert isinstance(frame, Features)
            self._arrived.append((frame.first, frame.rows))
            if frame.last:
                break
        assert verdict.bonus is not None  # no tree: nothing else could end the answer
        return verdict.bonus
