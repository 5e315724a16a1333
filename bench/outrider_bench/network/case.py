"""One link and one drafter: every way answers the same prompts in turn, so that what the machine or the link does at a
moment befalls all; and again in every run, with new sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from outrider_bench.core.prompts import Question
from outrider_bench.network.beginnings import Beginnings
from outrider_bench.network.figures import Figures, figures
from outrider_bench.network.passage import Passage
from outrider_bench.network.recorded import Recorded, ask
from outrider_bench.network.round_trips import Pinger, RoundTrips
from outrider_bench.network.ways import SERVER_DRAFT, STREAM, Way
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_proto.errors import Refusal, UsageError

PINGS = 10  # before every prompt
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """By way: figures; how many of its answers differ from the stream's; how they began beside the stream's."""

    figures: Mapping[str, Figures]
    mismatches: Mapping[str, int]
    round_trips: RoundTrips
    beginnings: Mapping[str, Beginnings] = field(default_factory=dict)

    def ratio_to_stream(self, way: str) -> float | None:
        mine, theirs = self.figures[way].tokens_per_second, self.figures[STREAM].tokens_per_second
        return mine / theirs if mine is not None and theirs else None


@dataclass(frozen=True, slots=True)
class Course:
    """What every run asks: `warm_up` first, which is not counted."""

    warm_up: Question
    asked: Sequence[Question]
    models: LocalModels


async def available(ways: Sequence[Way], course: Course, config: ClientConfig) -> tuple[list[Way], dict[str, str]]:
    """Those that client and server take, and why a control is not among them. Raises what a way asked for raises."""
    taken, missing = [], {}
    for way in ways:
        try:
            async with AsyncExitStack() as stack:
                await _ready(way, course, config, stack)
        except (UsageError, Refusal) as error:
            if way.name != SERVER_DRAFT:
                raise
            missing[way.name] = str(error)
        else:
            taken.append(way)
    return taken, missing


async def run_once(
    ways: Sequence[Way], course: Course, config: ClientConfig, through: Passage, number: int, step: Callable[[], None]
) -> Run:
    """All prompts by all ways; `number` counts the runs."""
    records: dict[str, list[Recorded]] = {way.name: [] for way in ways}
    async with AsyncExitStack() as stack:
        clients = {way.name: await _ready(way, course, config, stack) for way in ways}
        introduction = course.models.open_frame(config.codec)
        pinger = await stack.enter_async_context(Pinger(through.address, introduction, time.perf_counter))
        for place, question in enumerate(course.asked):
            await pinger.ping(PINGS)
            for name in _turned(list(clients), place + number):
                answer = await ask(clients[name], question.prompt, through.traffic, time.perf_counter)
                records[name].append(answer)
                step()
        return _run(ways, records, RoundTrips.of(pinger.times_ms))


async def _ready(way: Way, course: Course, config: ClientConfig, stack: AsyncExitStack) -> AsyncClient:
    """A client with a session of its own, which has answered something."""
    client = AsyncClient(way.configured(config), models=course.models)
    await stack.enter_async_context(client)
    await client.complete(course.warm_up.prompt, max_new_tokens=WARM_UP_TOKENS)
    return client


def _run(ways: Sequence[Way], records: Mapping[str, Sequence[Recorded]], trips: RoundTrips) -> Run:
    expected = [record.token_ids for record in records[STREAM]]
    differing = {
        name: sum(mine.token_ids != theirs for mine, theirs in zip(answers, expected, strict=True))
        for name, answers in records.items()
    }
    of_ways = {
        way.name: figures(records[way.name], trips.mean_ms, bounded=way.crosses_for_each_verdict) for way in ways
    }
    beginnings = {name: Beginnings.of(answers, records[STREAM]) for name, answers in records.items()}
    return Run(of_ways, differing, trips, beginnings)


def _turned(names: Sequence[str], by: int) -> list[str]:
    """Another one is the first each time."""
    first = by % len(names)
    return [*names[first:], *names[:first]]
