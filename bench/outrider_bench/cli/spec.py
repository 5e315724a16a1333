"""The command `outrider-bench spec`. It ends with 1 when an answer of ours in float32 is not the plain loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_bench.core.progress import progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show, show_line
from outrider_bench.harness.options import (
    DEFAULT_CODEC,
    DeviceOption,
    DraftersOption,
    DtypeOption,
    FamiliesOption,
    OrderSeedOption,
    TargetOption,
    ThreadsOption,
    codec_of,
    drafters_for,
    source_of,
    sources_of,
    target_of,
)
from outrider_netsim import EngineChoice
from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from outrider_bench.spec.plan import SpecPlan
    from outrider_bench.spec.summary import SpecSummary

PROFILE, MODE = "paper-5g", "auto"


def spec_command(
    questions: Annotated[
        Path | None,
        typer.Option(help="File of JSON lines: Spec-Bench's question.jsonl, or chats, or prompts."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the answer files.")] = None,
    summarize: Annotated[
        Path | None,
        typer.Option(help="Only show the figures of the answer files in this directory; JSON on standard output."),
    ] = None,
    target: TargetOption = None,
    drafter: DraftersOption = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            help="own (the drafter's default), auto (as large as pays), chain or tree; repeatable; default: own, auto.",
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            metavar="MODE[,OPTION=VALUE...]",
            help=f"Answer over an emulated link in this mode; repeatable; default with --profile: {MODE}.",
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", help=f"Profile of the link, or none; repeatable; default with --mode: {PROFILE}."),
    ] = None,
    families: FamiliesOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens per turn.")] = 1024,
    runs: Annotated[int, typer.Option(min=1, help="Times that every question is asked.")] = 1,
    seed: OrderSeedOption = 1,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    codec: Annotated[str, typer.Option(help="Feature codec over a link.")] = DEFAULT_CODEC,
    engine: Annotated[
        EngineChoice, typer.Option(help="What emulates the link; auto takes the best that this machine allows.")
    ] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Ask only what the directory lacks; all options must be the same.")
    ] = False,
) -> None:
    """Answer questions as Spec-Bench does, with transformers' own ways, the plain loop and our drafters.

    Writes a file per way in Spec-Bench's form, and the figures that its speed.py computes from them.
    """
    directory = target_of(target)
    if summarize is not None:
        from outrider_bench.spec.summary import summarize as summary_of

        summary = summary_of(summarize, _token_counter(directory))
        _show(summary)
        write_report(Path("-"), summary.as_dict())
        return
    if questions is None or out is None:
        raise UsageError("what to do: need --questions and --out, or --summarize")

    from outrider_bench.spec.plan import AUTO_TREE, OWN_TREE, SpecPlan, assistant_among, drafter_names

    shipped = drafters_for(directory)
    chosen = drafter_names(list(sources_of(drafter or shipped).values()))
    plan = SpecPlan(
        target=directory,
        source=source_of(directory, questions, families),
        drafters=chosen,
        assistant=assistant_among([*chosen.values(), *sources_of(shipped).values()]),
        modes=list(dict.fromkeys(mode or [MODE])) if mode or profile else [],
        profiles=list(dict.fromkeys(profile or [PROFILE])) if mode or profile else [],
        trees=list(dict.fromkeys(tree or [OWN_TREE, AUTO_TREE])),
        max_new_tokens=max_new_tokens,
        runs=runs,
        seed=seed,
        dtype=dtype,
        device=device,
        threads=threads,
        codec=codec_of(codec),
        engine=engine,
    )
    summary = _run(plan, out, resume=resume)
    _show(summary)
    if dtype == "float32" and any(summary.differing[way].answers for way in plan.clients):
        raise typer.Exit(1)


def _run(plan: SpecPlan, out: Path, *, resume: bool) -> SpecSummary:
    from outrider_bench.spec.journal import open_journal
    from outrider_bench.spec.run import answer_all, largest_gaps, load_asked
    from outrider_bench.spec.summary import SUMMARY, summarize

    asked = load_asked(plan)
    with open_journal(out, plan.target.name, plan.settings, resume=resume) as journal:
        if journal.taken:
            show_line(f"{out}: {len(journal.taken)} answers are there already")
        try:
            with progress_line() as step:
                asyncio.run(answer_all(plan, asked, journal, step))
        except BaseException:
            show_line(f"{out}: {len(journal.taken)} answers are kept: the same command with --resume goes on")
            raise
        journal.complete()
    gaps = largest_gaps(plan, asked, journal)
    summary = summarize(out, _token_counter(plan.target), list(journal.taken.values()), gaps)
    settings = {"settings": plan.settings, "left_out": list(asked.left_out), "questions": len(asked.questions)}
    write_report(out / SUMMARY, summary.as_dict() | settings)
    return summary


def _token_counter(target: Path) -> Callable[[str], int]:
    from outrider_client.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(target)
    return lambda text: len(tokenizer.encode(text))


def _show(summary: SpecSummary) -> None:
    from outrider_bench.spec.summary import accepted_table, new_tokens_table, speedup_table, tokens_table

    show(*(build(summary) for build in (speedup_table, new_tokens_table, tokens_table, accepted_table)))
    for way, differing in summary.differing.items():
        if differing.answers:
            gap = "" if differing.largest_gap is None else f", at logits at most {differing.largest_gap:.3g} apart"
            show_line(f"{way}: {differing} answers ({differing.share:.1%}) differ from those of the plain loop{gap}")
    if summary.differing and not any(one.answers for one in summary.differing.values()):
        show_line("all answers are those of the plain loop")
