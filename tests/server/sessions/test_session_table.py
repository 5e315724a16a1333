"""Who gets a place in a full server, and whose session goes for it. Time is an argument."""

from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from talk import started, talking
from tiny_targets import target

from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Ping, Pong
from outrider_server.config.config import LimitsConfig
from outrider_server.security.principal import ANONYMOUS, Principal, Quota
from outrider_server.sessions.verifier import Verifier

IDLE_S = 11.0
STRANGER, OTHER = Principal(address="198.51.100.7"), Principal(address="203.0.113.9")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def serving(clock: Clock, **limits):
    verifier = Verifier(target(), limits=LimitsConfig(**limits), clock=clock)
    async with started(verifier):
        yield verifier


async def opened(stack: AsyncExitStack, verifier: Verifier, principal: Principal = ANONYMOUS):
    talk = await stack.enter_async_context(talking(verifier, principal))
    await talk.open(verifier.describe())
    return talk


async def refusal_of(verifier: Verifier, principal: Principal) -> Reason:
    async with talking(verifier, principal) as talk:
        with pytest.raises(Refusal) as refused:
            await talk.open(verifier.describe())
        return refused.value.reason


async def test_silent_sessions_keep_nobody_out():
    """Addresses with a session each fill the server and say no more than pings; sessions at work stay."""
    clock = Clock()
    async with serving(clock, max_sessions=5) as verifier, AsyncExitStack() as stack:
        busy = await opened(stack, verifier)
        await busy.send(Decode(1, 0, (3, 4, 5), 6, 400))  # nobody reads on: it stays under way
        await busy.receive()
        addresses = [Principal(address=f"198.51.100.{number}") for number in range(4)]
        silent = [await opened(stack, verifier, address) for address in addresses]
        assert await refusal_of(verifier, Principal("new")) is Reason.SERVER_FULL
        clock.now += IDLE_S
        for talk in silent:
            await talk.send(Ping(1))
            assert await talk.receive() == Pong(1)
        for i in range(4):
            await (await opened(stack, verifier, Principal(f"new {i}"))).prompt([3, 4, 5])
        assert [(await talk.refusal()).reason for talk in silent] == [Reason.STALLED] * 4
        assert await refusal_of(verifier, Principal("late")) is Reason.SERVER_FULL
        await busy.receive()
        stats = verifier.stats()
        assert (stats.active, stats.parked) == (5, 4)


@pytest.mark.parametrize(
    ("principal", "most"),
    [(STRANGER, 3), (Principal("key"), 3), (Principal("key", quota=Quota(sessions=5)), 5), (ANONYMOUS, 6)],
    ids=["address", "key", "key with a quota", "loopback"],
)
async def test_one_client_has_half_of_the_sessions_unless_it_is_given_more(principal, most):
    async with serving(Clock(), max_sessions=6) as verifier, AsyncExitStack() as stack:
        for _ in range(most):
            await opened(stack, verifier, principal)
        full = Reason.SERVER_FULL if principal is ANONYMOUS else Reason.OVER_QUOTA
        assert await refusal_of(verifier, principal) is full


async def test_the_limit_of_a_client_can_be_set():
    async with serving(Clock(), max_sessions=6, client_sessions=1) as verifier, AsyncExitStack() as stack:
        await opened(stack, verifier, STRANGER)
        assert await refusal_of(verifier, STRANGER) is Reason.OVER_QUOTA
        await opened(stack, verifier, OTHER)


@pytest.mark.parametrize("stranger", [STRANGER, ANONYMOUS], ids=["address", "loopback"])
async def test_who_opens_and_leaves_many_sessions_displaces_no_parked_one_of_others(stranger):
    """Of one holder, sessions without a text go before those with one."""
    async with serving(Clock(), max_sessions=6, parked_sessions=6) as verifier:
        ids = []
        for _ in range(3):
            async with talking(verifier) as talk:
                ids.append((await talk.open(verifier.describe())).session_id)
                await talk.prompt([5, 6, 7, 8])
        for _ in range(12):
            async with talking(verifier, stranger) as talk:
                await talk.open(verifier.describe())
        for session_id in ids:
            async with talking(verifier) as talk:
                assert (await talk.open(verifier.describe(), session_id=session_id, committed_len=4)).resumed
