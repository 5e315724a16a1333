"""Hours of load with faults: links cut or silent, the server killed. Is every token right, does memory grow?"""

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
_TELL_S = 60.0
_BACK_S = 180.0
_LOOK_S = 0.25
_CUT_TRIALS = 40
_SILENCE_S = (0.5, 4.0)
_FAULT_S = 3.0  # between two of them, where no time is given

Fault = Literal["cut", "outage", "kill"]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """`cuts`: TCP connections shut down; `outages`: links silent for a while, connections standing; `kills`: of the
    server, by SIGKILL. They come at random moments spread over `seconds`; None: 3 s apart on the average, and the run
    ends with them. Raises UsageError."""

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
            raise UsageError("soak: how long? give --seconds, or faults to go through")
        if self.seconds is not None and not self.warm_up_s < self.seconds:
            raise UsageError(f"warm_up={self.warm_up_s:g}: need less than the run's {self.seconds:g} s")

    @property
    def num_faults(self) -> int:
        return self.cuts + self.outages + self.kills

    def faults(self, generator: random.Random) -> list[tuple[float, Fault]]:
        """What is to happen when, in seconds since the beginning."""
        counts: dict[Fault, int] = {"cut": self.cuts, "outage": self.outages, "kill": self.kills}
        kinds = [kind for kind, count in counts.items() for _ in range(count)]
        span = self.num_faults * _FAULT_S if self.seconds is None else self.seconds
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
        raise UsageError(f"clients={','.join(map(str, plan.clients))}: a soak has one number of clients")
    if outages and plan.profile is None:
        raise UsageError(f"outages={outages}: there is no link to fall silent; give --profile, such as lan")
    if kills and plan.server is not None:
        raise UsageError(f"kills={kills}: only a server that this command started can be killed; leave --server out")
    if plan.habits.requests is not None:
        raise UsageError(f"requests={plan.habits.requests}: a soak ends by time or faults; leave it out")
    usual = _LONG_S if seconds is None else min(_LONG_S, seconds / 4)
    return SoakPlan(seconds, cuts, outages, kills, usual if warm_up is None else warm_up, sample_s)


@dataclass(slots=True)
class SoakResult:
    """What came of it. `faults`: done, by kind."""

    seconds: float = 0.0
    interrupted: bool = False
    failure: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[MemorySample] = field(default_factory=list)
    memory_growths: list[MemoryGrowth] = field(default_factory=list)
    client_counters: list[ClientCounters] = field(default_factory=list)

    @property
    def deviations(self) -> list[str]:
        """In words; empty when all is well."""
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
    """One run."""

    def __init__(
        self,
        plan: SoakPlan,
        server: ServerUnderTest,
        worker_pool: WorkerPool,
        generator: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._server = server
        self._pool = worker_pool
        self._generator = generator
        self._say = say
        self._began = time.monotonic()
        self.result = SoakResult()

    async def run(self) -> None:
        """Until the time is over or, where none is given, all faults have been; then wait for the clients."""
        self._pool.begin(self._began, None)
        watching = [asyncio.create_task(self._sample()), asyncio.create_task(self._tell())]
        try:
            await _first_to_fail(self._go(), *watching)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            self.result.seconds = self._now
            self.result.memory_growths = memory_growths(self.result.samples, self._plan.warm_up_s)

    async def finish(self) -> None:
        self._pool.stop()
        self.result.client_counters = await self._pool.client_counters()

    async def _go(self) -> None:
        end = None if self._plan.seconds is None else asyncio.get_running_loop().time() + self._plan.seconds
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await self._go_through_faults()
                if end is not None:
                    await asyncio.Event().wait()

    async def _go_through_faults(self) -> None:
        """What takes long delays those behind it: each finds the others at work."""
        earlier = 0.0
        for moment, fault in self._plan.faults(self._generator):
            await asyncio.sleep(moment - earlier)
            earlier = moment
            if await self._do(fault):
                self.result.faults[fault] += 1

    async def _do(self, fault: Fault) -> bool:
        member = self._generator.choice(self._pool.members)
        match fault:
            case "kill":
                await self._server.kill()
                await self._see_verdict()
                return True
            case "cut":
                return await self._cut(member)
            case "outage":
                member.tell({"do": "silence", "seconds": self._generator.uniform(*_SILENCE_S)})
                return bool((await member.answer("silence"))["done"])

    async def _cut(self, member: WorkerProcess) -> bool:
        """As soon as there is a connection."""
        for _ in range(_CUT_TRIALS):
            member.tell({"do": "cut"})
            if (await member.answer("cut"))["done"]:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _see_verdict(self) -> None:
        """The clients are back. Raises UsageError."""
        before = (await self._pool.told())["verdicts"]
        give_up_at = self._now + _BACK_S
        while (await self._pool.told())["verdicts"] == before:
            if self._now > give_up_at:
                raise UsageError(f"no verdict within {_BACK_S:g} s after the server was killed and started again")
            await asyncio.sleep(_LOOK_S)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._plan.sample_s)
            named = [(f"server {self._server.lives}", self._server.use)]
            named += [(f"clients {number}", member.use) for number, member in enumerate(self._pool.members, 1)]
            self.result.samples += [MemorySample(self._now, who, use.rss_bytes) for who, use in named if use.rss_bytes]

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            told = await self._pool.told()
            newest = {sample.who: sample.rss_bytes / 2**20 for sample in self.result.samples[-8:]}
            memory = ", ".join(f"{who} {mib:.1f} MiB" for who, mib in newest.items())
            self._say(
                f"{self._now:.0f} s: {told['answers']} answers, {told['tokens']} tokens, {told['verdicts']} verdicts, "
                f"{told['outages']} losses of the link, {told['wrong']} wrong; {dict(self.result.faults)}; {memory}"
            )

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began


async def soak(
    plan: SoakPlan,
    server: ServerUnderTest,
    assignment: Assignment,
    num_workers: int,
    say: Callable[[str], None],
) -> SoakResult:
    """Also when interrupted (SIGINT, SIGTERM), or when a process fails, there is a result."""
    async with worker_pool(assignment, num_workers) as members:
        run = SoakRun(plan, server, members, random.Random(f"{assignment.seed}/faults"), say)
        going = asyncio.create_task(run.run())
        with _stopped_by_signals(going):
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
    """`main` to its end, or the error of whichever fails first."""
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
