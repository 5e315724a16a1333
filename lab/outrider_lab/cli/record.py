"""The command `outrider-lab record`: tapes of a drafter's drafts, which `virtual` and `sweep` replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from outrider_bench.core.progress import progress_line
from outrider_bench.core.tables import show_line
from outrider_bench.harness.options import DrafterOption, drafter_for
from outrider_bench.harness.study import QuestionOptions
from outrider_proto.errors import UsageError
from outrider_proto.options.command import with_options
from outrider_proto.options.fields import Flag


@dataclass(frozen=True, kw_only=True)
class RecordOptions(QuestionOptions):
    """What to tape."""

    shown = "target drafter tape"
    json: None = None  # the tape is all that it writes
    tape: Annotated[Path, Flag("Write the tape to this file: .json, or .json.gz.")]
    drafter: DrafterOption = None
    prompts: Annotated[
        int | None,
        Field(ge=1),
        Flag("Questions, as `outrider-bench network` takes them; default: 24, or all of a file."),
    ] = None
    max_new_tokens: Annotated[
        int, Field(ge=2), Flag("New tokens per answer that a replay may ask for; 16 more are taped.")
    ] = 128
    breadth: Annotated[int, Flag("Breadth of the widest trees to be replayed.")] = 4
    levels: Annotated[int, Flag("Levels of the deepest trees to be replayed.")] = 8
    budget: Annotated[int, Flag("Nodes of the largest trees to be replayed.")] = 32
    keep: Annotated[int, Field(ge=2), Flag("Most likely next tokens taped per node.")] = 24

    def __post_init__(self) -> None:
        if self.keep <= self.breadth:
            raise UsageError(
                f"keep={self.keep}: need more than the breadth, {self.breadth}, so that a bonus can be predicted"
            )


@with_options(RecordOptions, shown=RecordOptions.is_shown)
def record_command(options: RecordOptions) -> None:
    """Tape what the drafter would draft at every token of the target's answers, in process."""
    from outrider_bench.network.options import DEFAULT_PROMPTS
    from outrider_bench.network.plan import NetworkPlan
    from outrider_drafters.contracts.tree_shape import TreeShape
    from outrider_lab.virtual.record import record_plan

    shape = TreeShape(options.breadth, options.levels, options.budget)
    named = drafter_for(options.directory, options.drafter)
    plan = NetworkPlan(
        target=options.directory,
        profiles=(),
        drafters=(named,),
        variants=(),
        common={},
        pace=None,
        codec="float32",
        engine="auto",
        source=options.source,
        prompts=options.or_all(options.prompts, DEFAULT_PROMPTS),
        max_new_tokens=options.max_new_tokens,
        runs=1,
        seeds=(1,),
    )
    with progress_line() as step:
        made = asyncio.run(record_plan(plan, named, shape, options.keep, step))
    made.save(options.tape)
    show_line(f"{options.tape}: {len(made.recordings)} answers of {named}, {options.tape.stat().st_size:,} bytes")
