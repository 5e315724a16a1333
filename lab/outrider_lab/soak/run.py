"""One soak: clients, a link and a server, faults at random moments, and memory sampled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import stat
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from outrider_bench.core.processes import on_cores
from outrider_bench.load.clients.client import CountingWindow
from outrider_bench.load.clients.counters import ClientCounters
from outrider_bench.load.clients.worker_pool import WorkerPool
from outrider_bench.load.server_under_test import ServerUnderTest
from outrider_netsim import Link
from outrider_proto.addresses import port_of
from outrider_proto.errors import UsageError

MAX_GROWTH = 0.02
_LOG_INTERVAL_S = 60.0
_RECOVERY_TIMEOUT_S = 180.0
_POLL_S = 0.25
LEAST_SAMPLES = 9
_CUT_TRIALS = 40
_SILENCE_S = (0.5, 4.0)
_FAULT_S = 3.0  # between two of them, where no time is given
_PASSES = "outrider_batch_sessions_count"

Fault = Literal["cut", "outage", "kill"]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """Length and faults of a soak. Raises UsageError.

    Faults come at random moments within `seconds`; with None they come 3 s apart on average, and the run ends with
    them.
    """

    seconds: float | None = None
    cuts: int = 0  # TCP connections shut down
    outages: int = 0  # silences of the link, connections kept
    kills: int = 0  # SIGKILLs of the server
    warm_up_s: float = 0.0
    sample_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("cuts", "outages", "kills"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)}: need 0 or more")
        if self.seconds is None and not self.num_faults:
            raise UsageError("soak: needs an end: give --seconds, or faults to inject")
        if self.seconds is not None and not self.warm_up_s < self.seconds:
            raise UsageError(f"warm_up={self.warm_up_s:g}: need less than the run's {self.seconds:g} s")

    @property
    def num_faults(self) -> int:
        return self.cuts + self.outages + self.kills

    def faults(self, generator: random.Random) -> list[tuple[float, Fault]]:
        """Draw the moments of all faults, in seconds since the start."""
        counts: dict[Fault, int] = {"cut": self.cuts, "outage": self.outages, "kill": self.kills}
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        span = self.num_faults * _FAULT_S if self.seconds is None else self.seconds
        # Not at the very ends: clients need time to connect at first, and to recover at last.
        moments = sorted(generator.uniform(0.02 * span, 0.95 * span) for _ in kinds)
        generator.shuffle(kinds)
        return list(zip(moments, kinds, strict=True))


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory at `at_s` seconds after the start; `who` names one life of a process."""

    at_s: float
    who: str
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Medians of the first and the last third of one process's samples."""

    who: str
    first_bytes: float
    last_bytes: float

    @property
    def share(self) -> float:
        return self.last_bytes / self.first_bytes - 1


def memory_growths(samples: Sequence[MemorySample], warm_up_s: float) -> list[MemoryGrowth]:
    """Measure every process with enough samples after `warm_up_s` of its own life."""
    by_process: dict[str, list[MemorySample]] = {}
    for sample in samples:
        by_process.setdefault(sample.who, []).append(sample)
    found = []
    for who, own in by_process.items():
        kept = [sample for sample in own if sample.at_s - own[0].at_s >= warm_up_s]
        if len(kept) >= LEAST_SAMPLES:
            found.append(_growth(who, kept))
    return found


def _growth(who: str, kept: Sequence[MemorySample]) -> MemoryGrowth:
    third = len(kept) // 3
    first = statistics.median(sample.rss_bytes for sample in kept[:third])
    last = statistics.median(sample.rss_bytes for sample in kept[-third:])
    return MemoryGrowth(who, first, last)


@dataclass(slots=True)
class SoakResult:
    """The result of a soak; `faults` counts those injected, by kind."""

    seconds: float = 0.0
    interrupted: bool = False
    failure: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[MemorySample] = field(default_factory=list)
    memory_growths: list[MemoryGrowth] = field(default_factory=list)
    client_counters: list[ClientCounters] = field(default_factory=list)

    @property
    def deviations(self) -> list[str]:
        """Everything that went wrong, in words; empty when all is well."""
        counts = {
            "answers with a wrong token": self.total("wrong"),
            "verdicts twice or unasked": self.total("strays"),
            "verdicts lost": self.total("lost"),
            "answers that ended without a link": sum(
                counters.errors["ended without a link"] for counters in self.client_counters
            ),
        }
        found = [f"{count} {what}" for what, count in counts.items() if count]
        found += [f"{one.who} grew by {one.share:.1%}" for one in self.memory_growths if one.share >= MAX_GROWTH]
        return found + ([self.failure] if self.failure else [])

    def total(self, name: str) -> int:
        return sum(getattr(counters, name) for counters in self.client_counters)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "deviations": self.deviations,
            "faults": self.faults,
            "growth": [{**asdict(one), "share": one.share} for one in self.memory_growths],
            "samples": [asdict(sample) for sample in self.samples],
            "clients": [asdict(counters) for counters in self.client_counters],
        }


class SoakRun:
    """Clients that go through `link`, which is in this process, to a server that this command has started."""

    def __init__(
        self,
        plan: SoakPlan,
        server: ServerUnderTest,
        cores: tuple[int, ...],
        link: Link,
        pool: WorkerPool,
        generator: random.Random,
        log: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._server = server
        self._cores = cores
        self._link = link
        self._pool = pool
        self._generator = generator
        self._log = log
        self._began = time.monotonic()
        self._starts = 1  # of the server
        self.result = SoakResult()

    async def run(self) -> SoakResult:
        """Run until the end, or until a signal; there is a result even when a process fails."""
        self._pool.begin(CountingWindow(self._began))
        going = asyncio.create_task(self._run())
        with _canceled_by_signals(going):
            # wait() does not raise, so that there is a result when the run fails or is canceled.
            await asyncio.wait((going,))
        result = self.result
        result.interrupted = going.cancelled()
        result.seconds = self._now
        result.memory_growths = memory_growths(result.samples, self._plan.warm_up_s)
        if not going.cancelled() and (error := going.exception()) is not None:
            result.failure = str(error) or type(error).__name__
        self._pool.stop()
        try:
            result.client_counters = await self._pool.client_counters()
        except UsageError as error:
            result.failure = str(error)
        return result

    async def _run(self) -> None:
        """Run until the time is up or, without a time, until all faults are injected."""
        watching = [asyncio.create_task(self._sample()), asyncio.create_task(self._log_state())]
        end = None if self._plan.seconds is None else asyncio.get_running_loop().time() + self._plan.seconds
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._inject_faults()
                    if end is not None:
                        # Wait for the timeout: nothing sets this event.
                        await asyncio.Event().wait()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _inject_faults(self) -> None:
        """Inject the faults one by one; a slow one delays the next."""
        earlier = 0.0
        for moment, fault in self._plan.faults(self._generator):
            await asyncio.sleep(moment - earlier)
            earlier = moment
            if await self._inject(fault):
                self.result.faults[fault] += 1

    async def _inject(self, fault: Fault) -> bool:
        match fault:
            case "kill":
                # In a thread, since starting a server takes seconds and the clients' answers arrive meanwhile.
                await asyncio.to_thread(self._restart)
                await self._wait_for_pass()
                return True
            case "cut":
                return await self._cut()
            case "outage":
                self._link.cut()
                try:
                    await asyncio.sleep(self._generator.uniform(*_SILENCE_S))
                finally:
                    self._link.restore()
                return True

    async def _cut(self) -> bool:
        """Cut a connection as soon as there is one."""
        for _ in range(_CUT_TRIALS):
            if cut_connection(port_of(self._server.address), self._generator):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    def _restart(self) -> None:
        """Kill the server with SIGKILL, restart it at the same address, and wait until it serves."""
        process = self._server.process
        assert process is not None
        process.kill()
        with on_cores(self._cores):
            process.start()
        process.wait_ready()
        self._starts += 1

    async def _wait_for_pass(self) -> None:
        """Wait until the new server runs passes for the clients. Raises UsageError."""
        give_up_at = self._now + _RECOVERY_TIMEOUT_S
        while not (await self._server.passes()).get(_PASSES):
            if self._now > give_up_at:
                raise UsageError(f"no verdict within {_RECOVERY_TIMEOUT_S:g} s after the server was restarted")
            await asyncio.sleep(_POLL_S)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._plan.sample_s)
            named = [(f"server {self._starts}", self._server.use)]
            named += [(f"clients {number}", worker.use) for number, worker in enumerate(self._pool.workers, 1)]
            self.result.samples += [MemorySample(self._now, who, use.rss_bytes) for who, use in named if use.rss_bytes]

    async def _log_state(self) -> None:
        while True:
            await asyncio.sleep(_LOG_INTERVAL_S)
            newest = {sample.who: sample.rss_bytes / 2**20 for sample in self.result.samples[-8:]}
            memory = ", ".join(f"{who} {mib:.1f} MiB" for who, mib in newest.items())
            self._log(f"{self._now:.0f} s: {dict(self.result.faults)}; {memory}")

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began


@contextmanager
def _canceled_by_signals(task: asyncio.Task[None]) -> Iterator[None]:
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def cut_connection(port: int, generator: random.Random) -> bool:
    """Shut down one of this process's connections to that port, chosen at random; False for none. Linux only."""
    with contextlib.ExitStack() as stack:
        found = [sock for sock in map(stack.enter_context, _sockets()) if _peer_port(sock) == port]
        if not found:
            return False
        with suppress(OSError):  # it has ended by itself
            generator.choice(found).shutdown(socket.SHUT_RDWR)
        return True


def _sockets() -> Iterator[socket.socket]:
    """Duplicate the descriptors of all sockets."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # gone meanwhile
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                # A duplicated descriptor shares the connection: shutdown() ends it, close() does not.
                yield socket.socket(fileno=os.dup(int(name)))


def _peer_port(sock: socket.socket) -> int | None:
    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
        with suppress(OSError):
            return int(sock.getpeername()[1])
    return None
