"""Peers that are gone without a word, and processes that stand still for a while: streams are freed, sessions are not,
and answers stay exact."""

import pytest
from mortal import MortalServer
from stage import NEW, PROMPT, client, opened, plain, server, until
from talk import calling

import outrider_server.rpc.server as server_module
from outrider_client.connection.link_state import LinkState
from outrider_client.core.events import Committed, LinkChanged
from outrider_netsim import Link, profile_named

HASTY_OPTIONS = {
    "grpc.keepalive_time_ms": 500,  # of the server's own, 30 s and 10 s, which nobody waits for here
    "grpc.keepalive_timeout_ms": 4000,  # longer than a busy machine stands still
    "grpc.http2.ping_timeout_ms": 4000,
}


@pytest.fixture
def hasty(monkeypatch):
    """A server with little patience with silent connections."""
    options = [(name, HASTY_OPTIONS.get(name, value)) for name, value in server_module.SERVER_OPTIONS]
    assert HASTY_OPTIONS.keys() <= dict(options).keys()
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", options)


@pytest.mark.slow
async def test_a_peer_that_vanished_frees_its_stream_and_keeps_its_session(hasty):
    """Behind a relay, which holds the TCP connection open on both sides."""
    async with server() as running:
        link = Link(profile_named("lan"), running.address, engine="proxy")
        async with link, calling(link.address) as talk:
            about = await talk.open(running.verifier.describe())
            verdict = await talk.prompt(PROMPT)
            assert len(running.verifier._streams) == 1
            link.cut()
            await until(lambda: not running.verifier._streams, "the stream is freed")
            assert len(running.verifier._sessions) == 1
        async with opened(running, session_id=about.session_id, committed_len=len(PROMPT)) as (talk, again):
            assert again.resumed
            assert again.kept_len == len(PROMPT)
            verdicts = await talk.decode(len(PROMPT), (), verdict.bonus, NEW - 1)
    assert (verdict.bonus, *(each.bonus for each in verdicts)) == plain()


async def test_a_server_that_stands_still_is_an_outage():
    """SIGSTOP for longer than the client's patience: it rides alone, and comes back when the server goes on."""
    states: list[LinkState] = []
    async with MortalServer() as mortal, client(mortal.address) as mine:
        await mortal.tell("start")
        stopped = False
        for prompt in (PROMPT, (*PROMPT, 9)):  # the first answer may be all there by the time the server stands
            async for event in mine.generate(prompt):
                if isinstance(event, Committed) and not stopped:
                    stopped = True
                    await mortal.tell("stop")
                elif isinstance(event, LinkChanged):
                    states.append(event.state)
                    if event.state is LinkState.OFFLINE:
                        await mortal.tell("cont")
            assert tuple(mine.tokens[len(prompt) :]) == plain(prompt)
    assert LinkState.OFFLINE in states
    assert LinkState.RESUMING in states
