"""Two hundred answers over random links, in virtual time: whatever the mode, the drafter's and the target's pace, the
jitter, the losses and the outages, the text is the target's own.

gRPC has threads and timers of its own, which no clock of ours can move: frames travel on the virtual link's own pipes.
A language made of hashes stands for both models; their passes last, in virtual time, as long as the scenario says.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from dataclasses import dataclass
from typing import get_args

import pytest

from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.controller.decision import ModeSelector
from outrider_client.controller.measurements import Choice
from outrider_client.core.config import ClientConfig, Mode
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_client.drafting.drafting_thread import WorkerThread
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_netsim import Profile, profile_named
from outrider_netsim.profiles.profile import Bursts, Direction, Outage
from outrider_netsim.virtual.clock import VirtualClock
from outrider_netsim.virtual.link import VirtualLink
from outrider_proto.errors import LinkError
from outrider_proto.frames import Verdict

from ..virtual_transport import FRAME_BYTES, VirtualTransport, received

MODES = [mode for mode in get_args(Mode) if mode != "offline"]
SEEDS = 200
SWITCHING_SEEDS = 60
NEW = 60
CONTEXT = 200  # the fake target's
TURNS = 2


@dataclass(frozen=True)
class Scenario:
    """A random link, pair of models, and settings of each answer."""

    seed: int
    profile: Profile
    verify_s: float
    draft_s: float
    forgets: bool  # the server restarts in each outage
    eos_at: int
    choices: tuple[dict, ...]

    @classmethod
    def drawn(cls, seed: int) -> Scenario:
        draw = random.Random(f"scenario/{seed}")
        outages, start = [], 0.0
        for _ in range(draw.choice([0, 1, 1, 2, 4])):
            start += draw.uniform(0.05, 2.0)
            outages.append(Outage(draw.choice([0.02, 0.3, 2.0, 30.0]), start))
            start = outages[-1].end_s
        profile = Profile("by chance", drawn_direction(draw), drawn_direction(draw), outages=tuple(outages))
        return cls(
            seed,
            profile,
            verify_s=draw.choice([0.0, 0.01, 0.06]),
            draft_s=draw.choice([0.0, 0.005, 0.04]),
            forgets=draw.random() < 0.3,
            eos_at=draw.choice([-1, -1, 20, 33]),
            choices=tuple(drawn_choices(draw, MODES[seed % len(MODES)]) for _ in range(TURNS)),
        )


def drawn_direction(draw: random.Random) -> Direction:
    distribution = draw.choice(["constant", "uniform", "normal", "pareto"])
    loss, bursts = draw.choice([(0.0, None), (0.02, None), (0.0, Bursts(0.02, 0.3))])
    return Direction(
        draw.choice([0.0, 5.0, 20.0, 120.0]),
        0.0 if distribution == "constant" else draw.choice([2.0, 20.0]),
        distribution,
        draw.choice([0.0, 2e5, 2e7]),
        base_ms=draw.choice([0.0, 4.5]),
        loss=loss,
        bursts=bursts,
        in_order=draw.random() < 0.5,
    )


def drawn_choices(draw: random.Random, mode: str) -> dict:
    return {
        "mode": mode,
        "max_new_tokens": draw.choice([1, 7, NEW, NEW]),
        "shape": draw.choice([None, TreeShape(draw.randint(1, 3), draw.randint(1, 5), draw.randint(1, 9))]),
        "in_flight": draw.randint(1, 4),
        "outcomes": draw.choice([None, 1, 2, 8]),
        "wait_for_features": draw.choice([None, True, False]),
        "offline_limit": draw.choice([None, 0, 5]),
    }


async def serve(link, verifier, scenario):
    """The far end: a session for the newest connection. Drafts that come late on an older one reach nobody."""
    newest = None
    async with asyncio.TaskGroup() as sessions:
        while True:
            pipe = await link.accept()
            if newest is not None:
                newest.cancel()
                if scenario.forgets:
                    verifier.sessions.clear()
            newest = sessions.create_task(session(pipe, verifier, scenario.verify_s))


async def session(pipe, verifier, verify_s):
    async def incoming():
        with contextlib.suppress(LinkError):
            while True:
                yield await received(pipe)

    with contextlib.suppress(LinkError):  # the link is cut
        async for reply in verifier.session(incoming()):
            if isinstance(reply, Verdict) and not reply.stale:
                await asyncio.sleep(verify_s)
            with contextlib.suppress(BrokenPipeError, TimeoutError):
                pipe.send(reply, FRAME_BYTES)
    pipe.close()


def work_in_virtual_time(monkeypatch, scenario):
    """The client's threads do one job after another, each to its end even when nobody waits for it any more."""
    turns: dict[WorkerThread, asyncio.Lock] = {}
    draw = random.Random(f"work/{scenario.seed}")

    async def run(worker, work):
        async def job():
            async with turns.setdefault(worker, asyncio.Lock()):
                await asyncio.sleep(draw.random() * scenario.draft_s)
                result = work()
                await asyncio.sleep(draw.random() * scenario.draft_s)
                return result

        return await asyncio.shield(asyncio.create_task(job()))

    monkeypatch.setattr(WorkerThread, "run", run)


async def answered(scenario, link, verifier, models):
    """The prompts of a chat, each with its answer and the link's states meanwhile."""
    turns = []
    config = ClientConfig(wait_for_link_s=10_000, offline_start=True)
    draw = random.Random(f"chat/{scenario.seed}")
    async with asyncio.TaskGroup() as group:
        far = group.create_task(serve(link, verifier, scenario))
        async with AsyncClient(
            config, models=models, transport=VirtualTransport(link, verifier), clock=lambda: link.clock.now
        ) as client:
            prompt = tuple(draw.randint(1, 60) for _ in range(draw.choice([4, 4, 30, 150])))
            for choices in scenario.choices:
                if draw.random() < 0.2:
                    await leave(client, prompt, draw.randint(1, 15), choices)
                tokens, states = await replayed(client, prompt, choices)
                turns.append((prompt, choices["max_new_tokens"], tokens, states))
                prompt = (*prompt, *tokens[: draw.randint(1, NEW)], draw.randint(1, 60))[: CONTEXT - 20]
        far.cancel()
    return turns


async def leave(client, prompt, after, choices):
    """Ask, and lose interest after so many events."""
    async with contextlib.aclosing(client.generate(prompt, **choices)) as events:
        async for _ in events:
            after -= 1
            if after == 0:
                return


async def replayed(client, prompt, choices):
    """The answer as a listener builds it."""
    tokens, states = [], []
    async with contextlib.aclosing(client.generate(prompt, **choices)) as events:
        async for event in events:
            match event:
                case Committed() | Unverified():
                    assert event.first == len(tokens)
                    tokens += event.tokens
                case RolledBack():
                    del tokens[event.first :]
                case LinkChanged():
                    assert "no verdict" not in event.detail  # the server answers whatever it is asked
                    states.append(event.state)
    return tuple(tokens), states


def mode_run(monkeypatch, scenario, language, verifier, models):
    """The turns of a scenario, each checked."""
    language.eos_at = scenario.eos_at
    work_in_virtual_time(monkeypatch, scenario)
    models = dataclasses.replace(
        models, drafter=dataclasses.replace(models.drafter, stale_tolerant=scenario.seed % 2 == 0)
    )
    link = VirtualLink(scenario.profile, scenario.seed, VirtualClock())
    turns = link.clock.run(answered(scenario, link, verifier, models))
    for prompt, max_new_tokens, tokens, states in turns:
        assert tokens == language.answer(prompt, min(max_new_tokens, CONTEXT - len(prompt)))
        assert not states or states[-1] is LinkState.ONLINE
    return turns


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_text_is_the_targets_own(monkeypatch, seed, language, verifier, models):
    mode_run(monkeypatch, Scenario.drawn(seed), language, verifier, models)


@pytest.mark.parametrize(
    ("name", "at_s"), [("paper-5g", 2.0), ("paper-4g", 2.0), ("lte-edge", 2.0), ("satellite", 8.0)]
)
def test_so_it_is_through_an_outage_of_a_named_link(monkeypatch, name, at_s, language, verifier, models):
    profile = dataclasses.replace(profile_named(name), outages=(Outage(20.0, at_s),))
    choices = {"mode": "stop-and-wait", "max_new_tokens": 120}
    scenario = Scenario(0, profile, 0.06, 0.005, forgets=False, eos_at=-1, choices=(choices,))
    ((_, _, _, states),) = mode_run(monkeypatch, scenario, language, verifier, models)
    assert LinkState.OFFLINE in states


@pytest.mark.parametrize("seed", range(SWITCHING_SEEDS))
def test_so_it_is_through_any_change_of_modes(monkeypatch, seed, language, verifier, models):
    """A controller that throws dice after every verdict."""
    scenario = Scenario.drawn(seed)
    auto = tuple({**choices, "mode": "auto", "shape": None, "outcomes": None} for choices in scenario.choices)
    draw, modes = random.Random(f"dice/{seed}"), []

    def decide(controller):
        possible = sorted(controller.observer.limits.modes)
        if not modes or modes[-1] not in possible or draw.random() < 0.3:
            modes.append(draw.choice(possible))
        return Choice(
            modes[-1],
            levels=draw.randint(1, 5),
            breadth=draw.randint(1, 3),
            budget=draw.randint(1, 9),
            outcomes=draw.randint(1, 8),
            in_flight=draw.randint(1, 4),
            wait_for_features=draw.random() < 0.5,
        )

    monkeypatch.setattr(ModeSelector, "decide", decide)
    mode_run(monkeypatch, dataclasses.replace(scenario, choices=auto), language, verifier, models)
    assert modes


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_were_lost_with_the_link_are_not_waited_for(monkeypatch, mode, language, verifier, models):
    """The connection ends between a verdict and its features, and nobody writes meanwhile."""
    verifier.cut_after = {3}
    choices = {"mode": mode, "max_new_tokens": NEW, "offline_limit": 0, "wait_for_features": True}
    profile = Profile.symmetric("steady", Direction(10.0))
    scenario = Scenario(0, profile, 0.01, 0.001, forgets=False, eos_at=-1, choices=(choices,))
    work_in_virtual_time(monkeypatch, scenario)
    link = VirtualLink(profile, 0, VirtualClock())
    ((prompt, _, tokens, states),) = link.clock.run(answered(scenario, link, verifier, models))
    assert tokens == language.answer(prompt, NEW)
    assert LinkState.OFFLINE in states
    assert link.clock.now < ClientConfig().timeouts.features_s


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "auto"])
def test_a_steady_link_is_never_lost(monkeypatch, mode, language, verifier, models):
    """Under `auto`, with a controller that stays with one mode."""
    choices = {"mode": "auto", "max_new_tokens": 100}
    profile = Profile.symmetric("steady", Direction(10.0))
    scenario = Scenario(1, profile, 0.01, 0.001, forgets=False, eos_at=-1, choices=(choices,))
    monkeypatch.setattr(ModeSelector, "decide", lambda controller: Choice(mode, in_flight=2, outcomes=4))
    ((_, _, _, states),) = mode_run(monkeypatch, scenario, language, verifier, models)
    assert states == [LinkState.CONNECTING, LinkState.ONLINE]
