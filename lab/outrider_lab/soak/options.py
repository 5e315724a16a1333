"""Options of `outrider-lab soak`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from outrider_bench.harness.options import NewTokensOption, per_family_option
from outrider_bench.harness.study import QuestionOptions
from outrider_bench.load.options import LoadOptions
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_lab.soak.run import SoakPlan

_LONG_S = 600.0  # to have seen all prompts several times


@dataclass(frozen=True, kw_only=True)
class SoakOptions(QuestionOptions):
    """Watch memory and answers for hours of load with faults: connections cut, a silent link, a killed server."""

    shown = "cuts outages kills json"
    clients: Annotated[int, Field(ge=1), Flag("Concurrent clients, which draft from the known answer.")] = 8
    seconds: Annotated[float | None, Flag("Seconds of the run; default: as long as its faults take.")] = None
    think: Annotated[float, Flag("Mean seconds between an answer and the next request.")] = 10.0
    per_family: Annotated[int | None, Field(ge=1), per_family_option("8")] = None
    max_new_tokens: NewTokensOption = 64
    profile: Annotated[str, Flag("Link profile between clients and server (proxy engine).")] = "lan"
    server_options: Annotated[
        str, Flag("More options for the `outrider-server serve` that is started, e.g. '--threads 2'.")
    ] = ""
    any_cores: Annotated[bool, Flag("Let server and clients share all cores; else each has its own.")] = False
    cuts: Annotated[int, Flag("Connections to shut down.")] = 0
    outages: Annotated[int, Flag("Silences of the link of 0.5 to 4 s.")] = 0
    kills: Annotated[int, Flag("Kills (SIGKILL) and restarts of the server.")] = 0
    warm_up: Annotated[
        float | None,
        Flag("Seconds before memory growth is measured; default: a quarter, at most 600."),
    ] = None
    sample_every: Annotated[float, Field(ge=0.1), Flag("Seconds between memory samples.")] = 10.0
    seed: Annotated[int, Flag("Random seed of prompts, drafts, moments and faults.")] = 1

    @cached_property
    def load(self) -> LoadOptions:
        """The load that is put on the server; clients open a new session after five answers."""
        return LoadOptions(
            target=self.target,
            questions=self.questions,
            families=self.families,
            clients=str(self.clients),
            think=self.think,
            stay=5.0,
            per_family=self.per_family,
            max_new_tokens=self.max_new_tokens,
            profile=self.profile,
            server_options=self.server_options,
            shared_prefixes="payer",
            any_cores=self.any_cores,
            seed=self.seed,
        )

    @property
    def soak_plan(self) -> SoakPlan:
        """Raises UsageError."""
        from outrider_lab.soak.run import SoakPlan

        usual = _LONG_S if self.seconds is None else min(_LONG_S, self.seconds / 4)
        warm_up = usual if self.warm_up is None else self.warm_up
        return SoakPlan(self.seconds, self.cuts, self.outages, self.kills, warm_up, self.sample_every)
