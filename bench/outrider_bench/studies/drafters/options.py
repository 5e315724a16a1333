"""Options of the studies of drafters; the commands are made of them before any study is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    LimitOption,
    OrderSeedOption,
    PlotOption,
    QuestionsOption,
)
from outrider_bench.harness.study import QuestionOptions, StudyOptions
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.frames import Sampling

_TREE = TreeShape()
_SAMPLING = Sampling()
ChoicesOption = Annotated[
    str | None, typer.Option(help="Fixed trees for all drafters: the name of a shipped set, or a file.")
]


@dataclass(frozen=True, kw_only=True)
class TraceOptions(StudyOptions):
    """Trace answers in process, cycle by cycle; without limits or choices, with the drafter's own trees."""

    target: Annotated[
        str, typer.Option(help="Target: directory, GGUF file, hub name, or name got with `outrider-models get`.")
    ]
    drafter: Annotated[
        str, typer.Option(help="Directory or hub name of the drafter, or lookup; options follow as ,KEY=VALUE.")
    ]
    prompt_ids: Annotated[
        str | None, typer.Option(help="Token ids of the prompt, separated by commas; or give --questions.")
    ] = None
    questions: QuestionsOption = None
    families: FamiliesOption = None
    max_new_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 64
    breadth: Annotated[
        int | None, typer.Option(help=f"Nodes expanded per level, and children of each; default: {_TREE.breadth}.")
    ] = None
    levels: Annotated[int | None, typer.Option(help=f"Levels of a draft tree; default: {_TREE.levels}.")] = None
    budget: Annotated[
        int | None, typer.Option(help=f"Nodes of a draft tree without its root; default: {_TREE.budget}.")
    ] = None
    min_probability: Annotated[
        float | None, typer.Option(help="Draft only paths of at least this probability; default: 0.")
    ] = None
    choices: Annotated[
        str | None,
        typer.Option(help="Fixed tree: the name of a shipped set, or a JSON list of paths of child ranks."),
    ] = None
    tli: Annotated[int | None, typer.Option(help="Target layers that a MoA drafter runs on the client.")] = None
    acceptance: Annotated[str, typer.Option(help="Acceptance rule: greedy, sampling, or typical, which is lossy.")] = (
        "greedy"
    )
    temperature: Annotated[float, typer.Option(help="Temperature for sampling and typical.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Top-k for sampling and typical; 0 turns it off.")] = 0
    top_p: Annotated[float, typer.Option(help="Top-p for sampling and typical; 1 turns it off.")] = 1.0
    seed: Annotated[int, typer.Option(help="Random seed for sampling.")] = 0
    epsilon: Annotated[float, typer.Option(help="For typical: a token of this probability is always accepted.")] = (
        _SAMPLING.epsilon
    )
    alpha: Annotated[float, typer.Option(help="For typical: accept from this share of exp(-entropy) on.")] = (
        _SAMPLING.alpha
    )
    baseline: Annotated[bool, typer.Option("--baseline", help="Also run the target alone, and compare.")] = False
    json: JsonOption = Path("-")


@dataclass(frozen=True, kw_only=True)
class ComparedOptions(QuestionOptions):
    """Options of a study whose ways take turns at every prompt."""

    repetitions: Annotated[int, typer.Option(min=1, help="Times that each prompt is asked.")] = 3
    seed: OrderSeedOption = 1
    max_new_tokens: LimitOption = 128


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(ComparedOptions):
    """Compare drafters with the plain loop and transformers' own methods: acceptance, cost and speed."""

    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, DIR[,option=value...], lookup or suffix; repeatable; default: all that ship.",
        ),
    ] = None
    assistant: Annotated[
        list[Path] | None,
        typer.Option("--assistant", help="Small model for transformers' assisted generation; repeatable."),
    ] = None
    before: Annotated[
        Path | None,
        typer.Option(
            help="Questions asked before, as --questions: every drafter also drafts from a history of their answers."
        ),
    ] = None
    per_family: Annotated[
        int | None,
        typer.Option(min=1, help="Questions per family; default: 10, of --questions all of a category."),
    ] = None
    temperature: Annotated[
        float,
        typer.Option(help="Temperature of all answers, without transformers' own methods; default: 0, greedy."),
    ] = 0.0
    seed: Annotated[
        int, typer.Option(help="Random seed of the order in which a prompt is answered, and of sampled tokens.")
    ] = 1
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    choices: ChoicesOption = None
    plot: PlotOption = None
