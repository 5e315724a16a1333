"""The plan of a measurement and its run: one server, every drafter over every link, run after run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.processes import ServerProcess
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import SEED, Question, lengthened, questions
from outrider_bench.network.link_endpoint import LinkEndpoint, open_link, profile_or_none
from outrider_bench.network.report import Scenario, ScenarioSetting
from outrider_bench.network.scenario_run import PromptSet, available_variants, run_once
from outrider_bench.network.variants import ModeVariant, Options, with_controls
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.embedded import drafter_source
from outrider_models.corpus import Family
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """Links, drafters, variants and prompts to measure. Raises UsageError.

    `variants` are texts (see variants.py), `common` the options of all of them; profile `none` is no link; prompts have
    at least `prompt_tokens` tokens.
    """

    target: Path
    profiles: Sequence[str]
    drafters: Sequence[str]
    variants: Sequence[str]
    common: Options
    pace: str | None
    codec: Codec
    engine: EngineChoice
    families: Sequence[Family]
    prompts: int
    max_new_tokens: int
    runs: int
    seed: int
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        # Everything is parsed here once, so that a mistake shows before a server is started.
        for profile in self.profiles:
            profile_or_none(profile)
        for variant in self.all_variants:
            if variant.name in self.variants:
                variant.configured(self.config(self.drafters[0]))
        if self.pace is not None:
            Pace.load(self.pace)

    @property
    def all_variants(self) -> list[ModeVariant]:
        """All variants, the controls first."""
        return with_controls([ModeVariant.parse(text, self.common) for text in self.variants], self.common)

    @property
    def server_options(self) -> list[str]:
        pace = [] if self.pace is None else ["--pace", self.pace]
        drafters = [option for name in self.drafters for option in ("--drafter", drafter_source(name))]
        return ["--target", str(self.target), *drafters, "--server-draft", *pace]

    def config(self, drafter: str, **choices: Any) -> ClientConfig:  # Any: fields of ClientConfig
        """Return the configuration that the clients of all variants share."""
        return replace(
            ClientConfig(target=self.target, drafter=drafter_source(drafter), codec=self.codec, pace=self.pace),
            **{"max_new_tokens": self.max_new_tokens, **choices},
        )

    def prompt_set(self, models: LocalModels) -> PromptSet:
        """Return as many prompts as wanted, the families in turn."""
        each = -(-self.prompts // len(self.families))
        asked = questions(models, lambda family: each if family in self.families else 0)
        in_turn = [asked[family * each + number] for number in range(each) for family in range(len(self.families))]
        warm_up = questions(models, lambda family: int(family == self.families[0]), SEED + 1)[0]
        return PromptSet(warm_up, self._lengthened(in_turn[: self.prompts], models), models)

    def _lengthened(self, asked: Sequence[Question], models: LocalModels) -> Sequence[Question]:
        """Lengthen the prompts as the plan says. Raises UsageError where the context is too short."""
        if not self.prompt_tokens:
            return asked
        longer = lengthened(asked, models, self.prompt_tokens)
        most = models.max_context - self.max_new_tokens
        if (longest := max(len(question.prompt) for question in longer)) > most:
            raise UsageError(f"prompt_tokens={self.prompt_tokens} makes prompts of {longest}: there is room for {most}")
        return longer


async def measure(plan: NetworkPlan, step: Step) -> list[Scenario]:
    """Measure a scenario for every drafter and profile, in that order."""
    with ServerProcess(plan.server_options) as server:
        return [
            await _case(plan, drafter, name, server.address, step)
            for drafter in plan.drafters
            for name in plan.profiles
        ]


async def _case(plan: NetworkPlan, drafter: str, profile: str, server: str, step: Step) -> Scenario:
    models = LocalModels.load(plan.config(drafter, server=server))
    models.prepare()
    prompt_set = plan.prompt_set(models)
    variants, missing = await available_variants(plan.all_variants, prompt_set, plan.config(drafter, server=server))
    counter = ProgressCounter(step, f"{drafter} over {profile}", plan.runs * len(prompt_set.asked) * len(variants))
    shape = profile_or_none(profile)
    async with open_link(shape, server, plan.engine, plan.seed) as endpoint:
        config = plan.config(drafter, server=endpoint.address)
        runs = [await run_once(variants, prompt_set, config, endpoint, number, counter) for number in range(plan.runs)]
    round_trip_ms = 0.0 if shape is None else shape.round_trip_ms
    return Scenario(_setting(plan, drafter, profile, endpoint, round_trip_ms, models), variants, missing, runs)


def _setting(
    plan: NetworkPlan, drafter: str, profile: str, endpoint: LinkEndpoint, round_trip_ms: float, models: LocalModels
) -> ScenarioSetting:
    return ScenarioSetting(
        profile=profile,
        engine=endpoint.engine,
        why=endpoint.why,
        round_trip_ms=round_trip_ms,
        drafter=drafter,
        codec=plan.codec,
        pace=plan.pace,
        hardware=None if plan.pace is None else asdict(Pace.load(plan.pace)),
        families=plan.families,
        prompts=plan.prompts,
        max_new_tokens=plan.max_new_tokens,
        prompt_tokens=plan.prompt_tokens,
        seed=plan.seed,
        tree=_tree(plan, drafter, models),
    )


def _tree(plan: NetworkPlan, drafter: str, models: LocalModels) -> dict[str, Any]:  # Any: a shape's numbers, or choices
    """Return the tree of the variants that name none of their own."""
    asked = ModeVariant.parse("stream", plan.common).configured(plan.config(drafter)).shape
    own = None if models.drafter is None else models.drafter.plan
    shape = asked or own or TreeShape()
    return asdict(shape)
