"""The command `outrider-lab record`: tapes of a drafter's drafts, which `virtual` and `sweep` replay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.core.progress import progress_line
from outrider_bench.core.tables import show_line
from outrider_bench.harness.options import (
    DrafterOption,
    FamiliesOption,
    QuestionsOption,
    TargetOption,
    drafter_for,
    source_of,
    target_of,
)
from outrider_proto.errors import UsageError


def record_command(
    tape: Annotated[Path, typer.Option(help="Write the tape to this file: .json, or .json.gz.")],
    target: TargetOption = None,
    drafter: DrafterOption = None,
    questions: QuestionsOption = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            min=1, help="Questions, as `outrider-bench network` takes them; default: 24, or all of --questions."
        ),
    ] = None,
    families: FamiliesOption = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="New tokens per answer that a replay may ask for; 16 more are taped.")
    ] = 128,
    breadth: Annotated[int, typer.Option(help="Breadth of the widest trees to be replayed.")] = 4,
    levels: Annotated[int, typer.Option(help="Levels of the deepest trees to be replayed.")] = 8,
    budget: Annotated[int, typer.Option(help="Nodes of the largest trees to be replayed.")] = 32,
    keep: Annotated[int, typer.Option(min=2, help="Most likely next tokens taped per node.")] = 24,
) -> None:
    """Tape what the drafter would draft at every token of the target's answers, in process."""
    if keep <= breadth:
        raise UsageError(f"keep={keep}: need more than the breadth, {breadth}, so that a bonus can be predicted")

    from outrider_bench.network.experiment import DEFAULT_PROMPTS
    from outrider_bench.network.plan import NetworkPlan
    from outrider_drafters.contracts.tree_shape import TreeShape
    from outrider_lab.virtual.record import record_plan

    shape = TreeShape(breadth, levels, budget)
    directory = target_of(target)
    named = drafter_for(directory, drafter)
    plan = NetworkPlan(
        target=directory,
        profiles=(),
        drafters=(named,),
        variants=(),
        common={},
        pace=None,
        codec="float32",
        engine="auto",
        source=source_of(directory, questions, families),
        prompts=DEFAULT_PROMPTS if prompts is None and questions is None else prompts,
        max_new_tokens=max_new_tokens,
        runs=1,
        seeds=(1,),
    )
    with progress_line() as step:
        made = asyncio.run(record_plan(plan, named, shape, keep, step))
    made.save(tape)
    show_line(f"{tape}: {len(made.recordings)} answers of {named}, {tape.stat().st_size:,} bytes")
