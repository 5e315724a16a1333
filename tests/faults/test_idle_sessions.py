"""A full server parks sessions that are idle: they keep nobody out, and go on exactly when their clients are back."""

from contextlib import AsyncExitStack

import pytest
from stage import PROMPT, answer, client, opened, plain, server, until
from talk import talking

from outrider_client.core.events import Cycle
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Ping, Pong
from outrider_server.security.principal import Principal
from outrider_server.sessions import session_table

NUM_PLACES = 64
STRANGER = Principal(address="198.51.100.7")


@pytest.fixture
def at_once(monkeypatch):
    """Sessions are idle as soon as they do nothing."""
    monkeypatch.setattr(session_table, "_IDLE_S", 0.0)


async def rest(running) -> None:
    """Wait until no stream has anything to do: the last verdict is not the last reply."""
    await until(lambda: not any(stream.is_busy for stream in running.verifier._streams), "the last reply is out")


async def test_more_silent_streams_than_places_keep_nobody_out(at_once):
    """With the server's own limits; pings are no work."""
    async with server() as running, AsyncExitStack() as stack:
        silent = [(await stack.enter_async_context(opened(running)))[0] for _ in range(NUM_PLACES + 16)]
        for talk in silent[16:]:
            await talk.send(Ping(1))
            assert await talk.receive() == Pong(1)
        for talk in silent[:16]:
            assert (await talk.refusal()).reason is Reason.STALLED
        stats = running.verifier.stats()
        assert (stats.active, stats.parked) == (NUM_PLACES, 16)
        async with client(running.address) as mine:
            assert await answer(mine) == plain()


async def test_places_are_for_those_at_work_and_a_parked_client_gets_one_back_later(at_once):
    """Without a place its session stays parked, and no text is sent again when there is one."""
    async with server(max_sessions=1) as running, client(running.address) as mine:
        assert await answer(mine) == plain()
        await rest(running)
        async with talking(running.verifier) as busy:
            await busy.open(running.verifier.describe())
            await busy.send(Decode(1, 0, PROMPT[:-1], PROMPT[-1], 400))  # nobody reads on: it stays under way
            await busy.receive()
            text = (*mine.tokens, 7, 8)
            with pytest.raises(Refusal) as refused:
                await answer(mine, text)
            assert refused.value.reason is Reason.SERVER_FULL
            assert running.verifier.stats().parked == 1
        cycles = [event async for event in mine.generate(text) if isinstance(event, Cycle)]
        assert tuple(mine.tokens) == (*text, *plain(text))
        assert cycles[0].request.base_len >= len(text) - 3


@pytest.mark.parametrize("asks", [False, True])
async def test_a_flood_of_sessions_of_one_address_displaces_its_own(asks):
    """Four addresses have a parked session each; another one opens ten times as many as the server keeps."""
    async with server(max_sessions=8, parked_sessions=8) as running:
        ids = []
        for number in range(4):
            async with talking(running.verifier, Principal(address=f"203.0.113.{number}")) as talk:
                ids.append((await talk.open(running.verifier.describe())).session_id)
                await talk.prompt(PROMPT)
        for _ in range(80):
            async with talking(running.verifier, STRANGER) as talk:
                await talk.open(running.verifier.describe())
                if asks:
                    await talk.prompt(PROMPT)
            assert running.verifier.stats().parked <= 8
        assert len(running.verifier._sessions) == 8
        for number, session_id in enumerate(ids):
            async with talking(running.verifier, Principal(address=f"203.0.113.{number}")) as talk:
                back = await talk.open(running.verifier.describe(), session_id=session_id, committed_len=len(PROMPT))
                assert (back.resumed, back.kept_len) == (True, len(PROMPT))


async def test_who_opens_sessions_without_end_and_uses_none_keeps_nobody_out():
    """Two addresses fill the server, and none of their sessions is old enough to be idle."""
    async with server(max_sessions=4) as running, AsyncExitStack() as stack:
        flood = [
            await stack.enter_async_context(talking(running.verifier, address))
            for address in (STRANGER, Principal(address="203.0.113.9"))
            for _ in range(2)
        ]
        for talk in flood:
            await talk.open(running.verifier.describe())
        async with client(running.address) as mine:
            assert await answer(mine) == plain()
            assert running.verifier.stats().active == 4
