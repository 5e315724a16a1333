"""Options of the studies but those of drafters; the commands are made of them before any study is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.models import OptionInfo

from outrider_bench.harness.options import (
    DeviceOption,
    DtypeOption,
    LimitOption,
    PlotOption,
    ThreadsOption,
)
from outrider_bench.harness.study import DraftersOptions, TargetOptions
from outrider_models.core.embedded import PAIR

PairOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        help=f"Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: {', '.join(PAIR)} of the "
        "embedded target, of others all that ship, or else lookup.",
    ),
]
PlainOption = Annotated[
    bool, typer.Option("--plain", help="Run transformers' own forward pass where the fused one would run.")
]


def drafter_option(of_embedded: Sequence[str]) -> OptionInfo:
    """Return the option of the drafters of a study, by default `of_embedded`, or all that ship for another target."""
    option: OptionInfo = typer.Option(
        "--drafter",
        help=f"Name of one that ships, or DIR[,option=value...]; repeatable; default: {', '.join(of_embedded)} of the "
        "embedded target, or all that ship for another.",
    )
    return option


@dataclass(frozen=True, kw_only=True)
class PairOptions(DraftersOptions):
    of_embedded = PAIR
    drafter: PairOption = None


@dataclass(frozen=True, kw_only=True)
class ExactOptions(PairOptions):
    """Compare answers in process and over gRPC, token for token, with transformers' generate.

    In bfloat16 and float16 with the plain loop, and an answer may depart from it where two tokens are a near-tie.
    """

    prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Questions, the families in turn; default: 200, or all of --questions."),
    ] = None
    max_new_tokens: LimitOption = 96
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Serve with batch-invariant: then no answer may differ.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class VerifyCostOptions(TargetOptions):
    """Measure what a pass over 1, 2, 4, ... 64 new tokens costs the target, against a decode of one; medians."""

    context: Annotated[int, typer.Option(help="Tokens of context before the pass.")] = 256
    sessions: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Sessions in a pass, each with as many new tokens; repeatable; default: 1."),
    ] = None
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each size.")] = 30
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None
    plain: PlainOption = False
    random: Annotated[
        bool,
        typer.Option("--random", help="Read only the target's config, and make random weights: times are the same."),
    ] = False
    control: Annotated[
        bool,
        typer.Option(
            "--control", help="Also measure transformers' own pass over the same tokens, with a static cache."
        ),
    ] = False
    plot: PlotOption = None
