"""Options that several commands share, and readers of their values, which raise UsageError."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from outrider_models.core.embedded import drafter_source, shipped_drafters, target_dir, target_source
from outrider_proto.errors import UsageError, Violation
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_bench.core.prompts import QuestionSource
    from outrider_proto.frames import Sampling

OUTPUT = "Output"  # a panel of --help
TargetOption = Annotated[
    str | None,
    Flag("Target: directory, GGUF file, hub name, or name got with outrider-models; default: the embedded one."),
]
FamiliesOption = Annotated[
    tuple[str, ...],
    Flag("Prompt families, or with questions of a file categories, separated by commas; default: all."),
]
QuestionsOption = Annotated[
    Path | None,
    Flag(
        "Ask the questions of this file of JSON lines: Spec-Bench's form, chats or prompts, turn by turn. "
        "Default: held-out prompts of the embedded corpus, for the embedded target only."
    ),
]
NewTokensOption = Annotated[int, Field(ge=2), Flag("New tokens per answer.")]
LimitOption = Annotated[int, Field(ge=1), Flag("New tokens per answer.")]
DrafterOption = Annotated[
    str | None,
    Flag(
        "Name of one that ships, DIR[,option=value...] or lookup; default: the best that ships for the target, "
        "or else lookup."
    ),
]
DraftersOption = Annotated[
    tuple[str, ...],
    Flag(
        "Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: all that ship for the target, "
        "or else lookup."
    ),
]
BreadthOption = Annotated[int | None, Flag("Nodes expanded per level of a draft tree; default: the drafter's own.")]
LevelsOption = Annotated[int | None, Flag("Levels of a draft tree; default: the drafter's own.")]
BudgetOption = Annotated[int | None, Flag("Nodes of a draft tree; default: the drafter's own.")]
OrderSeedOption = Annotated[int, Flag("Random seed of the order in which a prompt is answered.")]
JsonOption = Annotated[Path | None, Flag("Write the report to this file; - for standard output.", panel=OUTPUT)]
DtypeOption = Annotated[str, Flag("Type of the target's weights: float32, bfloat16, float16 or int8.")]
DeviceOption = Annotated[str, Flag("Device of the target: cpu, cuda, cuda:1, ...")]
ThreadsOption = Annotated[int | None, Field(ge=1), Flag("CPU threads; default: as the server, 1 for a small target.")]
CsvOption = Annotated[Path | None, Flag("Write a row per answer to this CSV file.", panel=OUTPUT)]
PlotOption = Annotated[Path | None, Flag("Draw the results to this PNG file.", panel=OUTPUT)]


def per_family_option(default: str) -> Flag:
    """Declare the number of questions per family."""
    return Flag(f"Questions per family; default: {default}, of questions in a file all of a category.")


def drafters_option(default: str) -> Flag:
    """Declare the drafters of a study that has some of its own by default."""
    return Flag(f"Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: {default}.")


def target_of(name: str | None) -> Path:
    """Return the directory of the named target, or of the embedded one."""
    from outrider_drafters.checkpoints.target_weights import resolve_dir

    return resolve_dir(target_source(name))


def drafters_for(
    target: Path, named: Sequence[str] | None = None, embedded: Sequence[str] | None = None
) -> Sequence[str]:
    """Return the drafters to measure: those named, or else all that ship for the target, or else lookup.

    `embedded`: of the embedded target these only.
    """
    return named or (embedded if target == target_dir() else None) or shipped_drafters(target) or ("lookup",)


def drafter_for(target: Path, named: str | None) -> str:
    """Return the one drafter to measure: the one named, or else the first of `drafters_for`."""
    return named or drafters_for(target)[0]


def sources_of(names: Sequence[str]) -> dict[str, str]:
    """Return drafters' sources by name: embedded ones, or DIR[,option=value...]. Raises UsageError for no drafter."""
    from outrider_drafters.checkpoints.source import DrafterSource
    from outrider_drafters.load import open_drafter

    sources = {name: drafter_source(name) for name in names}
    for source in sources.values():
        open_drafter(DrafterSource.parse(source))
    return sources


def split(texts: Sequence[str]) -> list[str]:
    """Return the parts of texts that are separated by commas."""
    return [part for text in texts for part in text.split(",")]


def source_of(target: Path, questions: Path | None, families: Sequence[str]) -> QuestionSource:
    """Return what to ask a target."""
    from outrider_bench.core.prompts import QuestionSource

    return QuestionSource.of(target, questions, split(families) or None)


def sampling_of(**fields: Any) -> Sampling:  # Any: each field has its own type, which Sampling checks
    """Return the choice of tokens with these fields. Raises UsageError."""
    from outrider_proto.frames import Sampling

    try:
        return Sampling(**fields)
    except Violation as error:
        raise UsageError(error.message) from None
