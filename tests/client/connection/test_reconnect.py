"""Coming back after an outage, on a clock that jumps: how often a session tries, by what it met."""

import asyncio
import itertools
import random
from dataclasses import dataclass, replace

import pytest

from outrider_client.connection.link_state import LinkState
from outrider_client.connection.policy import Backoff, ConnectionPolicy, Patience, Timeouts
from outrider_client.connection.session import ClientSession
from outrider_client.text.transcript import Transcript
from outrider_netsim.virtual.clock import VirtualClock
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.errors import LinkError, Reason, Refusal
from outrider_proto.frames import Open, Opened
from outrider_proto.packing import prefix_hash

BACKOFF = Backoff()
ATTEMPT_S = Timeouts().reconnect_s
OPENED = Opened("s", False, 0, prefix_hash(()), 99, 9, ())


class Silence:
    """Packets that are lost."""

    async def connect(self):
        await asyncio.sleep(1e6)


@dataclass
class No:
    """An answer at once: that it cannot be."""

    error: Exception

    async def connect(self):
        raise self.error


class Deaf:
    """A server that takes connections and says nothing."""

    bytes_up = bytes_down = 0

    async def connect(self):
        return self

    def send(self, frame):
        pass

    async def receive(self):
        await asyncio.sleep(1e6)

    async def close(self):
        pass


class Yes(Deaf):
    """A server that opens a session, and later ends it."""

    async def connect(self):
        return Yes(self._digest)

    def __init__(self, digest=""):
        self._digest, self._answers = digest, [replace(OPENED, target_digest=digest)]

    async def receive(self):
        if self._answers:
            return self._answers.pop()
        await asyncio.sleep(0.5)
        raise LinkError("closed")


class Link:
    """A transport that meets with one thing from a time on, and that notes when it is tried."""

    address = "here"

    def __init__(self, clock, *met):
        self.clock, self.met = clock, met  # (from when, what)
        self.tried = []

    async def connect(self):
        self.tried.append(self.clock.now)
        return await [what for since, what in self.met if since <= self.clock.now][-1].connect()


def reconnect(*met, seed=0):
    """When, in an outage from 0 on, a session tried to come back, having met one thing after another."""
    clock = VirtualClock()
    link = Link(clock, (0.0, Yes()), *((1.0 + since, what) for since, what in met))
    open_frame = Open(PROTOCOL_VERSION, "t", "k")
    policy = ConnectionPolicy(Timeouts(), Patience(), BACKOFF)

    async def outage():
        session = ClientSession(link, open_frame, Transcript(), policy, lambda: clock.now, random.Random(seed))
        await session.connect()
        await session.disconnect("cut")
        await asyncio.sleep(1.0 - clock.now)
        await session.reconnect()
        assert session.state is LinkState.RESUMING
        await session.close()
        return [when - 1.0 for when in link.tried[1:]]

    return clock.run(outage())


@pytest.mark.parametrize(
    ("digests", "is_other"),
    [(["", ""], False), (["a", "a"], False), (["", "a"], False), (["a", ""], False), (["a", "b"], True),
     (["a", "", "a"], False), (["a", "", "b"], True), (["a", "b", "a"], True)],
)  # fmt: skip
def test_another_target_is_one_that_is_known_to_be(digests, is_other):
    """Servers of earlier versions do not tell a digest."""
    clock = VirtualClock()
    link = Link(clock, *((float(at), Yes(digest)) for at, digest in enumerate(digests)))
    policy = ConnectionPolicy(Timeouts(), Patience(), BACKOFF)

    async def connections():
        open_frame = Open(PROTOCOL_VERSION, "t", "k")
        session = ClientSession(link, open_frame, Transcript(), policy, lambda: clock.now, random.Random(0))
        for _ in digests:
            await session.connect()
            await session.disconnect("cut")
            await asyncio.sleep(1.0)
        await session.close()
        return session.has_other_target

    assert clock.run(connections()) is is_other


def pauses(tried, attempt_s):
    return [later - earlier - attempt_s for earlier, later in itertools.pairwise(tried)]


@pytest.mark.parametrize("seed", range(5))
def test_silence_is_tried_often(seed):
    """Whenever the link is back, an attempt begins within its predecessor's end and half a second."""
    tried = reconnect((0.0, Silence()), (20.0, Yes()), seed=seed)
    assert tried[0] == 0.0
    between = pauses(tried, ATTEMPT_S)
    assert all(0.05 <= pause <= BACKOFF.silence_cap_s + 1e-9 for pause in between)
    assert 20.0 <= tried[-1] <= 20.0 + ATTEMPT_S + BACKOFF.silence_cap_s


@pytest.mark.parametrize(
    "error",
    [
        LinkError("connection refused"),
        Refusal(Reason.SERVER_FULL, "64 sessions"),
        Refusal(Reason.SHUTTING_DOWN, "draining"),
    ],
    ids=str,
)
def test_a_refusal_is_left_in_peace(error):
    between = pauses(reconnect((0.0, No(error)), (60.0, Yes())), 0.0)
    assert all(pause >= BACKOFF.cap_s / 2 for pause in between[5:])
    assert BACKOFF.silence_cap_s < max(between) <= BACKOFF.cap_s


def test_a_server_that_says_nothing_gets_longer_for_it_each_time():
    tried = reconnect((0.0, Deaf()), (20.0, Yes()))
    lasted = pauses(tried, 0.0)[:5]
    assert all(2**n * ATTEMPT_S <= one <= 2**n * ATTEMPT_S + 0.5 for n, one in enumerate(lasted))


def test_a_refusal_for_good_ends_the_attempts():
    with pytest.raises(Refusal, match="another model"):
        reconnect((0.0, No(Refusal(Reason.TARGET_MISMATCH, "another model"))))
