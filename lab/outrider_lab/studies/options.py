"""Options of the lab's studies; the commands are made of them before any study is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    LevelsOption,
    LimitOption,
    NewTokensOption,
    PlotOption,
    drafter_for,
    drafters_option,
    per_family_option,
)
from outrider_bench.harness.study import DraftersOptions, TargetOptions
from outrider_bench.studies.options import ChoicesOption, ComparedOptions, PairOptions
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.options.fields import Flag

_TREE = TreeShape()
STALENESS_DRAFTERS = ("moa", "eagle2", "eagle3", "independent")
TYPICAL_DRAFTERS = ("medusa", "hydra")
EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.25)  # of the Hydra paper, 7.2


@dataclass(frozen=True, kw_only=True)
class EvalOptions(PairOptions):
    """Score the target, measure the drafters' acceptance, and score code written after the link has died.

    With questions of a file only acceptance: nobody says there which answer is right.
    """

    shown = "target drafter json"
    per_family: Annotated[int, Field(ge=1), Flag("Questions per family of the corpus, code excepted.")] = 100
    code: Annotated[int, Field(ge=1), Flag("Questions of the corpus' code family.")] = 164
    tau_per_family: Annotated[
        int | None,
        Field(ge=1),
        Flag("Questions per family for the mean acceptance lengths; default: 30, or all of a file."),
    ] = None
    max_new_tokens: LimitOption = 192


@dataclass(frozen=True, kw_only=True)
class StalenessOptions(DraftersOptions):
    """Measure acceptance with late features and with coarse ones, for chains and trees."""

    shown = "target drafter json"
    of_embedded = STALENESS_DRAFTERS
    drafter: Annotated[tuple[str, ...], drafters_option(", ".join(STALENESS_DRAFTERS))] = ()
    per_family: Annotated[int | None, Field(ge=1), per_family_option("80")] = None
    max_new_tokens: NewTokensOption = 96
    plot: PlotOption = None

    @property
    def count(self) -> int | None:
        """Questions per family; None: all."""
        return self.or_all(self.per_family, 80)


@dataclass(frozen=True, kw_only=True)
class TypicalOptions(DraftersOptions):
    """Measure typical acceptance by epsilon: tokens a verdict, and quality, beside exact sampling and greedy answers.

    Alpha is the square root of epsilon, as in the Hydra paper.
    """

    shown = "target drafter json"
    of_embedded = TYPICAL_DRAFTERS
    drafter: Annotated[tuple[str, ...], drafters_option(", ".join(TYPICAL_DRAFTERS))] = ()
    epsilon: Annotated[
        tuple[float, ...],
        Flag(f"A token of this probability is accepted; repeatable; default: {', '.join(map(str, EPSILONS))}."),
    ] = ()
    temperature: Annotated[float, Flag("Temperature for typical acceptance and exact sampling.")] = 0.7
    per_family: Annotated[int | None, Field(ge=1), per_family_option("10")] = None
    seeds: Annotated[int, Field(ge=1), Flag("Random seeds for exact sampling, each asked everything.")] = 2
    max_new_tokens: NewTokensOption = 192
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    choices: ChoicesOption = None
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class DepthSweepOptions(ComparedOptions):
    """Measure how acceptance and speed of drafters depend on the depth of their chains, or trees.

    1/n is what a chain of n tokens reaches of which only the first one is ever accepted.
    """

    shown = "target drafter levels json"
    drafter: Annotated[tuple[str, ...], drafters_option("the best that ships for the target, or else lookup")] = ()
    levels: Annotated[int, Field(ge=1, le=32), Flag("Draft 1 to this many levels.")] = 8
    breadth: Annotated[
        int | None,
        Field(ge=1),
        Flag(f"Nodes expanded per level; default: 1, a chain, or with budget {_TREE.breadth}."),
    ] = None
    budget: Annotated[
        int | None,
        Field(ge=1),
        Flag(f"Nodes of a draft tree; default: as many as levels, a chain, or with breadth {_TREE.budget}."),
    ] = None
    per_family: Annotated[int | None, Field(ge=1), per_family_option("5")] = None
    plot: PlotOption = None

    @property
    def names(self) -> Sequence[str]:
        """Names of the drafters."""
        return self.drafter or (drafter_for(self.directory, None),)

    @property
    def are_chains(self) -> bool:
        return self.breadth is None and self.budget is None

    def shape(self, levels: int) -> TreeShape:
        """Return that of so many levels. Raises UsageError."""
        if self.are_chains:
            return TreeShape.chain(levels)
        return TreeShape(breadth=self.breadth or _TREE.breadth, levels=levels, budget=self.budget or _TREE.budget)


@dataclass(frozen=True, kw_only=True)
class RoutingOptions(ComparedOptions):
    """Measure two drafters, each alone and routed as heads: acceptance, speed, and what the second head costs."""

    shown = "target heads json"
    heads: Annotated[
        tuple[str, str],
        Flag("One of two drafters for one target; give it twice; default: the embedded heads for math and for chat."),
    ] = ("eagle2_math", "eagle2_chat")
    gate: Annotated[
        float,
        Flag("Probability of the first head's draft from which the second head is skipped."),
    ] = 0.8
    per_family: Annotated[int | None, Field(ge=1), per_family_option("10")] = None


@dataclass(frozen=True, kw_only=True)
class EdgeWeightsOptions(PairOptions):
    """Measure bytes, draft time and mean acceptance length of edge bundles, by type of weights."""

    shown = "target drafter json"
    weights: Annotated[tuple[str, ...], Flag("float32, bfloat16, int8 or int4; repeatable; default: all.")] = ()
    per_family: Annotated[int | None, Field(ge=1), per_family_option("20")] = None
    max_new_tokens: LimitOption = 192


@dataclass(frozen=True, kw_only=True)
class PeersOptions(TargetOptions):
    """Measure the speed of 1, 4 and 16 answers at once beside transformers, vLLM and llama.cpp, on the same cores.

    Each peer gets an environment of its own in the user's cache, made at the first use. Ours is measured in process
    and through the service, without drafts and with the best drafter that ships for the target, or else lookup.
    """

    shown = "target json"
    json: Annotated[Path, Flag("File of the report; - for standard output.", positional=True)]
    target: Annotated[
        str | None,
        Flag(
            "Target: directory, GGUF file, or name got with outrider-models; default: the embedded one.",
            positional=True,
        ),
    ] = None
    dtype: Annotated[tuple[str, ...], Flag("Types of weights; peers take those that they have; repeatable.")] = (
        "float32",
        "bfloat16",
        "int8",
    )
    peer: Annotated[
        tuple[Literal["transformers", "vllm", "llama.cpp"], ...], Flag("A peer; repeatable; default: all three.")
    ] = ("transformers", "vllm", "llama.cpp")
    gguf: Annotated[Path | None, Flag("GGUF file for llama.cpp; default: the target, where it is one.")] = None
    runs: Annotated[int, Field(ge=1), Flag("Times that everything is measured.")] = 3
    max_new_tokens: LimitOption = 96
    plot: PlotOption = None
