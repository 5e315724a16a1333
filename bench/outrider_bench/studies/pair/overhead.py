"""Breakdown of a cycle's time over gRPC on loopback: drafter, wire, queue, target, rest.

A cycle lasts from one verdict to the next. The drafter's forward passes are timed inside its draft states, so that the
rest of `draft` (choosing nodes, building the tree, changing threads) counts as overhead like everything else. Figures
are medians over the prompts of the medians over an answer's cycles, after a warm-up.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from outrider_bench.core.bootstrap import medians_ci95
from outrider_bench.core.pair import stop_and_wait_config
from outrider_bench.core.processes import ServerProcess, pinned_apart
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, spread_questions, warm_up_question
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, ci95_cells, show_line, table
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.options import OverheadOptions
from outrider_bench.studies.timed_drafter import TimedDrafter
from outrider_client.async_client import AsyncClient
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Cycle, Stats
from outrider_client.core.statistics import Statistics
from outrider_client.models.local_models import LocalModels
from outrider_proto.frames import Draft, Ping

_NUM_PINGS = 100
_PAUSE_S = 0.01
_PARTS = ("total", "draft", "draft_forward", "wire", "queue", "verify", "wait", "tap", "other", "outside")
_Medians = dict[str, Any]  # Any: figures, and intervals or None


@dataclass(frozen=True, slots=True)
class CycleTimes:
    """One cycle in ms.

    `draft` includes `draft_forward`; `tap` goes on during `wire` and `wait`.
    """

    total: float
    draft: float
    draft_forward: float
    wire: float
    queue: float
    verify: float
    wait: float
    tap: float

    @property
    def other(self) -> float:
        return self.total - self.draft - self.wire - self.queue - self.verify - self.wait

    @property
    def outside(self) -> float:
        """Time outside the models' forward passes, of which the tap's is one that is waited for."""
        return self.total - self.draft_forward - self.verify - self.tap


async def cycle_times(
    config: ClientConfig, models: LocalModels, asked: Sequence[Question], step: Callable[[], None]
) -> list[list[CycleTimes]]:
    """Time all cycles that drafted, by answer, without each answer's first, which follows the prompt."""
    assert models.drafter is not None
    timed = TimedDrafter(models.drafter)
    times: list[list[CycleTimes]] = []
    async with AsyncClient(config, models=replace(models, drafter=timed)) as client:
        await _marks(client, warm_up_question(models).prompt, timed)
        for question in asked:
            marks = await _marks(client, question.prompt, timed)
            times.append([_between(*pair) for pair in itertools.pairwise(marks)])
            step()
    return times


async def pings_ms(address: str, models: LocalModels) -> list[float]:
    """Return round trips in ms of a frame that reaches no model, each sent after a pause.

    The control for `wire`: what gRPC and waking up two processes cost on this machine.
    """
    connection = await GrpcTransport(address).connect()
    try:
        connection.send(models.open_frame())
        await connection.receive()
        times = []
        for nonce in range(_NUM_PINGS):
            # After a pause, as after a model's pass: processes that have gone to sleep answer later.
            await asyncio.sleep(_PAUSE_S)
            started = time.perf_counter()
            connection.send(Ping(nonce))
            await connection.receive()
            times.append((time.perf_counter() - started) * 1e3)
    finally:
        await connection.close()
    return times


def medians(times: Sequence[Sequence[CycleTimes]], pings: Sequence[float] = ()) -> _Medians:
    """Return the median of every part in ms over the answers, and its 95 % interval as `PART_ci95`."""
    measured: dict[str, Sequence[float]] = {
        part: [statistics.median(getattr(cycle, part) for cycle in cycles) for cycles in times if cycles]
        for part in _PARTS
    }
    return medians_ci95(measured | {"ping": pings})


@dataclass(frozen=True, slots=True)
class _Mark:
    """Sums in ms since the answer began, taken when a verdict is committed."""

    at: float
    draft: float
    draft_forward: float
    wire: float
    queue: float
    verify: float
    wait: float
    tap: float


async def _marks(client: AsyncClient, prompt: Sequence[int], timed: TimedDrafter) -> list[_Mark]:
    marks: list[_Mark] = []
    judged = False
    async with aclosing(client.generate(prompt)) as events:
        async for event in events:
            match event:
                case Cycle(request=Draft(tree=tree)):
                    judged = len(tree) > 0
                case Stats(statistics=so_far) if judged:
                    marks.append(_mark(so_far, timed))
                case _:
                    pass
    return marks


def _mark(so_far: Statistics, timed: TimedDrafter) -> _Mark:
    tokens = max(so_far.new_tokens - so_far.unverified, 1)
    split = so_far.split_ms
    # Statistics are per token: times the tokens, they are sums again.
    parts = (split.draft, timed.seconds * 1e3 / tokens, split.wire, split.queue, split.verify, split.wait, split.tap)
    return _Mark(time.perf_counter() * 1e3, *(part * tokens for part in parts))


def _between(earlier: _Mark, later: _Mark) -> CycleTimes:
    names = ("at", "draft", "draft_forward", "wire", "queue", "verify", "wait", "tap")
    return CycleTimes(*(getattr(later, name) - getattr(earlier, name) for name in names))


class OverheadStudy(Study[OverheadOptions, _Medians, dict[str, _Medians]]):
    """Times cycles of one drafter after the other, each with a server of its own."""

    async def run(self, taken: Mapping[str, _Medians], step: Step) -> Measured[_Medians]:
        target, count = self.options.directory, self.options.prompts
        asked = spread_questions(LocalModels.load(ClientConfig(target=target, drafter=NO_DRAFTER)), count)
        for name, directory in self.options.drafters.items():
            if name in taken:
                continue
            with ServerProcess(["--target", str(target), "--drafter", str(directory)]) as server:
                config = stop_and_wait_config(server=server.address, target=target, drafter=directory)
                models = LocalModels.load(config)
                with pinned_apart(server.pid) as pinned:
                    if not pinned:
                        show_line("server and client share their cores: this machine gives them none of their own")
                    times = await cycle_times(config, models, asked, ProgressCounter(step, name, count))
                    yield name, medians(times, await pings_ms(server.address, models))

    def report(self, rows: Mapping[str, _Medians]) -> dict[str, _Medians]:
        return dict(rows)

    @staticmethod
    def tables(report: Mapping[str, _Medians]) -> list[ResultTable]:
        return [overhead_table(report)]


def overhead_table(medians: Mapping[str, _Medians]) -> ResultTable:
    """Build the table of the median parts of a cycle in ms, a column per drafter."""
    cells = {name: ci95_cells(values, 2) for name, values in medians.items()}
    rows = [[part, *(of_drafter[part] for of_drafter in cells.values())] for part in next(iter(cells.values()))]
    return table("a cycle on loopback, median ms", ("part", *medians), rows, caption=OVER_PROMPTS)
