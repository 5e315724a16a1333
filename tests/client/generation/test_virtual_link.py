"""The client in virtual time: outages of twenty seconds that cost none, and each answer the target's own.

gRPC has threads and timers of its own, which no clock of ours can move: frames travel on the virtual link's own pipes.
Models would work in threads, for a time that is not virtual: a language made of hashes stands for both of them.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, LinkChanged, RolledBack, Unverified
from outrider_client.drafting.worker_thread import WorkerThread
from outrider_netsim import profile_named
from outrider_netsim.virtual.clock import VirtualClock
from outrider_netsim.virtual.link import VirtualLink
from outrider_proto.errors import LinkError

from ..virtual_transport import FRAME_BYTES, VirtualTransport, received

PROMPT = (5, 9, 12, 3)
NEW = 120
OUTAGE_S = 20.0
CUT_AFTER = 30  # tokens


async def serve(link, verifier):
    """The far end: a session for the newest connection. Drafts that come late on an older one reach nobody."""
    newest = None
    async with asyncio.TaskGroup() as sessions:
        while True:
            pipe = await link.accept()
            if newest is not None:
                newest.cancel()
            newest = sessions.create_task(session(pipe, verifier))


async def session(pipe, verifier):
    async def incoming():
        with contextlib.suppress(LinkError):
            while True:
                yield await received(pipe)

    async for reply in verifier.session(incoming()):
        with contextlib.suppress(BrokenPipeError, TimeoutError):
            pipe.send(reply, FRAME_BYTES)
    pipe.close()


@pytest.fixture
def at_once(monkeypatch):
    """The client's thread works in no virtual time."""

    async def run(_, work):
        await asyncio.sleep(0)
        return work()

    monkeypatch.setattr(WorkerThread, "run", run)


async def answered(link, verifier, models):
    """An answer whose link is cut amid it: its tokens, and the states that the client saw."""
    clock, tokens, states = link.clock, [], []
    far = asyncio.create_task(serve(link, verifier))
    config = ClientConfig(max_new_tokens=NEW, wait_for_link_s=60, mode="stop-and-wait")
    transport = VirtualTransport(link, verifier)
    async with (
        AsyncClient(config, models=models, transport=transport, clock=lambda: clock.now) as client,
        contextlib.aclosing(client.generate(PROMPT)) as events,
    ):
        async for event in events:
            match event:
                case Committed() | Unverified():
                    tokens[event.first :] = event.tokens
                case RolledBack():
                    del tokens[event.first :]
                case LinkChanged():
                    states.append(event.state)
            if len(tokens) > CUT_AFTER and LinkState.OFFLINE not in states and not link.is_cut:
                link.cut()
                asyncio.get_running_loop().call_later(OUTAGE_S, link.restore)
    far.cancel()
    return tuple(tokens), states


@pytest.mark.parametrize("profile", ["paper-5g", "paper-4g", "lte-edge", "satellite"])
@pytest.mark.parametrize("seed", range(5))
def test_an_outage_in_virtual_time_changes_no_token(at_once, profile, seed, language, verifier, models):
    link = VirtualLink(profile_named(profile), seed, VirtualClock())
    tokens, states = link.clock.run(answered(link, verifier, models))
    assert tokens == language.answer(PROMPT, NEW)
    assert LinkState.OFFLINE in states
    assert states[-1] is LinkState.ONLINE
    assert link.clock.now > OUTAGE_S
    assert link.stats.up.dropped_by_outage > 0
