"""The beginning of answers to long prompts: when the client takes over, and the target's own text despite outages."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import pytest

from outrider_client import AsyncClient, ClientConfig
from outrider_client.controller.mode_controller import ModeController
from outrider_client.core.events import Committed, Cycle, Unverified
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_netsim import Direction, Link, Profile
from outrider_proto.frames import Decode
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import slow
from ..answers import golden_config, plain, replayed

NEW = 40
PROMPTS = (tuple(range(10, 160)), tuple(range(20, 150)), tuple(range(5, 150)))
SLOW = Profile.symmetric("slow", Direction(10, rate_bps=1e6))  # a prompt's features take several round trips


@pytest.fixture(params=["moa", *slow("eagle2")])
def config(golden, request) -> ClientConfig:
    shape = TreeShape(2, 3, 5)
    return golden_config(golden, request.param, codec="float32", max_new_tokens=NEW, shape=shape)


@contextlib.asynccontextmanager
async def running(config: ClientConfig):
    """A client of the real server, and the slow link between them."""
    verifier = Verifier(Target.load(str(config.target)), [load_tap(config.drafter, config.target)])
    async with (
        Server(verifier) as server,
        Link(SLOW, server.address, "proxy", seed=1) as link,
        AsyncClient(dataclasses.replace(config, server=link.address)) as client,
    ):
        yield client, link


def let_features_come_soon(monkeypatch, *, after: int) -> None:
    """Make the controller expect the features within a round trip from the given question on."""
    asked = itertools.count()
    monkeypatch.setattr(ModeController, "arrive_within_rtt", lambda *_: next(asked) >= after)


@pytest.mark.parametrize("mode", ["proactive", *slow("stop-and-wait")])
async def test_the_text_is_the_plain_loops(config, mode, monkeypatch):
    """The server is stopped before its first token, after a few, and once the features are there."""
    async with running(config) as (client, _):
        for prompt, after in zip(PROMPTS, (1, 3, 999), strict=True):
            let_features_come_soon(monkeypatch, after=after)
            events = [event async for event in client.generate(prompt, mode=mode)]
            assert tuple(replayed(events)) == plain(config.target, prompt, NEW)
            assert isinstance(events_of(Cycle, events)[0].request, Decode)


@pytest.mark.parametrize("after", [2, *slow(999)])
async def test_an_outage_amid_a_prompts_features(config, after, monkeypatch):
    """It finds the server writing, or about to be stopped."""
    let_features_come_soon(monkeypatch, after=after)
    async with running(config) as (client, link):
        events = []
        async with contextlib.aclosing(client.generate(PROMPTS[0], mode="pipelined")) as stream:
            async for event in stream:
                if isinstance(event, Committed) and not events_of(Committed, events):
                    link.cut()
                events.append(event)
                if link.is_cut and len(events_of(Unverified, events)) == 3:
                    link.restore()
        assert tuple(replayed(events)) == plain(config.target, PROMPTS[0], NEW)
        assert events[-1].statistics.outages == 1
        assert events_of(Unverified, events)


def events_of(kind: type, events: list) -> list:
    return [event for event in events if isinstance(event, kind)]
