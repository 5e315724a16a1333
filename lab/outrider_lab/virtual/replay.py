"""Replays of a tape against one link and one Pace, by the client's own loops.

Every variant answers the taped prompts on a virtual link of its own. What is measured and how is the network bench's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.network.link_endpoint import NO_LINK, PINGS_A_RUN, LinkTraffic, PingStats, profile_or_none
from outrider_bench.network.records import AnswerEntry, CaseKey, Row, answer_rows
from outrider_bench.network.report import Scenario, ScenarioSetting
from outrider_bench.network.scenario_run import WARM_UP_TOKENS, ScenarioRun
from outrider_bench.network.timed_answer import AnswerSlot, TimedAnswer, ask
from outrider_bench.network.variants import ModeVariant
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_lab.virtual.drafting import TapedDrafter, TapedDrafting
from outrider_lab.virtual.tape import TapedAnswer
from outrider_lab.virtual.texts import TapedTexts
from outrider_lab.virtual.transport import VirtualTransport, serve
from outrider_lab.virtual.verifier import NAME, VirtualVerifier
from outrider_netsim import Direction, Profile
from outrider_netsim.virtual.link import VirtualLink
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec, Ping

VIRTUAL_NOTE = (
    "virtual time: taped drafts and answers through the client's own loops; packets as the profile has them, under a "
    "model of Linux's TCP with congestion control; processor time only as declared"
)
_PAUSE_S = 0.01  # before a ping, as in network/link_endpoint.py
# Before an answer. In the network bench the other ways answer meanwhile: the features of the last prompt have arrived
# by then, and the congestion window has shrunk for lack of use.
_BETWEEN_ANSWERS_S = 2.0


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """Everything a replay depends on beside variants and seed. Raises UsageError for more tokens than taped.

    The taped prompts are asked in one session; `server_draft`: the server offers to draft.
    """

    texts: TapedTexts
    profile: Profile
    pace: Pace
    codec: Codec = "int8"
    max_new_tokens: int = 128
    server_draft: bool = True

    def __post_init__(self) -> None:
        taped = min((recording.limit for recording in self.texts.tape.recordings), default=0)
        if self.max_new_tokens > taped:
            raise UsageError(f"max_new_tokens={self.max_new_tokens}: the tape has {taped}")

    @property
    def asked(self) -> tuple[TapedAnswer, ...]:
        """The taped prompts."""
        return self.texts.tape.recordings

    @property
    def config(self) -> ClientConfig:
        # Lookups by the fallback drafter take real time, which the virtual clock cannot see.
        return ClientConfig(codec=self.codec, max_new_tokens=self.max_new_tokens, last_resort="none")

    @property
    def models(self) -> LocalModels:
        vocabulary = self.texts.tape.vocabulary
        drafter = TapedDrafter(self.texts)
        return LocalModels(drafter, vocabulary.size, vocabulary.max_context, vocabulary.eos_token_ids, NAME, NAME)


def replay(
    setup: ReplaySetup, variants: Sequence[ModeVariant], seed: int, step: Callable[[], None] = lambda: None
) -> ScenarioRun:
    """Answer all taped prompts with all variants; the same arguments give the same metrics.

    `step` is called after every answer. Answers that differ from the tape count as mismatches.
    """
    given = {variant.name: answers(setup, variant, seed, step) for variant in variants}
    expected = [recording.answer[: setup.max_new_tokens] for recording in setup.asked]
    return ScenarioRun.of(variants, given, PingStats.of(pings_ms(setup, seed)), expected)


def answers(
    setup: ReplaySetup, variant: ModeVariant, seed: int, step: Callable[[], None] = lambda: None
) -> list[TimedAnswer]:
    """Answer all taped prompts, one after the other over one connection, with pauses between them."""
    link = VirtualLink(setup.profile, seed)
    return link.clock.run(_answers(setup, variant, link, step))


def pings_ms(setup: ReplaySetup, seed: int) -> list[float]:
    """Return round trips of small frames over such a link."""
    link = VirtualLink(setup.profile, f"{seed}/pings")
    return link.clock.run(_pings_ms(setup, link))


def link_of(profile: str) -> Profile:
    """Return the named profile; for `none` one without delay. Raises UsageError."""
    return profile_or_none(profile) or Profile.symmetric(NO_LINK, Direction(), "both sides on one device")


@contextlib.asynccontextmanager
async def replaying(setup: ReplaySetup, variant: ModeVariant, link: VirtualLink) -> AsyncIterator[AsyncClient]:
    """Yield a client that answers taped prompts over `link`, whose clock the program runs on."""
    async with _served(setup, link) as transport:
        drafting = TapedDrafting(setup.texts, setup.pace)
        config, clock = variant.configured(setup.config), lambda: link.clock.now
        async with AsyncClient(
            config, models=setup.models, transport=transport, drafting=drafting, clock=clock
        ) as client:
            yield client


async def _answers(
    setup: ReplaySetup, variant: ModeVariant, link: VirtualLink, step: Callable[[], None]
) -> list[TimedAnswer]:
    asked, answered = setup.asked, []
    async with replaying(setup, variant, link) as client:
        # Warm up with the last prompt: the first one must not find its own prefix.
        await client.complete(asked[-1].prompt, max_new_tokens=min(WARM_UP_TOKENS, setup.max_new_tokens))
        for recording in asked:
            await asyncio.sleep(_BETWEEN_ANSWERS_S)
            answered.append(await ask(client, recording.prompt, lambda: _traffic(link), lambda: link.clock.now))
            step()
    return answered


async def _pings_ms(setup: ReplaySetup, link: VirtualLink) -> list[float]:
    times = []
    async with _served(setup, link) as transport:
        connection = await transport.connect()
        connection.send(setup.models.open_frame(setup.codec))
        await connection.receive()
        for nonce in range(PINGS_A_RUN):
            await asyncio.sleep(_PAUSE_S)
            started = link.clock.now
            connection.send(Ping(nonce))
            await connection.receive()
            times.append((link.clock.now - started) * 1e3)
        await connection.close()
    return times


@contextlib.asynccontextmanager
async def _served(setup: ReplaySetup, link: VirtualLink) -> AsyncIterator[VirtualTransport]:
    """Run a server at the far end while the context lasts. Raises what went wrong there."""
    verifier = VirtualVerifier(setup.texts, setup.pace, server_draft=setup.server_draft)
    serving = asyncio.create_task(serve(link, verifier))
    try:
        yield VirtualTransport(link, verifier)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    # The client saw a lost link; the cause is here.
    if verifier.fault is not None:
        raise verifier.fault


def _traffic(link: VirtualLink) -> LinkTraffic:
    stats = link.stats
    return LinkTraffic(stats.up.packets_in, stats.down.packets_in, stats.up.bytes_in, stats.down.bytes_in)


def replay_scenario(setup: ReplaySetup, variants: Sequence[ModeVariant], runs: int, seed: int, step: Step) -> Scenario:
    counter = ProgressCounter(step, setup.profile.name, runs * len(variants) * len(setup.texts.tape.recordings))
    setting = _setting(setup, variants, seed)
    families = [recording.family for recording in setup.asked]
    replayed = [replay(setup, variants, seed + n, counter) for n in range(runs)]
    rows = [row for number, run in enumerate(replayed) for row in _rows_of(setup, run, seed, number)]
    return Scenario(setting, variants, {}, replayed, families, rows)


def _rows_of(setup: ReplaySetup, run: ScenarioRun, seed: int, number: int) -> list[Row]:
    """Return a row per answer of a run as `outrider-bench network` has it; `seed` is that of run 0."""
    key = CaseKey(setup.texts.tape.drafter, setup.profile.name, seed)
    return [
        row
        for place, recording in enumerate(setup.asked)
        for row in answer_rows(
            [
                # Every way has a link of its own, so no order is drawn: this is that of the ways.
                AnswerEntry(
                    key,
                    AnswerSlot(number, place, name, order),
                    recording.family,
                    len(recording.prompt),
                    (),
                    given[place],
                )
                for order, (name, given) in enumerate(run.answers.items())
            ],
            in_corpus=recording.category is None,
        )
    ]


def _setting(setup: ReplaySetup, variants: Sequence[ModeVariant], seed: int) -> ScenarioSetting:
    tape = setup.texts.tape
    choices = None if tape.choices is None else TreeChoices(tape.choices)
    shape = variants[-1].configured(setup.config).shape or choices or TreeShape()
    return ScenarioSetting(
        profile=setup.profile.name,
        engine="virtual",
        why=VIRTUAL_NOTE,
        round_trip_ms=setup.profile.round_trip_ms,
        drafter=tape.drafter,
        codec=setup.codec,
        pace=setup.pace.name,
        hardware=asdict(setup.pace),
        families=sorted({recording.family for recording in tape.recordings}),
        prompts=len(tape.recordings),
        max_new_tokens=setup.max_new_tokens,
        seed=seed,
        tree=asdict(shape),
        questions=None if all(recording.category is None for recording in tape.recordings) else "on the tape",
    )
