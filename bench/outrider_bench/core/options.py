"""Options that several commands have, and what is made of their values. All readers raise UsageError."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import DRAFTERS, drafter_dir, target_dir
from outrider_models.corpus import FAMILIES, Family
from outrider_proto.errors import UsageError
from outrider_proto.frames import CODECS, Codec

TargetOption = Annotated[str | None, typer.Option(help="Directory or hub name of the target; default: the embedded.")]
PerFamilyOption = Annotated[int, typer.Option(min=1, help="Held-out prompts of each family.")]
FamiliesOption = Annotated[str, typer.Option(help="Of prompts, separated by commas.")]
NewTokensOption = Annotated[int, typer.Option(min=2, help="New tokens an answer.")]
OfTreeOption = Annotated[int | None, typer.Option(help="Of the trees, on both sides; default: the drafter's own.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw the results here (PNG).")]
ALL_FAMILIES = ",".join(FAMILIES)


def target_of(name: str | None) -> Path:
    """Its directory."""
    return target_dir() if name is None else resolve_dir(name)


def drafters_of(names: Sequence[str]) -> dict[str, Path]:
    """Directories by name."""
    return {name: drafter_dir(name) if name in DRAFTERS else resolve_dir(name) for name in names}


def families_of(text: str) -> list[Family]:
    """In the corpus's order."""
    asked = text.split(",")
    for name in asked:
        if name not in FAMILIES:
            raise UsageError(f"families={name!r}: choose from {', '.join(FAMILIES)}")
    return [family for family in FAMILIES if family in asked]


def codec_of(name: str) -> Codec:
    if name not in CODECS:
        raise UsageError(f"codec={name!r}: choose from {', '.join(CODECS)}")
    return name
