"""After every cycle a drafter's state, online, equals a fresh one after a fresh prefill: every drafter there is, in the
client's own loop with the real server, its drafts accepted and rejected at random."""

from __future__ import annotations

from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pytest
import torch
from golden_pairs import GOLDEN, PROMPTS, TARGETS, models, source, target
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider_bench.core.answer_record import gather
from outrider_client.async_client import AsyncClient
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.config import ClientConfig
from outrider_drafters.contracts.drafter import Drafter, DraftState, tree_logits_by_level
from outrider_drafters.contracts.drafter_wrapper import DrafterWrapper, StateWrapper
from outrider_drafters.contracts.tap import Tap
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_proto.frames import Sampling
from outrider_proto.tree import ROOT, DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.load import load_taps
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.sessions.verifier import Verifier

NEW_TOKENS = 16
ONE_OF_EACH_KIND = "moa, TLI 1", "eagle3_llama", "medusa_v01", "lookup"


@dataclass
class Drafting:
    """What one state was, and what it answered, from one root_logits to the next."""

    tokens: list[int]
    num_features: int
    root: Tensor
    levels: list[tuple[list[int], list[int], Tensor]] = field(default_factory=list)


class Watched(DrafterWrapper):
    """A drafter that notes what its states answer, and tells its caller something else: logits with noise, and now and
    then the target's own next token first. So any drafter's drafts are accepted and rolled back at random."""

    def __init__(self, inner: Drafter, noise: float, hints: float, seed: int) -> None:
        super().__init__(inner)
        self._noise = noise
        self._hints = hints
        self._generator = torch.Generator().manual_seed(seed)
        self.truth: list[int] = []  # what the target writes, its prompt included
        self.noted: list[Drafting] = []

    def new_state(self) -> WatchedState:
        return WatchedState(self.inner.new_state(), self)

    def disturbed(self, logits: Tensor, text: list[int]) -> Tensor:  # [V], for what follows the text
        logits = logits + self._noise * torch.randn(logits.shape, generator=self._generator)
        knows = len(text) < len(self.truth) and self.truth[: len(text)] == text
        if knows and float(torch.rand((), generator=self._generator)) < self._hints:
            logits[self.truth[len(text)]] = logits.max() + 1
        return logits


class WatchedState(StateWrapper):
    def __init__(self, inner: DraftState, drafter: Watched) -> None:
        super().__init__(inner, drafter)
        self._drafter = drafter
        self._tokens: list[int] = []
        self._texts: list[list[int]] = []  # that end with each expanded node

    def append(self, tokens: abc.Sequence[int]) -> None:
        self._tokens += tokens
        super().append(tokens)

    def rollback(self, num_tokens: int) -> None:
        del self._tokens[num_tokens:]
        super().rollback(num_tokens)

    def root_logits(self) -> Tensor:
        logits = super().root_logits()
        self._drafter.noted.append(Drafting(list(self._tokens), self.num_features, logits.clone()))
        self._texts.clear()
        return self._drafter.disturbed(logits, self._tokens)

    def expand(self, tokens: abc.Sequence[int], parents: abc.Sequence[int]) -> Tensor:
        logits = super().expand(tokens, parents)
        self._drafter.noted[-1].levels.append((list(tokens), list(parents), logits.clone()))
        for token, parent in zip(tokens, parents, strict=True):
            self._texts.append([*(self._tokens if parent == ROOT else self._texts[parent]), token])
        ends = self._texts[-len(tokens) :]
        return torch.stack([self._drafter.disturbed(*pair) for pair in zip(logits, ends, strict=True)])

    def tree_logits(self, tree: DraftTree) -> Tensor:
        return tree_logits_by_level(tree, self.root_logits(), self.expand)


@asynccontextmanager
async def served(name: str):
    """The real verifier in this process, with what this drafter wants."""
    served_target = target(TARGETS[name])
    verifier = Verifier(served_target, load_taps(served_target, GOLDEN / TARGETS[name], [source(name)]))
    await verifier.start()
    try:
        yield LocalTransport(verifier.describe, verifier.session)
    finally:
        await verifier.stop()


@lru_cache
def own_tap(name: str) -> Tap | None:
    """A tap beside the one that serves."""
    return load_tap(source(name), GOLDEN / TARGETS[name])


def fresh(name: str, drafting: Drafting) -> DraftState:
    """A new state given the same tokens, and the features of a new session of the server on them, as many."""
    state = models(name).drafter.new_state()
    state.append(drafting.tokens)
    tap = own_tap(name)
    if tap is not None and drafting.num_features:
        engine, sequence = Engine(target(TARGETS[name])), Sequence(target(TARGETS[name]).kv, tap)
        chain = drafting.tokens[: drafting.num_features]
        (outcome,) = engine.verify([StepInput(sequence, chain, DraftTree(), Sampler(Sampling()))])
        engine.commit(outcome)
        engine.tap([outcome.step_input.sequence])
        first, rows = sequence.features(0)
        state.add_features(first, torch.from_numpy(rows))
    return state


def check(name: str, drafting: Drafting) -> None:
    state = fresh(name, drafting)
    assert state.num_features == drafting.num_features
    torch.testing.assert_close(drafting.root, state.root_logits(), atol=1e-4, rtol=1e-4)
    for tokens, parents, logits in drafting.levels:
        torch.testing.assert_close(logits, state.expand(tokens, parents), atol=1e-4, rtol=1e-4)


scripts = st.fixed_dictionaries(
    {
        "noise": st.sampled_from([0.0, 1.0, 4.0]),
        "hints": st.sampled_from([0.0, 0.5, 0.9]),
        "seed": st.integers(0, 2**31),
        "shared": st.integers(0, 12),  # of the first answer's text, how much the second prompt begins with
        "shape": st.builds(TreeShape, st.integers(1, 4), st.integers(1, 5), st.integers(1, 12)),
        "wait_for_features": st.booleans(),
        "mode": st.sampled_from(["stop-and-wait", "proactive", "pipelined"]),
        "temperature": st.sampled_from([0.0, 1.0]),
    }
)


@lru_cache
def oracle(name: str) -> Target:
    """The target once more, for the plain loop beside the one that serves."""
    return Target.load(str(GOLDEN / name))


@lru_cache
def written(name: str, prompt: tuple[int, ...]) -> list[int]:
    """A prompt and what the target writes, greedily."""
    return [*prompt, *plain_greedy(oracle(name), prompt, NEW_TOKENS)]


async def play(name: str, script: dict) -> list[Drafting]:
    """Two answers of one session, the second on a prompt that shares some text with the first."""
    watched = Watched(models(name).drafter, script["noise"], script["hints"], script["seed"])
    config = ClientConfig(
        target=GOLDEN / TARGETS[name],
        drafter=source(name),
        codec="float32",
        shape=script["shape"] if watched.plan is None else None,
        wait_for_features=script["wait_for_features"],
        mode=script["mode"],
        sampling=Sampling(script["temperature"], seed=script["seed"]),
        max_new_tokens=NEW_TOKENS,
    )
    equipment = replace(models(name), drafter=watched)
    async with served(name) as transport, AsyncClient(config, models=equipment, transport=transport) as client:
        watched.truth = written(TARGETS[name], tuple(PROMPTS[0]))
        first = await gather(client, PROMPTS[0])
        text = [*PROMPTS[0], *first.token_ids]
        second = [*text[: len(PROMPTS[0]) - 4 + script["shared"]], *PROMPTS[1][1:5]]
        watched.truth = written(TARGETS[name], tuple(second))
        await gather(client, second)
    return watched.noted


@pytest.mark.parametrize(
    "name", [name if name in ONE_OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in TARGETS]
)
@settings(max_examples=6)
@given(script=scripts)
async def test_state_equals_that_after_a_fresh_prefill(name, script):
    noted = await play(name, script)
    assert noted or name == "lookup"
    for drafting in noted:
        check(name, drafting)
