"""A tape replayed against one link and one Pace: every way answers the taped prompts on a virtual link of its own, by
the client's own loops. What is measured and how is the network bench's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from outrider_bench.network.beginnings import Beginnings
from outrider_bench.network.case import PINGS, WARM_UP_TOKENS, Run
from outrider_bench.network.figures import figures
from outrider_bench.network.passage import NO_LINK, Traffic, profile_or_none
from outrider_bench.network.recorded import Recorded, ask
from outrider_bench.network.round_trips import RoundTrips
from outrider_bench.network.ways import STREAM, Way
from outrider_bench.virtual.drafting import ReplayedDrafting, TapedDrafter
from outrider_bench.virtual.overhead import Overhead
from outrider_bench.virtual.tape import Recording
from outrider_bench.virtual.texts import Texts
from outrider_bench.virtual.transport import VirtualTransport, serve
from outrider_bench.virtual.verifier import NAME, VirtualVerifier
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.emulation.pace import Pace
from outrider_netsim import Direction, Profile
from outrider_netsim.virtual.link import VirtualLink
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec, Ping

_PAUSE_S = 0.01  # before a ping, as network/round_trips.py


@dataclass(frozen=True, slots=True)
class Stage:
    """All that a replay depends on but its ways and its seed. The taped prompts are asked `rounds` times over, in one
    session; `server_draft`: the server offers to draft. Raises UsageError for more tokens than were taped."""

    texts: Texts
    profile: Profile
    pace: Pace
    codec: Codec = "int8"
    max_new_tokens: int = 128
    rounds: int = 1
    server_draft: bool = True
    overhead: Overhead = field(default_factory=Overhead)

    def __post_init__(self) -> None:
        taped = min((recording.limit for recording in self.texts.tape.recordings), default=0)
        if self.max_new_tokens > taped:
            raise UsageError(f"max_new_tokens={self.max_new_tokens}: the tape has {taped}")

    @property
    def asked(self) -> tuple[Recording, ...]:
        """The taped prompts, as often as they are asked."""
        return self.texts.tape.recordings * self.rounds

    @property
    def config(self) -> ClientConfig:
        """Nobody writes where there is no drafter: lookups take real time."""
        return ClientConfig(codec=self.codec, max_new_tokens=self.max_new_tokens, last_resort="none")

    @property
    def models(self) -> LocalModels:
        vocabulary = self.texts.tape.vocabulary
        drafter = TapedDrafter(self.texts)
        return LocalModels(drafter, vocabulary.size, vocabulary.max_context, vocabulary.eos_token_ids, NAME, NAME)


def replay(stage: Stage, ways: Sequence[Way], seed: int, step: Callable[[], None] = lambda: None) -> Run:
    """All taped prompts by all ways. The same arguments give the same figures. `step` is called after every answer.
    Answers that are not the tape's count as mismatches."""
    records = {way.name: answers(stage, way, seed, step) for way in ways}
    trips = RoundTrips.of(pings_ms(stage, seed))
    return Run(
        {way.name: figures(records[way.name], trips.mean_ms, bounded=way.crosses_for_each_verdict) for way in ways},
        {name: _mismatches(stage, answered) for name, answered in records.items()},
        trips,
        {name: Beginnings.of(answered, records.get(STREAM, answered)) for name, answered in records.items()},
    )


def answers(stage: Stage, way: Way, seed: int, step: Callable[[], None] = lambda: None) -> list[Recorded]:
    """To all taped prompts, one after the other over one connection."""
    link = VirtualLink(stage.overhead.on_link(stage.profile), seed)
    return link.clock.run(_answers(stage, way, link, step))


def pings_ms(stage: Stage, seed: int) -> list[float]:
    """Round trips of small frames over such a link."""
    link = VirtualLink(stage.overhead.on_link(stage.profile), f"{seed}/pings")
    return link.clock.run(_pings_ms(stage, link))


def link_of(profile: str) -> Profile:
    """By name, or none. Raises UsageError."""
    return profile_or_none(profile) or Profile.symmetric(NO_LINK, Direction(), "both sides on one device")


@contextlib.asynccontextmanager
async def replaying(stage: Stage, way: Way, link: VirtualLink) -> AsyncIterator[AsyncClient]:
    """A client that answers taped prompts over `link`, on whose clock the program runs."""
    async with _served(stage, link) as transport:
        drafting = ReplayedDrafting(stage.texts, stage.pace, stage.overhead)
        config, clock = way.configured(stage.config), lambda: link.clock.now
        async with AsyncClient(
            config, models=stage.models, transport=transport, drafting=drafting, clock=clock
        ) as client:
            yield client


async def _answers(stage: Stage, way: Way, link: VirtualLink, step: Callable[[], None]) -> list[Recorded]:
    asked, answered = stage.asked, []
    async with replaying(stage, way, link) as client:
        await client.complete(asked[-1].prompt, max_new_tokens=min(WARM_UP_TOKENS, stage.max_new_tokens))
        for recording in asked:
            answered.append(await ask(client, recording.prompt, lambda: _traffic(link), lambda: link.clock.now))
            step()
    return answered


async def _pings_ms(stage: Stage, link: VirtualLink) -> list[float]:
    times = []
    async with _served(stage, link) as transport:
        connection = await transport.connect()
        connection.send(stage.models.open_frame(stage.codec))
        await connection.receive()
        for nonce in range(PINGS * len(stage.texts.tape.recordings)):
            await asyncio.sleep(_PAUSE_S)
            started = link.clock.now
            connection.send(Ping(nonce))
            await connection.receive()
            times.append((link.clock.now - started) * 1e3)
        await connection.close()
    return times


@contextlib.asynccontextmanager
async def _served(stage: Stage, link: VirtualLink) -> AsyncIterator[VirtualTransport]:
    """A server at the far end, while the context lasts. Raises what went wrong there."""
    hardware, pause_ms = stage.overhead.on_server(stage.pace), stage.overhead.between_passes_ms
    verifier = VirtualVerifier(stage.texts, hardware, server_draft=stage.server_draft, pause_ms=pause_ms)
    serving = asyncio.create_task(serve(link, verifier))
    try:
        yield VirtualTransport(link, verifier)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    if verifier.fault is not None:
        raise verifier.fault


def _traffic(link: VirtualLink) -> Traffic:
    stats = link.stats
    return Traffic(stats.up.packets_in, stats.down.packets_in, stats.up.bytes_in, stats.down.bytes_in)


def _mismatches(stage: Stage, answered: Sequence[Recorded]) -> int:
    expected = [recording.answer[: stage.max_new_tokens] for recording in stage.asked]
    return sum(one.token_ids != answer for one, answer in zip(answered, expected, strict=True))
