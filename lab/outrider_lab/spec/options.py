"""Options of `outrider-lab spec`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from outrider_bench.harness.options import (
    DeviceOption,
    DraftersOption,
    DtypeOption,
    FamiliesOption,
    OrderSeedOption,
    ThreadsOption,
    drafters_for,
    source_of,
    sources_of,
)
from outrider_bench.harness.study import TargetOptions
from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from outrider_lab.spec.plan import SpecPlan

SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class SpecOptions(TargetOptions):
    """Answer questions as Spec-Bench does, with transformers' own ways, the plain loop and our drafters.

    Writes a file per way in Spec-Bench's form, and the figures that its speed.py computes from them.
    """

    shown = "target questions drafter out summarize"
    questions: Annotated[
        Path | None, Flag("File of JSON lines: Spec-Bench's question.jsonl, or chats, or prompts.")
    ] = None
    out: Annotated[Path | None, Flag("Directory of the answer files.")] = None
    summarize: Annotated[
        Path | None, Flag("Only show the figures of the answer files in this directory; JSON on standard output.")
    ] = None
    drafter: DraftersOption = ()
    tree: Annotated[
        tuple[str, ...],
        Flag("own (the drafter's default), auto (as large as pays), chain or tree; repeatable; default: own, auto."),
    ] = ()
    families: FamiliesOption = ()
    max_new_tokens: Annotated[int, Field(ge=1), Flag("New tokens per turn.")] = 1024
    runs: Annotated[int, Field(ge=1), Flag("Times that every question is asked.")] = 1
    seed: OrderSeedOption = 1
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None

    @cached_property
    def plan(self) -> SpecPlan:
        """Raises UsageError."""
        from outrider_lab.spec.plan import AUTO_TREE, OWN_TREE, SpecPlan, assistant_among, drafter_names

        if self.questions is None or self.out is None:
            raise UsageError("what to do: need --questions and --out, or --summarize")
        shipped = drafters_for(self.directory)
        chosen = drafter_names(list(sources_of(self.drafter or shipped).values()))
        return SpecPlan(
            target=self.directory,
            source=source_of(self.directory, self.questions, self.families),
            drafters=chosen,
            assistant=assistant_among([*chosen.values(), *sources_of(shipped).values()]),
            trees=list(dict.fromkeys(self.tree or [OWN_TREE, AUTO_TREE])),
            max_new_tokens=self.max_new_tokens,
            runs=self.runs,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
        )

    @property
    def report_file(self) -> Path | None:
        """The named file, or else that beside the answers; what is only summarized goes to standard output."""
        if self.json is not None:
            return self.json
        return Path("-") if self.summarize is not None or self.out is None else self.out / SUMMARY

    @property
    def settings(self) -> dict[str, Any]:  # Any: JSON
        return self.plan.settings if self.summarize is None else {"summarize": str(self.summarize)}
