"""The measures, each over the two ends of one link. The ends and the loop's clock may be real or virtual.

download     one connection is sent data without end, another exchanges small messages, before it and meanwhile
after_idle   large replies on a connection that has been used, each after a pause
reply        small requests, replies of eight segments
lone_loss    small exchanges, one in flight: a lost request stalls its exchange by a timeout
recovery     small requests during a cut; the time from the restore to their answers
overhead     small exchanges with pauses, on a link whose round trip is known
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol, assert_never

from outrider_netsim.core.errors import EngineError
from outrider_netsim.transfers.plan import REPLY_BYTES, SMALL_BYTES, Samples, TransferPlan, TransferTask, recovery_name

IDLE_PINGS = 30
PING_PAUSE_S = 0.05
# Slow start is over by then on most links, so that pings meet the queue that a long download keeps.
LOADED_AFTER_S = 2.0
WARMING_REPLIES = 10
WARMING_PINGS = 5
REPLY_PAUSE_S = 0.03
EXCHANGE_TIMEOUT_S = 180.0  # longer than any queue
RECOVERY_TIMEOUT_S = 60.0  # on top of the cut


class TransferConnection(Protocol):
    """A connection between the link's ends, as its client sees it."""

    received_bytes: int  # of the stream

    async def exchange(self, request_bytes: int, reply_bytes: int) -> None:
        """Send a request and wait for the whole reply."""

    async def stream(self) -> None:
        """Ask for data without end, which is received from now on and counted in `received_bytes`."""


class TransferEnds(Protocol):
    """Both ends of one link, with its switch."""

    async def connect(self) -> TransferConnection: ...
    async def cut(self) -> None: ...
    async def restore(self) -> float:
        """Restore the link and return when that was, on the clock of the event loop."""


async def take(task: TransferTask, ends: TransferEnds, plan: TransferPlan) -> Samples:
    """Run one task. Raises EngineError when a reply does not come."""
    try:
        return await _take(task, ends, plan)
    except (OSError, ExceptionGroup) as error:
        raise EngineError(f"{task.measure}: {_first(error)}: is the link up? Try again, or another engine") from None


async def _take(task: TransferTask, ends: TransferEnds, plan: TransferPlan) -> Samples:
    match task.measure:
        case "download":
            return await _download(ends, plan.seconds)
        case "after_idle":
            return {"after_idle_ms": await _after_idle(ends, plan)}
        case "reply":
            return {"reply_ms": await _replies(ends, plan.replies)}
        case "lone_loss":
            connection = await _connected(ends)
            return {"exchange_ms": [await _timed(connection, SMALL_BYTES) for _ in range(plan.exchanges)]}
        case "overhead":
            pinger = await _connected(ends)
            return {"exchange_ms": [await _ping(pinger) for _ in range(plan.pings)]}
        case "recovery":
            return {recovery_name(task.cut_s): await _recoveries(ends, plan.requests, task.cut_s)}
        case _:
            assert_never(task.measure)


async def _download(ends: TransferEnds, seconds: float) -> Samples:
    bulk, pinger = await _connected(ends), await _connected(ends)
    idle_ms = [await _ping(pinger) for _ in range(IDLE_PINGS)]
    started = _now()
    await bulk.stream()
    async with asyncio.TaskGroup() as group:
        pings = group.create_task(_pings_between(pinger, started + min(LOADED_AFTER_S, seconds / 2), started + seconds))
        await asyncio.sleep(seconds)
        # Before the last ping has come back, which on a long queue takes seconds.
        goodput_mbps = bulk.received_bytes * 8 / (_now() - started) / 1e6
    return {"goodput_mbps": [goodput_mbps], "idle_rtt_ms": idle_ms, "loaded_rtt_ms": pings.result()}


async def _pings_between(pinger: TransferConnection, start: float, end: float) -> list[float]:
    await asyncio.sleep(start - _now())
    taken = [await _ping(pinger)]
    while _now() < end:
        taken.append(await _ping(pinger))
    return taken


async def _ping(pinger: TransferConnection) -> float:
    taken_ms = await _timed(pinger, SMALL_BYTES)
    await asyncio.sleep(PING_PAUSE_S)
    return taken_ms


async def _after_idle(ends: TransferEnds, plan: TransferPlan) -> list[float]:
    connection = await _connected(ends)
    for _ in range(WARMING_REPLIES):
        await _timed(connection, REPLY_BYTES)
    taken = []
    for _ in range(plan.transfers):
        await asyncio.sleep(plan.idle_s)
        taken.append(await _timed(connection, plan.size_bytes))
    return taken


async def _replies(ends: TransferEnds, count: int) -> list[float]:
    connection = await _connected(ends)
    await _timed(connection, SMALL_BYTES)
    taken = []
    for _ in range(count):
        await asyncio.sleep(REPLY_PAUSE_S)
        taken.append(await _timed(connection, REPLY_BYTES))
    return taken


async def _recoveries(ends: TransferEnds, requests: int, cut_s: float) -> list[float]:
    connections = [await _connected(ends) for _ in range(requests)]
    # One connection after the other: at once, packets of an in-order link would hold each other up.
    for connection in connections:
        for _ in range(WARMING_PINGS):
            await _timed(connection, SMALL_BYTES)
    await ends.cut()
    async with asyncio.TaskGroup() as group:
        # TCP asks again after times that double. Requests begin evenly over the first half of the cut, one doubling:
        # were all sent at once, a timeout that is 1 % longer could double the result.
        begins = [cut_s / 2 * number / requests for number in range(requests)]
        answers = [group.create_task(_answered_at(*asked, cut_s)) for asked in zip(connections, begins, strict=True)]
        await asyncio.sleep(cut_s)
        restored_at = await ends.restore()
    return [(answer.result() - restored_at) * 1000 for answer in answers]


async def _answered_at(connection: TransferConnection, begin_s: float, cut_s: float) -> float:
    await asyncio.sleep(begin_s)
    # A request that loses retransmissions too may wait for minutes; the median does not care how many.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(cut_s + RECOVERY_TIMEOUT_S):
            await connection.exchange(SMALL_BYTES, SMALL_BYTES)
    return _now()


async def _connected(ends: TransferEnds) -> TransferConnection:
    async with _patience("connection"):
        return await ends.connect()


async def _timed(connection: TransferConnection, reply_bytes: int) -> float:
    """Return the duration of one exchange in ms."""
    started = _now()
    async with _patience("reply"):
        await connection.exchange(SMALL_BYTES, reply_bytes)
    return (_now() - started) * 1000


@contextlib.asynccontextmanager
async def _patience(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
            yield
    except TimeoutError:
        raise TimeoutError(f"no {what} within {EXCHANGE_TIMEOUT_S:g} s") from None


def _first(error: BaseException) -> BaseException:
    """Return the error itself, or the first of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _now() -> float:
    return asyncio.get_running_loop().time()
