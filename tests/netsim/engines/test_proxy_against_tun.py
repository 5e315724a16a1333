"""`proxy`, whose TCP is a model, against `tun`, whose TCP is the kernel's: the same programs over the same link.

Two figures in which the model could be wrong: goodput with losses and what a lone lost request costs; cuts are in
../tcp/test_cuts.py. Bounds hold on a busy machine; on a quiet one the two agree within 15 %.
"""

import asyncio
import contextlib
import random
import statistics
import sys
import time

import pytest
from echoing import connected, serving

from outrider_netsim.core.errors import EngineError
from outrider_netsim.link import Link
from outrider_netsim.profiles.profile import Direction, Profile

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="TUN devices here are Linux's"),
]

ENGINES = "tun", "proxy"
DELAY_MS = 20
LINK = Direction(delay_ms=DELAY_MS, rate_bps=8e6)
STALL_S = 0.15  # beyond the round trip: Linux waits at least 200 ms before it sends again, and jitter is small


async def reply(reader, writer):
    """Answer every request, which says how many bytes it wants."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            writer.write(bytes(int.from_bytes(await reader.readexactly(8))))
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def linked(engine, profile, seed):
    async with asyncio.timeout(120), serving(reply) as server:
        try:
            link = await Link(profile, str(server), engine, seed).start()
        except EngineError as error:
            pytest.skip(str(error))
        try:
            yield link
        finally:
            await link.aclose()


async def exchange(connection, size):
    """Ask for `size` bytes, and return how long they took in s."""
    reader, writer = connection
    started_at = time.monotonic()
    writer.write(size.to_bytes(8))
    await reader.readexactly(size)
    return time.monotonic() - started_at


async def download_bps(engine, seed):
    """Goodput of 1.5 MB, with a loss of 1 % on the way."""
    profile = Profile("lossy", LINK, Direction(delay_ms=DELAY_MS, rate_bps=8e6, loss=0.01))
    async with linked(engine, profile, seed) as link, connected(link.address) as connection:
        await exchange(connection, 1)
        return 1_500_000 * 8 / await exchange(connection, 1_500_000)


async def lone_losses_s(engine, seed):
    """Durations of the small exchanges whose request was lost, one in flight, on a connection that has been used."""
    profile = Profile.symmetric("warm", LINK)
    async with linked(engine, profile, seed) as link, connected(link.address) as connection:
        for _ in range(20):
            await exchange(connection, 1)
        link.set(Profile("lossy", Direction(delay_ms=DELAY_MS, rate_bps=8e6, loss=0.1), LINK))
        took = [await exchange(connection, 1) for _ in range(100)]
    return [each for each in took if each > 2 * DELAY_MS / 1000 + STALL_S]


async def test_goodput_with_losses():
    seeds = random.Random(1).sample(range(1000), 3)
    tun, proxy = [
        statistics.median(await asyncio.gather(*(download_bps(engine, seed) for seed in seeds))) for engine in ENGINES
    ]
    assert 0.6 < proxy / tun < 1.6, (proxy, tun)


async def test_a_lone_lost_request():
    tun, proxy = await asyncio.gather(*(lone_losses_s(engine, seed=1) for engine in ENGINES))
    assert len(tun) >= 4
    assert len(proxy) >= 4
    assert 0.8 < statistics.median(proxy) / statistics.median(tun) < 1.25, (proxy, tun)
