"""What a measurement asks of whom: every drafter over every link with every seed, and the prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider_bench.core.prompts import Question, QuestionSource
from outrider_bench.core.reference_answers import answers_when_needed
from outrider_bench.network.link_endpoint import profile_or_none
from outrider_bench.network.records import CaseKey
from outrider_bench.network.scenario_run import PromptSet
from outrider_bench.network.variants import ModeVariant, Options, with_controls
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.emulation.pace import Pace
from outrider_models.core.embedded import drafter_source
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec
from outrider_server.engine.hf_model import DTYPES

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
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype}: need one of {', '.join(DTYPES)}")
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
        target = ["--target", str(self.target), "--dtype", self.dtype]
        return [*target, *drafters, "--server-draft", *prefixes, *pace, *threads]

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
        answer = answers_when_needed(self.target, self.dtype)
        asked = self.source.spread(models, self.prompts, self.max_new_tokens, answer, self.prompt_tokens)
        most = models.max_context - self.max_new_tokens
        if (longest := max(len(question.prompt) for question in asked)) > most:
            raise UsageError(
                f"prompts of up to {longest} tokens, prompt_tokens={self.prompt_tokens}: the target's context leaves "
                f"room for {most} before max_new_tokens={self.max_new_tokens}"
            )
        return asked
