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

from outrider_bench.load.clients.crew import Crew, Member, crew
from outrider_bench.load.clients.worker import Assignment
from outrider_bench.load.measures.growth import Growth, Sample, growths
from outrider_bench.load.measures.tally import Tally
from outrider_bench.load.serving import Serving
from outrider_proto.errors import UsageError

MAX_GROWTH = 0.02
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


@dataclass(slots=True)
class Soaked:
    """What came of it. `faults`: done, by kind."""

    seconds: float = 0.0
    interrupted: bool = False
    failure: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)

    @property
    def deviations(self) -> list[str]:
        """In words; empty when all is well."""
        named = {
            "answers with a wrong token": sum(tally.wrong for tally in self.tallies),
            "verdicts twice or unasked": sum(tally.strays for tally in self.tallies),
            "verdicts lost": sum(tally.lost for tally in self.tallies),
            "answers that ended without a link": sum(tally.errors["ended without a link"] for tally in self.tallies),
        }
        found = [f"{count} {what}" for what, count in named.items() if count]
        found += [f"{one.who} grew by {one.share:.1%}" for one in self.growths if one.share >= MAX_GROWTH]
        return found + ([self.failure] if self.failure else [])

    def to_json(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "deviations": self.deviations,
            "faults": self.faults,
            "growth": [{**asdict(one), "share": one.share} for one in self.growths],
            "samples": [asdict(sample) for sample in self.samples],
            "clients": [tally.to_json() for tally in self.tallies],
        }


class Soak:
    """One run."""

    def __init__(
        self, plan: SoakPlan, serving: Serving, crew: Crew, generator: random.Random, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._serving = serving
        self._crew = crew
        self._generator = generator
        self._say = say
        self._began = time.monotonic()
        self.result = Soaked()

    async def run(self) -> None:
        """Until the time is over or, where none is given, all faults have been; then wait for the clients."""
        self._crew.begin(self._began, None)
        watching = [asyncio.create_task(self._sample()), asyncio.create_task(self._tell())]
        try:
            await _first_to_fail(self._go(), *watching)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            self.result.seconds = self._now
            self.result.growths = growths(self.result.samples, self._plan.warm_up_s)

    async def finish(self) -> None:
        self._crew.stop()
        self.result.tallies = await self._crew.tallies()

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
        member = self._generator.choice(self._crew.members)
        match fault:
            case "kill":
                await self._serving.kill()
                await self._see_verdict()
                return True
            case "cut":
                return await self._cut(member)
            case "outage":
                member.tell({"do": "silence", "seconds": self._generator.uniform(*_SILENCE_S)})
                return bool((await member.answer("silence"))["done"])

    async def _cut(self, member: Member) -> bool:
        """As soon as there is a connection."""
        for _ in range(_CUT_TRIALS):
            member.tell({"do": "cut"})
            if (await member.answer("cut"))["done"]:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _see_verdict(self) -> None:
        """The clients are back. Raises UsageError."""
        before = (await self._crew.told())["verdicts"]
        give_up_at = self._now + _BACK_S
        while (await self._crew.told())["verdicts"] == before:
            if self._now > give_up_at:
                raise UsageError(f"no verdict within {_BACK_S:g} s after the server was killed and started again")
            await asyncio.sleep(_LOOK_S)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._plan.sample_s)
            named = [(f"server {self._serving.lives}", self._serving.use)]
            named += [(f"clients {number}", member.use) for number, member in enumerate(self._crew.members, 1)]
            self.result.samples += [Sample(self._now, who, use.rss_bytes) for who, use in named if use.rss_bytes]

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            told = await self._crew.told()
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
    plan: SoakPlan, serving: Serving, assignment: Assignment, num_workers: int, say: Callable[[str], None]
) -> Soaked:
    """Also when interrupted (SIGINT, SIGTERM), or when a process fails, there is a result."""
    async with crew(assignment, num_workers) as members:
        run = Soak(plan, serving, members, random.Random(f"{assignment.seed}/faults"), say)
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
