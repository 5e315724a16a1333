"""Options of all studies, of which the commands are made before any of them is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider_bench.harness.options import (
    BreadthOption,
    BudgetOption,
    DeviceOption,
    DtypeOption,
    FamiliesOption,
    JsonOption,
    LevelsOption,
    LimitOption,
    NewTokensOption,
    OrderSeedOption,
    PlotOption,
    QuestionsOption,
    TargetDirOption,
    ThreadsOption,
    drafter_for,
    drafters_of,
)
from outrider_bench.harness.study import DraftersOptions, QuestionOptions, StudyOptions, TargetOptions
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_models.core.embedded import PAIR, target_dir
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling

_TREE = TreeShape()
_SAMPLING = Sampling()
Transport = Literal["tcp", "grpc"]
PairOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        help=f"Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: {', '.join(PAIR)} of the "
        "embedded target, of others all that ship, or else lookup.",
    ),
]
PromptsOption = Annotated[int, typer.Option("--prompts", min=1, help="Held-out prompts, spread over the families.")]
PlainOption = Annotated[
    bool, typer.Option("--plain", help="Run transformers' own forward pass where the fused one would run.")
]
ChoicesOption = Annotated[
    str | None, typer.Option(help="Fixed trees for all drafters: the name of a shipped set, or a file.")
]
CODEC_DRAFTERS = ("moa", "eagle2", "eagle3")
STALENESS_DRAFTERS = (*CODEC_DRAFTERS, "independent")
TYPICAL_DRAFTERS = ("medusa", "hydra")
EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.25)  # of the Hydra paper, 7.2
_HELP = (
    "Name of one that ships, or DIR[,option=value...]; repeatable; default: {} of the embedded target, or all that "
    "ship for another."
)


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
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    choices: ChoicesOption = None
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class TypicalOptions(DraftersOptions):
    """Measure typical acceptance by epsilon: tokens a verdict, and quality, beside exact sampling and greedy answers.

    Alpha is the square root of epsilon, as in the Hydra paper.
    """

    of_embedded = TYPICAL_DRAFTERS
    drafter: Annotated[list[str] | None, typer.Option("--drafter", help=_HELP.format(", ".join(TYPICAL_DRAFTERS)))] = (
        None
    )
    epsilon: Annotated[
        list[float] | None,
        typer.Option(
            help=f"A token of this probability is accepted; repeatable; default: {', '.join(map(str, EPSILONS))}."
        ),
    ] = None
    temperature: Annotated[float, typer.Option(help="Temperature for typical acceptance and exact sampling.")] = 0.7
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Questions per family; default: 10, of --questions all of a category.")
    ] = None
    seeds: Annotated[int, typer.Option(min=1, help="Random seeds for exact sampling, each asked everything.")] = 2
    max_new_tokens: NewTokensOption = 192
    breadth: BreadthOption = None
    levels: LevelsOption = None
    budget: BudgetOption = None
    choices: ChoicesOption = None
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class DepthSweepOptions(ComparedOptions):
    """Measure how acceptance and speed of drafters depend on the depth of their chains, or trees.

    1/n is what a chain of n tokens reaches of which only the first one is ever accepted.
    """

    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Name of one that ships, DIR[,option=value...] or lookup; repeatable; default: the best that ships "
            "for the target, or else lookup.",
        ),
    ] = None
    levels: Annotated[int, typer.Option(min=1, max=32, help="Draft 1 to this many levels.")] = 8
    breadth: Annotated[
        int | None,
        typer.Option(min=1, help=f"Nodes expanded per level; default: 1, a chain, or with --budget {_TREE.breadth}."),
    ] = None
    budget: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Nodes of a draft tree; default: as many as levels, a chain, or with --breadth {_TREE.budget}."
        ),
    ] = None
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Questions per family; default: 5, of --questions all of a category.")
    ] = None
    plot: PlotOption = None

    @property
    def names(self) -> Sequence[str]:
        """Names of the drafters."""
        return self.drafter or [drafter_for(self.directory, None)]

    @property
    def are_chains(self) -> bool:
        return self.breadth is None and self.budget is None

    def shape(self, levels: int) -> TreeShape:
        """Return that of so many levels. Raises UsageError."""
        if self.are_chains:
            return TreeShape.chain(levels)
        return TreeShape(breadth=self.breadth or _TREE.breadth, levels=levels, budget=self.budget or _TREE.budget)


@dataclass(frozen=True, kw_only=True)
class RoutingOptions(ComparedOptions):
    """Measure two drafters, each alone and routed as heads: acceptance, speed, and what the second head costs."""

    heads: Annotated[
        tuple[str, str],
        typer.Option(help="Two drafters for one target; default: the embedded heads for math and for chat."),
    ] = ("eagle2_math", "eagle2_chat")
    gate: Annotated[
        float, typer.Option(help="Probability of the first head's draft from which the second head is skipped.")
    ] = 0.8
    per_family: Annotated[
        int | None, typer.Option(min=1, help="Questions per family; default: 10, of --questions all of a category.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class EdgeWeightsOptions(TargetOptions):
    """Measure bytes, draft time and mean acceptance length of edge bundles, by type of weights."""

    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", help=f"Embedded name or directory; repeatable; default: {', '.join(PAIR)}."),
    ] = None
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="float32, bfloat16, int8 or int4; repeatable; default: all.")
    ] = None
    per_family: Annotated[int, typer.Option(min=1, help="Held-out prompts per family.")] = 20
    max_new_tokens: NewTokensOption = 192
    parts: Annotated[
        bool,
        typer.Option(
            "--parts", help="Time drafts by their parts in place of answers: attention, MLP, head, choice, the rest."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class _PairOptions(DraftersOptions):
    of_embedded = PAIR
    drafter: PairOption = None


@dataclass(frozen=True, kw_only=True)
class EvalOptions(_PairOptions):
    """Score the target, measure the drafters' acceptance, and score code written after the link has died.

    With --questions only acceptance: nobody says there which answer is right.
    """

    per_family: Annotated[int, typer.Option(min=1, help="Questions per family of the corpus, code excepted.")] = 100
    code: Annotated[int, typer.Option(min=1, help="Questions of the corpus' code family.")] = 164
    tau_per_family: Annotated[
        int | None,
        typer.Option(
            min=1, help="Questions per family for the mean acceptance lengths; default: 30, or all of --questions."
        ),
    ] = None
    max_new_tokens: LimitOption = 192
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class ExactOptions(_PairOptions):
    """Compare answers in process and over gRPC, token for token, with transformers' generate.

    In bfloat16 and float16 with the plain loop, and an answer may depart from it where two tokens are a near-tie.
    """

    prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Questions, the families in turn; default: 200, or all of --questions."),
    ] = None
    max_new_tokens: LimitOption = 96
    dtype: DtypeOption = "float32"
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Serve with --batch-invariant: then no answer may differ.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class OfflineOptions(DraftersOptions):
    """Measure what drafters write when the link dies: how long it stays readable, and what the target keeps of it."""

    prompts: Annotated[
        int | None, typer.Option(min=1, help="Questions, the families in turn; default: 60, or all of --questions.")
    ] = None
    cut_at: Annotated[int, typer.Option(min=1, help="Tokens of the answer after which the link dies.")] = 32
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens that the drafter writes from there on.")] = 64


@dataclass(frozen=True, kw_only=True)
class _ServedOptions(StudyOptions):
    target: TargetDirOption = None
    drafter: PairOption = None

    @property
    def directory(self) -> Path:
        return self.target or target_dir()

    @cached_property
    def drafters(self) -> Mapping[str, Path]:
        """Directories, by name. Raises UsageError for one without a config.json."""
        found = drafters_of(self.drafter or list(PAIR))
        for name, directory in found.items():
            if not (directory / "config.json").is_file():
                raise UsageError(f"drafter {name}: no config.json in {directory}")
        return found


@dataclass(frozen=True, kw_only=True)
class OverheadOptions(_ServedOptions):
    """Measure where the time of a cycle goes over gRPC on loopback; medians in ms."""

    prompts: PromptsOption = 30


@dataclass(frozen=True, kw_only=True)
class RecoverOptions(_ServedOptions):
    """Kill and restart the server in mid-answer, and compare the verified answer with the undisturbed one."""

    prompts: PromptsOption = 20
    seed: Annotated[int, typer.Option(help="Random seed for the moments at which the server is killed.")] = 1


@dataclass(frozen=True, kw_only=True)
class VerifyCostOptions(TargetOptions):
    """Measure what a pass over 1, 2, 4, ... 64 new tokens costs the target, against a decode of one; medians."""

    context: Annotated[int, typer.Option(help="Tokens of context before the pass.")] = 256
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each size.")] = 30
    dtype: DtypeOption = "float32"
    device: DeviceOption = "cpu"
    threads: ThreadsOption = None
    plain: PlainOption = False
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class PassesOptions(TargetOptions):
    """Count what a pass over 1, 8 and 32 sessions asks of its host: operations, reads, Python's time. Needs no GPU.

    Without --target in the shape of Llama-3-8B; of a target, only the config is read.
    """

    context: Annotated[int, typer.Option(help="Tokens of context of every session.")] = 256
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each kind.")] = 10
    plain: PlainOption = False


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(DraftersOptions):
    """Options of both studies."""

    per_family: Annotated[
        int | None, typer.Option(min=1, help="Questions per family; default: 80, of --questions all of a category.")
    ] = None
    max_new_tokens: NewTokensOption = 96

    @property
    def count(self) -> int | None:
        """Questions per family; None: all."""
        return self.or_all(self.per_family, 80)


@dataclass(frozen=True, kw_only=True)
class CodecOptions(FeatureOptions):
    """Measure bytes, microseconds and acceptance of every feature codec, against the paper's."""

    of_embedded = CODEC_DRAFTERS
    drafter: Annotated[list[str] | None, typer.Option("--drafter", help=_HELP.format(", ".join(CODEC_DRAFTERS)))] = None


@dataclass(frozen=True, kw_only=True)
class StalenessOptions(FeatureOptions):
    """Measure acceptance with late features and with coarse ones, for chains and trees."""

    of_embedded = STALENESS_DRAFTERS
    drafter: Annotated[
        list[str] | None, typer.Option("--drafter", help=_HELP.format(", ".join(STALENESS_DRAFTERS)))
    ] = None
    plot: PlotOption = None


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(StudyOptions):
    """Measure what the gateway adds to a token of the embedded pair, and its time from start to first token."""

    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts, spread over the families.")] = 60
    mode: Annotated[
        list[str] | None, typer.Option(help="Mode of the client; repeatable; default: stream and proactive.")
    ] = None
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 64
    cold_starts: Annotated[int, typer.Option(min=0, help="Gateways to start for the time to a first token.")] = 5


@dataclass(frozen=True, kw_only=True)
class RayOptions(StudyOptions):
    """Start the service on Ray, kill a replica under load, and compare every answer with `generate`'s."""

    clients: Annotated[int, typer.Option(help="Clients that write at once.", min=1)] = 8
    replicas: Annotated[int, typer.Option(help="Replicas of the service.", min=1)] = 2
    kill: Annotated[bool, typer.Option(help="Kill a replica (SIGKILL) under load.")] = True
    update: Annotated[bool, typer.Option(help="Replace all replicas under load.")] = False
    max_new_tokens: LimitOption = 64


@dataclass(frozen=True, kw_only=True)
class TcpOptions(StudyOptions):
    """Measure how long replies of given sizes take over a link after given idle times; medians and quantiles."""

    profile: Annotated[str, typer.Option(help="Link profile of outrider-netsim: name or file.")] = "paper-4g"
    engine: Annotated[str, typer.Option(help="kernel, tun, or auto, which takes the best one that works.")] = "auto"
    transport: Annotated[
        Transport, typer.Option(help="tcp: bare sockets; grpc: with the product's channel options.")
    ] = "tcp"
    reply: Annotated[
        list[int] | None, typer.Option(min=1, help="Bytes of a reply; repeatable; default: 2000, 9000, 30000.")
    ] = None
    idle: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Idle seconds before an exchange; repeatable; default: 0, 0.3, 0.9, 3."),
    ] = None
    first: Annotated[
        int, typer.Option(min=0, help="Bytes of the reply written first, as a verdict is before its features.")
    ] = 60
    request: Annotated[int, typer.Option(min=12, help="Bytes of a request.")] = 250
    repeats: Annotated[int, typer.Option(min=1, help="Exchanges of each size after each idle time.")] = 20
    connections: Annotated[
        int, typer.Option(min=1, help="Connections that the exchanges of one size and idle time are spread over.")
    ] = 4
    sysctl: Annotated[
        list[str] | None, typer.Option(help="net.ipv4.NAME=VALUE on both ends of the link; repeatable.")
    ] = None
    channel_option: Annotated[list[str] | None, typer.Option(help="grpc.NAME=NUMBER on both sides; repeatable.")] = None
    nagle: Annotated[bool, typer.Option(help="Leave Nagle's algorithm on (tcp only).")] = False
    seed: Annotated[int | None, typer.Option(help="Random seed of the link; default: the profile's.")] = None
