"""The plan of a measurement and its run: one server, every drafter over every link with every seed, run after run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from outrider_bench.core.processes import ServerProcess, pinned_apart
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, QuestionSource
from outrider_bench.core.reference_answers import answers_when_needed
from outrider_bench.network.link_endpoint import LinkEndpoint, open_link, profile_or_none
from outrider_bench.network.pings import PingStats
from outrider_bench.network.records import AnswerEntry, CaseEntry, CaseKey, Records
from outrider_bench.network.report import Scenario, ScenarioSetting
from outrider_bench.network.scenario_run import PromptSet, ScenarioRun, available_variants, run_once, slots_of_run
from outrider_bench.network.timed_answer import AnswerSlot, TimedAnswer
from outrider_bench.network.variants import STREAM, ModeVariant, Options, with_controls
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.embedded import drafter_source
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec

_WAIT_FOR_LINK_S = 60.0


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """Links, drafters, variants and prompts to measure. Raises UsageError.

    `prompts` is the number of questions, None: all of a user's file. `variants` are texts (see variants.py), `common`
    the options of all of them; profile `none` is no link; prompts have at least `prompt_tokens` tokens. With
    `cores_apart`, client and link have one core and the server another.
    """

    target: Path
    profiles: Sequence[str]
    drafters: Sequence[str]
    variants: Sequence[str]
    common: Options
    pace: str | None
    codec: Codec
    engine: EngineChoice
    source: QuestionSource
    prompts: int | None
    max_new_tokens: int
    runs: int
    seeds: Sequence[int]
    prompt_tokens: int = 0
    cores_apart: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        # Everything is parsed here once, so that a mistake shows before a server is started.
        for profile in self.profiles:
            profile_or_none(profile)
        for variant in self.all_variants:
            if variant.name in self.variants:
                variant.configured(self.config(self.drafters[0]))
        if self.pace is not None:
            Pace.load(self.pace)

    def _check_numbers(self) -> None:
        for name, least in (("prompts", 1), ("max_new_tokens", 2), ("prompt_tokens", 0), ("runs", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise UsageError(f"{name}={value}: need at least {least}")
        for before, after in pairwise(sorted(self.seeds)):
            if after - before < self.runs:
                raise UsageError(
                    f"seeds={list(self.seeds)}: need them {self.runs} or more apart: run n of a seed takes seed + n"
                )

    @property
    def families(self) -> list[str]:
        return list(self.source.families)

    @property
    def cases(self) -> list[CaseKey]:
        """The cases in their order."""
        return [CaseKey(d, profile, seed) for d in self.drafters for profile in self.profiles for seed in self.seeds]

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        """All that determines the figures, links and hardware in full, as JSON has it."""
        settings = {
            **asdict(self),
            "source": self.source.settings,
            "profiles": {
                name: None if (link := profile_or_none(name)) is None else asdict(link) for name in self.profiles
            },
            "pace": None if self.pace is None else asdict(Pace.load(self.pace)),
        }
        return dict(json.loads(json.dumps(settings, default=str)))

    @property
    def all_variants(self) -> list[ModeVariant]:
        """All variants, the controls first."""
        return with_controls([ModeVariant.parse(text, self.common) for text in self.variants], self.common)

    @property
    def server_options(self) -> list[str]:
        pace = [] if self.pace is None else ["--pace", self.pace]
        drafters = [option for name in self.drafters for option in ("--drafter", drafter_source(name))]
        # Without shared prefixes whoever asks first would pay for the prompt, and all others find it there.
        prefixes = ["--shared-prefixes", "none"]
        threads = ["--threads", "1"] if self.cores_apart else []
        return ["--target", str(self.target), *drafters, "--server-draft", *prefixes, *pace, *threads]

    def config(self, drafter: str, **choices: Any) -> ClientConfig:  # Any: fields of ClientConfig
        """Return the configuration that the clients of all variants share."""
        return replace(
            ClientConfig(
                target=self.target,
                drafter=drafter_source(drafter),
                codec=self.codec,
                pace=self.pace,
                threads=1 if self.cores_apart else None,
                # A machine that stands still looks like a dead link; its answers are the target's all the same.
                wait_for_link_s=_WAIT_FOR_LINK_S,
            ),
            **{"max_new_tokens": self.max_new_tokens, **choices},
        )

    def prompt_set(self, models: LocalModels) -> PromptSet:
        """Return as many prompts as wanted, the families in turn; the target may have to answer earlier turns."""
        return PromptSet(self.source.warm_up(models), self._asked(models), models)

    def _asked(self, models: LocalModels) -> Sequence[Question]:
        """Lengthen the prompts as the plan says. Raises UsageError where the context is too short."""
        answer = answers_when_needed(self.target)
        asked = self.source.spread(models, self.prompts, self.max_new_tokens, answer, self.prompt_tokens)
        most = models.max_context - self.max_new_tokens
        if (longest := max(len(question.prompt) for question in asked)) > most:
            raise UsageError(
                f"prompts of up to {longest} tokens, prompt_tokens={self.prompt_tokens}: the target's context leaves "
                f"room for {most} before max_new_tokens={self.max_new_tokens}"
            )
        return asked


async def measure(plan: NetworkPlan, records: Records, step: Step) -> list[Scenario]:
    """Measure what `records` lack of every case, and return all cases."""
    # Once for all cases: for questions of several turns, the target answers the earlier ones now.
    prompt_set = plan.prompt_set(LocalModels.load(plan.config(NO_DRAFTER)))
    count = len(prompt_set.asked)
    lacking = [key for key in plan.cases if key not in records.cases or _missing(plan, records, key, count)]
    if lacking:
        with ServerProcess(plan.server_options) as server, _cores_of(plan, server):
            for key in lacking:
                await _measure_case(plan, key, server.address, prompt_set, records, step)
    records.complete()
    return [scenario_of(plan, records, key) for key in plan.cases]


@contextmanager
def _cores_of(plan: NetworkPlan, server: ServerProcess) -> Iterator[None]:
    """Pin the client and the server if the plan says so. Raises UsageError where that is not possible."""
    if not plan.cores_apart:
        yield
        return
    with pinned_apart(server.pid) as pinned:
        if not pinned:
            raise UsageError("cores_apart: need two cores, and a system on which processes can be pinned to them")
        yield


async def _measure_case(
    plan: NetworkPlan, key: CaseKey, server: str, prompts: PromptSet, records: Records, step: Step
) -> None:
    models = LocalModels.load(plan.config(key.drafter, server=server))
    models.prepare()
    prompt_set, profile = replace(prompts, models=models), profile_or_none(key.profile)
    count = len(prompt_set.asked)
    if key not in records.cases:
        await _begin_case(plan, key, server, prompt_set, records)
    variants = _variants(plan, records, key)
    counter = ProgressCounter(step, str(key), len(_missing(plan, records, key, count)))

    def take(slot: AnswerSlot, pings_ms: Sequence[float], answer: TimedAnswer) -> None:
        asked = prompt_set.asked[slot.place]
        family, size = asked.family, len(asked.prompt)
        records.take(AnswerEntry(key, slot, family, size, tuple(pings_ms), answer))
        counter()

    for run in range(plan.runs):
        missing = [slot for slot in _missing(plan, records, key, count) if slot.run == run]
        if missing:
            # Each run has another link of the same engine: with one seed, all runs would lose the same packets.
            engine = cast(EngineChoice, records.cases[key].setting.engine)
            async with open_link(profile, server, engine, key.seed + run) as endpoint:
                config = plan.config(key.drafter, server=endpoint.address)
                await run_once(variants, prompt_set, config, endpoint, missing, take)


async def _begin_case(plan: NetworkPlan, key: CaseKey, server: str, prompt_set: PromptSet, records: Records) -> None:
    """Find out what client, server and machine can do in this case, and record it."""
    config = plan.config(key.drafter, server=server)
    variants, missing = await available_variants(plan.all_variants, prompt_set, config)
    async with open_link(profile_or_none(key.profile), server, plan.engine, key.seed) as endpoint:
        setting = _setting(plan, key, endpoint, prompt_set)
    records.begin(CaseEntry(key, setting, tuple(variant.name for variant in variants), missing))


def scenario_of(plan: NetworkPlan, records: Records, key: CaseKey) -> Scenario:
    """Compute a case's figures from its records, all of which must be there."""
    variants, families = _variants(plan, records, key), tuple[str, ...]()
    runs = []
    for number in range(plan.runs):
        entries = records.run_of(key, number)
        of_way = {v.name: [entry for entry in entries if entry.slot.way == v.name] for v in variants}
        families = tuple(entry.family for entry in of_way[STREAM])
        trips = PingStats.of([ping for entry in entries for ping in entry.pings_ms])
        answers = {name: [entry.answer for entry in given] for name, given in of_way.items()}
        runs.append(ScenarioRun.of(variants, answers, trips))
    case = records.cases[key]
    return Scenario(case.setting, variants, case.missing, runs, families, records.rows(key))


def _variants(plan: NetworkPlan, records: Records, key: CaseKey) -> list[ModeVariant]:
    return [variant for variant in plan.all_variants if variant.name in records.cases[key].variants]


def _missing(plan: NetworkPlan, records: Records, key: CaseKey, prompts: int) -> list[AnswerSlot]:
    variants = _variants(plan, records, key)
    slots = (slot for run in range(plan.runs) for slot in slots_of_run(variants, prompts, key.seed, run))
    return [slot for slot in slots if not records.has(key, slot)]


def _setting(plan: NetworkPlan, key: CaseKey, endpoint: LinkEndpoint, prompts: PromptSet) -> ScenarioSetting:
    profile = profile_or_none(key.profile)
    return ScenarioSetting(
        profile=key.profile,
        engine=endpoint.engine,
        why=endpoint.why,
        round_trip_ms=0.0 if profile is None else profile.round_trip_ms,
        drafter=key.drafter,
        codec=plan.codec,
        pace=plan.pace,
        hardware=None if plan.pace is None else asdict(Pace.load(plan.pace)),
        families=plan.source.families,
        prompts=len(prompts.asked),
        max_new_tokens=plan.max_new_tokens,
        prompt_tokens=plan.prompt_tokens,
        cores_apart=plan.cores_apart,
        seed=key.seed,
        tree=_tree(plan, key.drafter, prompts.models),
        questions=None if plan.source.file is None else plan.source.file.name,
    )


def _tree(plan: NetworkPlan, drafter: str, models: LocalModels) -> dict[str, Any]:  # Any: a shape's numbers, or choices
    """Return the tree of the variants that name none of their own."""
    asked = ModeVariant.parse("stream", plan.common).configured(plan.config(drafter)).shape
    own = None if models.drafter is None else models.drafter.plan
    shape = asked or own or TreeShape()
    return asdict(shape)
