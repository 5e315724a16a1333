"""Options of `outrider-bench network`: an experiment's keys, which they override, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    CsvOption,
    FamiliesOption,
    LevelsOption,
    PlotOption,
    QuestionsOption,
    TargetOption,
    codec_of,
    drafters_for,
    target_of,
)
from outrider_bench.harness.study import StudyOptions
from outrider_netsim import EngineChoice
from outrider_proto.frames import Codec

if TYPE_CHECKING:
    from outrider_bench.network.plan import NetworkPlan

MODE_OPTIONS = "wait_for_features, opening, in_flight, outcomes, tree, breadth, levels, budget"
TABLE_3_PROFILES = ("none", "paper-5g", "paper-4g")
PAPERS_DRAFTERS = ("moa_tli1", "moa", "eagle2", "independent")
_OF_TREE = ("breadth", "levels", "budget")


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(StudyOptions):
    """Measure drafting across an emulated link, with a real server and client, beside the controls.

    The controls are stream and server-draft.
    """

    experiment: Annotated[
        Path | None,
        typer.Option(help="TOML file of links, modes, drafters and seeds to measure; options given here override it."),
    ] = None
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile", help="Link profile from `outrider-netsim list`, or none; repeatable; default: paper-5g."
        ),
    ] = None
    pace: Annotated[
        str | None,
        typer.Option(help="Emulate the compute times of this hardware on both sides: a name (paper) or a TOML file."),
    ] = None
    target: TargetOption = None
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: the best that ships "
            "for the target, or else lookup.",
        ),
    ] = None
    modes: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            metavar="MODE[,OPTION=VALUE...]",
            help=f"Mode to measure beside the controls; repeatable; default: the client's. Options: {MODE_OPTIONS}.",
        ),
    ] = None
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Questions, the families in turn; default: 24 held-out ones, 4 of each family, or all of --questions. "
            "A run of three modes over 24 takes about a minute, two with --pace paper.",
        ),
    ] = None
    questions: QuestionsOption = None
    families: FamiliesOption = None
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="New tokens per answer; default: 128.")] = None
    prompt_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Lengthen prompts with earlier questions and answers to at least this many tokens."),
    ] = None
    cores_apart: Annotated[
        bool | None,
        typer.Option(
            "--cores-apart/--shared-cores",
            help="Pin the server to one core, client and link to another, each with one thread, as if on two machines; "
            "default: they share all cores.",
        ),
    ] = None
    runs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Repetitions, each over a link with another seed; results are medians over them; default: 1."
        ),
    ] = None
    engine: Annotated[
        EngineChoice | None,
        typer.Option(help="What emulates the link; auto, the default, takes the best that this machine allows."),
    ] = None
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    wait_for_features: Annotated[
        bool | None, typer.Option(help="Draft only with the newest features; default: as the drafter needs it.")
    ] = None
    in_flight: Annotated[int | None, typer.Option(help="Drafts in flight at once in mode pipelined.")] = None
    outcomes: Annotated[int | None, typer.Option(help="Outcomes to draft ahead for; default: as many as pay off.")] = (
        None
    )
    codec: Annotated[
        list[str] | None,
        typer.Option("--codec", help="Feature codec; default: int8. Repeatable with --table7, default there: all."),
    ] = None
    seeds: Annotated[
        list[int] | None,
        typer.Option(
            "--seed",
            help="Random seed of the link in the first run (the next one has the next) and of the order of the modes; "
            "repeatable, a case each; default: 1.",
        ),
    ] = None
    table3: Annotated[
        bool,
        typer.Option(
            "--table3",
            help="The paper's Table 3: its drafters (of another target all that ship, or else lookup) on one device, "
            "over 5G and over 4G.",
        ),
    ] = False
    table7: Annotated[
        bool, typer.Option("--table7", help="Only the paper's Table 7: bytes of messages, by drafter and codec.")
    ] = False
    csv: CsvOption = None
    plot: PlotOption = None

    @cached_property
    def plan(self) -> NetworkPlan:
        """Raises UsageError."""
        from outrider_bench.network.experiment import Experiment, planned

        codecs = [codec_of(name) for name in self.codec or ()]
        otherwise = {
            "codec": codecs[0] if codecs else None,
            "families": None if self.families is None else self.families.split(","),
            "tree": {name: value for name in _OF_TREE if (value := getattr(self, name)) is not None},
        }
        keys = [each.name for each in fields(Experiment)]
        given = {key: otherwise[key] if key in otherwise else getattr(self, key) for key in keys}
        papers: dict[str, Sequence[str]] = {"profiles": TABLE_3_PROFILES} if self.table3 else {}
        if self.table3 or self.table7:
            papers["drafters"] = PAPERS_DRAFTERS if self.target is None else drafters_for(target_of(self.target))
        return planned(self.experiment, {key: value for key, value in given.items() if value is not None}, papers)

    @property
    def codecs(self) -> Sequence[Codec]:
        """Codecs of --table7: those named, or else that of the experiment's file, or all."""
        from outrider_proto.frames import CODECS

        if self.codec is None and self.experiment is not None:
            return [self.plan.codec]
        return [codec_of(name) for name in self.codec or CODECS]

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        return {**self.plan.settings, "table7": list(self.codecs) if self.table7 else None}
