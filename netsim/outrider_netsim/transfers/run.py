"""Measure profiles through engines, repetition by repetition, and report. Needs no more than the engines do.

report = asyncio.run(measure_transfers([profile_named("paper-4g")], ["tun", "virtual"], TransferPlan()))
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from outrider_netsim.core.engine_names import TransferEngine
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.probe.circumstances import circumstances, profile_as_json
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.transfers.plan import OVERHEAD, Samples, TransferPlan, TransferTask, stall_ms
from outrider_netsim.transfers.real_link import take_really
from outrider_netsim.transfers.report import TransferReport, TransferRow
from outrider_netsim.transfers.virtual_ends import take_virtually

Say = Callable[[str], None]
MAX_REPETITIONS = 1000


async def measure_transfers(
    profiles: Sequence[Profile],
    engines: Sequence[TransferEngine],
    plan: TransferPlan,
    *,
    repetitions: int = 3,
    seed: int = 1,
    links: int = 1,
    say: Say = lambda _: None,
) -> TransferReport:
    """Measure every profile through every engine; repetition i has the seed `seed` + i.

    Each measure has a link of its own; downloads run alone, of the others up to `links` at once. Repetitions go over
    all engines in turn, so that a disturbance of the machine meets all alike. Raises ProfileError for invalid
    arguments, EngineError when this machine cannot run an engine or measuring fails.
    """
    if not 1 <= repetitions <= MAX_REPETITIONS:
        raise ProfileError(f"repetitions={repetitions}: need 1 to {MAX_REPETITIONS}")
    if not plan.tasks:
        raise ProfileError("nothing is left to measure: give a count or duration above 0")
    started = datetime.now(UTC)
    found: dict[tuple[str, str], list[Samples]] = {}
    for repetition in range(repetitions):
        for profile in profiles:
            for engine in engines:
                say(f"{profile.name} through {engine}, repetition {repetition + 1} of {repetitions}")
                samples = await _repetition(profile, engine, plan, seed + repetition, links)
                found.setdefault((profile.name, engine), []).append(samples)
    rows = tuple(_row(profile, engine, found[profile.name, engine]) for profile in profiles for engine in engines)
    seeds = list(range(seed, seed + repetitions))
    return TransferReport(plan, rows, (circumstances(started, datetime.now(UTC)) | {"seeds": seeds},))


async def _repetition(profile: Profile, engine: TransferEngine, plan: TransferPlan, seed: int, links: int) -> Samples:
    free, samples = asyncio.Semaphore(links), Samples()

    async def take(task: TransferTask) -> None:
        async with free:
            samples.update(await _task(task, profile, engine, plan, seed))

    alone = [task for task in plan.tasks if task.measure == "download"]
    for task in alone:
        await take(task)
    try:
        async with asyncio.TaskGroup() as group:
            for task in plan.tasks:
                if task not in alone:
                    group.create_task(take(task))
    except ExceptionGroup as failures:
        # One says it all: the others are of the same machine.
        raise failures.exceptions[0] from None
    return samples


async def _task(task: TransferTask, profile: Profile, engine: TransferEngine, plan: TransferPlan, seed: int) -> Samples:
    shaped = plan.link(task, profile)
    if engine == "virtual":
        # In a thread: an event loop cannot run inside another one.
        samples = await asyncio.to_thread(take_virtually, task, shaped, plan, seed)
    else:
        samples = await take_really(task, shaped, plan, seed, engine)
    if task.measure == "lone_loss":
        samples = {"lone_loss_ms": [taken for taken in samples["exchange_ms"] if taken >= stall_ms(shaped)]}
    if task.measure == "overhead":
        samples = {OVERHEAD: [taken - shaped.round_trip_ms for taken in samples["exchange_ms"]]}
    return samples


def _row(profile: Profile, engine: str, repetitions: Sequence[Samples]) -> TransferRow:
    names = dict.fromkeys(name for samples in repetitions for name in samples)
    samples = {name: [samples[name] for samples in repetitions] for name in names}
    # Through JSON, so that it equals the same link read from a file.
    link = json.loads(json.dumps(profile_as_json(profile)))
    return TransferRow(link, engine, samples)
