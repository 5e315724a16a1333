"""Options that several commands share, and readers of their values, which raise UsageError."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_models.core.embedded import DRAFTERS, drafter_dir, target_dir
from outrider_models.corpus import FAMILIES, Family
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from outrider_proto.frames import Codec

TargetOption = Annotated[
    str | None, typer.Option(help="Directory or hub name of the target; default: the embedded target.")
]
TargetDirOption = Annotated[Path | None, typer.Option(help="Directory of the target; default: the embedded target.")]
PerFamilyOption = Annotated[int, typer.Option(min=1, help="Held-out prompts per family.")]
RepetitionsOption = Annotated[int, typer.Option(min=1, help="Times that each prompt is asked.")]
OrderSeedOption = Annotated[int, typer.Option("--seed", help="Random seed of the order in which a prompt is answered.")]
FamiliesOption = Annotated[str, typer.Option(help="Prompt families, separated by commas.")]
NewTokensOption = Annotated[int, typer.Option(min=2, help="New tokens per answer.")]
LimitOption = Annotated[int, typer.Option(min=1, help="New tokens per answer.")]
BreadthOption = Annotated[
    int | None, typer.Option(help="Nodes expanded per level of a draft tree; default: the drafter's own.")
]
LevelsOption = Annotated[int | None, typer.Option(help="Levels of a draft tree; default: the drafter's own.")]
BudgetOption = Annotated[int | None, typer.Option(help="Nodes of a draft tree; default: the drafter's own.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write the report to this file; - for standard output.")
]
PlotOption = Annotated[Path | None, typer.Option(help="Draw the results to this PNG file.")]
ALL_FAMILIES = ",".join(FAMILIES)
DEFAULT_CODEC = "int8"  # CODECS[0], whose module imports numpy


def target_of(name: str | None) -> Path:
    """Return the directory of the named target, or of the embedded one."""
    from outrider_drafters.checkpoints.target_weights import resolve_dir

    return target_dir() if name is None else resolve_dir(name)


def drafters_of(names: Sequence[str]) -> dict[str, Path]:
    """Return the drafters' directories by name."""
    from outrider_drafters.checkpoints.target_weights import resolve_dir

    return {name: drafter_dir(name) if name in DRAFTERS else resolve_dir(name) for name in names}


def families_of(text: str) -> list[Family]:
    """Return the families named in `text`, in the order of the corpus."""
    asked = text.split(",")
    for name in asked:
        if name not in FAMILIES:
            raise UsageError(f"families={name!r}: choose from {', '.join(FAMILIES)}")
    return [family for family in FAMILIES if family in asked]


def codec_of(name: str) -> Codec:
    from outrider_proto.frames import CODECS

    if name not in CODECS:
        raise UsageError(f"codec={name!r}: choose from {', '.join(CODECS)}")
    return name
