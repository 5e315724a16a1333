"""Hours of load with faults, to see whether every token is right and memory stays constant."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Literal

from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.clients.worker_pool import WorkerPool, WorkerProcess, worker_pool
from outrider_bench.load.measures.counters import ClientCounters
from outrider_bench.load.measures.memory_growth import MemoryGrowth, MemorySample, memory_growths
from outrider_bench.load.plan import LoadPlan
from outrider_bench.load.server_under_test import ServerUnderTest
from outrider_proto.errors import UsageError

MAX_GROWTH = 0.02
_LONG_S = 600.0  # to have seen all prompts several times
_LOG_INTERVAL_S = 60.0
_RECOVERY_TIMEOUT_S = 180.0
_POLL_S = 0.25
_CUT_TRIALS = 40
_SILENCE_S = (0.5, 4.0)
_FAULT_S = 3.0  # between two of them, where no time is given

Fault = Literal["cut", "outage", "kill"]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """Length and faults of a soak. Raises UsageError.

    `cuts`: TCP connections shut down; `outages`: silences of the link, connections kept; `kills`: SIGKILLs of the
    server. They come at random moments within `seconds`; with None they come 3 s apart on average, and the run ends
    with them.
    """

    seconds: float | None = None
    cuts: int = 0
    outages: int = 0
    kills: int = 0
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


def plan_soak(
    plan: LoadPlan,
    seconds: float | None,
    cuts: int,
    outages: int,
    kills: int,
    warm_up: float | None,
    sample_s: float,
) -> SoakPlan:
    if len(plan.clients) != 1:
        raise UsageError(f"clients={','.join(map(str, plan.clients))}: a soak needs a single number of clients")
    if outages and plan.profile is None:
        raise UsageError(f"outages={outages}: needs a link: give --profile, such as lan")
    if kills and plan.server is not None:
        raise UsageError(f"kills={kills}: only a server that this command started can be killed; leave --server out")
    if plan.habits.requests is not None:
        raise UsageError(f"requests={plan.habits.requests}: a soak ends by time or after its faults; leave it out")
    usual = _LONG_S if seconds is None else min(_LONG_S, seconds / 4)
    return SoakPlan(seconds, cuts, outages, kills, usual if warm_up is None else warm_up, sample_s)


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
        named = {
            "answers with a wrong token": sum(counters.wrong for counters in self.client_counters),
            "verdicts twice or unasked": sum(counters.strays for counters in self.client_counters),
            "verdicts lost": sum(counters.lost for counters in self.client_counters),
            "answers that ended without a link": sum(
                counters.errors["ended without a link"] for counters in self.client_counters
            ),
        }
        found = [f"{count} {what}" for what, count in named.items() if count]
        found += [f"{one.who} grew by {one.share:.1%}" for one in self.memory_growths if one.share >= MAX_GROWTH]
        return found + ([self.failure] if self.failure else [])

    def to_json(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "deviations": self.deviations,
            "faults": self.faults,
            "growth": [{**asdict(one), "share": one.share} for one in self.memory_growths],
            "samples": [asdict(sample) for sample in self.samples],
            "clients": [counters.to_json() for counters in self.client_counters],
        }


class SoakRun:
    def __init__(
        self,
        plan: SoakPlan,
        server: ServerUnderTest,
        worker_pool: WorkerPool,
        generator: random.Random,
        log: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._server = server
        self._pool = worker_pool
        self._generator = generator
        self._log = log
        self._began = time.monotonic()
        self.result = SoakResult()

    async def run(self) -> None:
        """Run until the time is up or, without a time, until all faults are injected."""
        self._pool.begin(self._began, None)
        watching = [asyncio.create_task(self._sample()), asyncio.create_task(self._log_state())]
        try:
            await _first_to_fail(self._run_until_end(), *watching)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            self.result.seconds = self._now
            self.result.memory_growths = memory_growths(self.result.samples, self._plan.warm_up_s)

    async def finish(self) -> None:
        self._pool.stop()
        self.result.client_counters = await self._pool.client_counters()

    async def _run_until_end(self) -> None:
        end = None if self._plan.seconds is None else asyncio.get_running_loop().time() + self._plan.seconds
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await self._inject_faults()
                if end is not None:
                    # Wait for the timeout: nothing sets this event.
                    await asyncio.Event().wait()

    async def _inject_faults(self) -> None:
        """Inject the faults one by one; a slow one delays the next."""
        earlier = 0.0
        for moment, fault in self._plan.faults(self._generator):
            await asyncio.sleep(moment - earlier)
            earlier = moment
            if await self._inject(fault):
                self.result.faults[fault] += 1

    async def _inject(self, fault: Fault) -> bool:
        worker = self._generator.choice(self._pool.workers)
        match fault:
            case "kill":
                await self._server.kill()
                await self._wait_for_verdict()
                return True
            case "cut":
                return await self._cut(worker)
            case "outage":
                worker.send({"do": "silence", "seconds": self._generator.uniform(*_SILENCE_S)})
                return bool((await worker.receive("silence"))["done"])

    async def _cut(self, worker: WorkerProcess) -> bool:
        """Cut a connection as soon as there is one."""
        for _ in range(_CUT_TRIALS):
            worker.send({"do": "cut"})
            if (await worker.receive("cut"))["done"]:
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _wait_for_verdict(self) -> None:
        """Wait until the clients get verdicts again. Raises UsageError."""
        before = (await self._pool.totals())["verdicts"]
        give_up_at = self._now + _RECOVERY_TIMEOUT_S
        while (await self._pool.totals())["verdicts"] == before:
            if self._now > give_up_at:
                raise UsageError(f"no verdict within {_RECOVERY_TIMEOUT_S:g} s after the server was restarted")
            await asyncio.sleep(_POLL_S)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._plan.sample_s)
            named = [(f"server {self._server.num_starts}", self._server.use)]
            named += [(f"clients {number}", worker.use) for number, worker in enumerate(self._pool.workers, 1)]
            self.result.samples += [MemorySample(self._now, who, use.rss_bytes) for who, use in named if use.rss_bytes]

    async def _log_state(self) -> None:
        while True:
            await asyncio.sleep(_LOG_INTERVAL_S)
            totals = await self._pool.totals()
            newest = {sample.who: sample.rss_bytes / 2**20 for sample in self.result.samples[-8:]}
            memory = ", ".join(f"{who} {mib:.1f} MiB" for who, mib in newest.items())
            self._log(
                f"{self._now:.0f} s: {totals['answers']} answers, {totals['tokens']} tokens, "
                f"{totals['verdicts']} verdicts, "
                f"{totals['outages']} losses of the link, {totals['wrong']} wrong; {dict(self.result.faults)}; {memory}"
            )

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began


async def soak(
    plan: SoakPlan,
    server: ServerUnderTest,
    assignment: Assignment,
    num_workers: int,
    log: Callable[[str], None],
) -> SoakResult:
    """Run a soak; there is a result even when it is interrupted or a process fails."""
    async with worker_pool(assignment, num_workers) as workers:
        run = SoakRun(plan, server, workers, random.Random(f"{assignment.seed}/faults"), log)
        going = asyncio.create_task(run.run())
        with _stopped_by_signals(going):
            # wait() does not raise, so that there is a result when the run fails or is cancelled.
            await asyncio.wait((going,))
        run.result.interrupted = going.cancelled()
        if not going.cancelled() and (error := going.exception()) is not None:
            run.result.failure = str(error) or type(error).__name__
        try:
            await run.finish()
        except UsageError as error:
            run.result.failure = str(error)
        return run.result


async def _first_to_fail(main: Coroutine[None, None, None], *others: asyncio.Task[None]) -> None:
    """Run `main` to its end; raise the error of whichever task fails first."""
    task = asyncio.create_task(main)
    try:
        done, _ = await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _stopped_by_signals(task: asyncio.Task[None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
