"""Options of `outrider-bench network`, on the command line or as keys of an experiment's TOML file.

The cases are drafters x profiles x seeds, and every case has all modes beside the controls. Paths in a file are
relative to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    CsvOption,
    DtypeOption,
    FamiliesOption,
    LevelsOption,
    PlotOption,
    drafter_for,
    drafters_for,
)
from outrider_bench.harness.study import QuestionOptions
from outrider_client.core.config import ClientConfig
from outrider_drafters.checkpoints.source import source_beside
from outrider_netsim import EngineChoice
from outrider_proto.frames import CODECS, Codec
from outrider_proto.options.fields import Flag
from outrider_proto.options.values import Table, build, load_table, read_toml

if TYPE_CHECKING:
    from outrider_bench.network.plan import NetworkPlan

MODE_OPTIONS = "wait_for_features, opening, in_flight, outcomes, tree, breadth, levels, budget"
TABLE_3_PROFILES = ("none", "paper-5g", "paper-4g")
PAPERS_DRAFTERS = ("moa_tli1", "moa", "eagle2", "independent")
DEFAULT_PROMPTS = 24  # of the corpus
_PATHS = ("target", "pace", "drafters", "questions")  # each but the last also takes names


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The tree of all modes; None: the drafter's own."""

    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(QuestionOptions):
    """Measure drafting across an emulated link, with a real server and client, beside the controls.

    The controls are stream and server-draft.
    """

    shown = "target questions profile pace drafter mode prompts runs json csv plot"
    families: FamiliesOption = ()
    profiles: Annotated[
        tuple[str, ...],
        Flag("Link profile from `outrider-netsim list`, or none; repeatable; default: paper-5g.", name="profile"),
    ] = ()
    pace: Annotated[
        str | None,
        Flag("Emulate the compute times of this hardware on both sides: a name (paper) or a TOML file."),
    ] = None
    drafters: Annotated[
        tuple[str, ...],
        Flag(
            "Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: the best that ships for the "
            "target, or else lookup.",
            name="drafter",
        ),
    ] = ()
    modes: Annotated[
        tuple[str, ...],
        Flag(
            f"Mode to measure beside the controls; repeatable; default: the client's. Options: {MODE_OPTIONS}.",
            name="mode",
            metavar="MODE[,OPTION=VALUE...]",
        ),
    ] = ()
    prompts: Annotated[
        int | None,
        Flag(
            "Questions, the families in turn; default: 24 held-out ones, 4 of each family, or all of --questions. "
            "A run of three modes over 24 takes about a minute, two with --pace paper."
        ),
    ] = None
    max_new_tokens: Annotated[int, Flag("New tokens per answer.")] = 128
    dtype: DtypeOption = "float32"
    prompt_tokens: Annotated[
        int,
        Flag("Lengthen prompts with earlier questions and answers to at least this many tokens."),
    ] = 0
    cores_apart: Annotated[
        bool,
        Flag("Pin the server to one core, client and link to another, each with one thread, as if on two machines."),
    ] = False
    runs: Annotated[int, Flag("Repetitions, each over a link with another seed; results are medians over them.")] = 1
    engine: Annotated[EngineChoice, Flag("What emulates the link; auto takes the best that this machine allows.")] = (
        "auto"
    )
    tree: TreeOptions = TreeOptions()  # frozen
    wait_for_features: Annotated[
        bool | None, Flag("Draft only with the newest features; default: as the drafter needs it.")
    ] = None
    in_flight: Annotated[int | None, Flag("Drafts in flight at once in mode pipelined.")] = None
    outcomes: Annotated[int | None, Flag("Outcomes to draft ahead for; default: as many as pay off.")] = None
    codecs: Annotated[
        tuple[Codec, ...],
        Flag("Feature codec; default: int8. Repeatable with table7, default there: all.", name="codec"),
    ] = ()
    seeds: Annotated[
        tuple[int, ...],
        Flag(
            "Random seed of the link in the first run (the next one has the next) and of the order of the modes; "
            "repeatable, a case each; default: 1.",
            name="seed",
        ),
    ] = ()
    table3: Annotated[
        bool,
        Flag(
            "The paper's Table 3: its drafters (of another target all that ship, or else lookup) on one device, over "
            "5G and over 4G."
        ),
    ] = False
    table7: Annotated[bool, Flag("Only the paper's Table 7: bytes of messages, by drafter and codec.")] = False
    csv: CsvOption = None
    plot: PlotOption = None

    @cached_property
    def plan(self) -> NetworkPlan:
        """Raises UsageError."""
        from outrider_bench.network.plan import NetworkPlan
        from outrider_bench.network.variants import CONTROLS

        return NetworkPlan(
            target=self.directory,
            profiles=self.profiles or (TABLE_3_PROFILES if self.table3 else ("paper-5g",)),
            drafters=self._drafters,
            variants=[mode for mode in dict.fromkeys(self.modes or [ClientConfig().mode]) if mode not in CONTROLS],
            common=self._common,
            pace=self.pace,
            codec=self.codecs[0] if self.codecs else CODECS[0],
            engine=self.engine,
            source=self.source,
            prompts=self.or_all(self.prompts, DEFAULT_PROMPTS),
            max_new_tokens=self.max_new_tokens,
            dtype=self.dtype,
            prompt_tokens=self.prompt_tokens,
            cores_apart=self.cores_apart,
            runs=self.runs,
            seeds=self.seeds or (1,),
        )

    @property
    def _drafters(self) -> Sequence[str]:
        if self.drafters or not (self.table3 or self.table7):
            return self.drafters or (drafter_for(self.directory, None),)
        return PAPERS_DRAFTERS if self.target is None else drafters_for(self.directory)

    @property
    def _common(self) -> Mapping[str, Any]:  # Any: each option has its own type
        own = {name: getattr(self, name) for name in ("wait_for_features", "in_flight", "outcomes")}
        return asdict(self.tree) | own

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        return {**self.plan.settings, "table7": list(self.codecs or CODECS) if self.table7 else None}


def load_network(file: Path | None, given: Table) -> NetworkOptions:
    """Read an experiment's file, which the options given override. Raises UsageError."""
    if file is None:
        return build(NetworkOptions, given)
    return load_table(NetworkOptions, file, _beside(read_toml(file), file.absolute().parent), given)


def _beside(table: Table, folder: Path) -> Table:
    """Return the values with those that name something beside the file made absolute."""
    found = dict(table)
    for key in _PATHS:
        match found.get(key):
            case str(text):
                found[key] = source_beside(text, folder)
            case list(texts):
                found[key] = [source_beside(text, folder) if isinstance(text, str) else text for text in texts]
            case _:
                pass
    return found
