"""What a pass asks of its host: operations dispatched, results read back, data sent, and the time of Python itself.

On a GPU a pass over many sessions is bound by its host, not by arithmetic. All that can be counted without one: the
passes run on a hollow target: a few layers with the heads and K/V of a real one, and next to no width besides.
"""

from __future__ import annotations

import statistics
import time
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.harness.study import WholeStudy
from outrider_bench.studies.options import PassesOptions
from outrider_bench.studies.pair.pass_counts import DispatchCounter, PassCounts, TransferCounter
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.eagle2.drafter import Eagle2Drafter
from outrider_drafters.families.eagle2.network import Eagle2, Eagle2Sizes
from outrider_drafters.trees.grow import TreeGrowth
from outrider_models.core.embedded import target_source
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.fused_decoder import fused_decoder
from outrider_server.engine.grouped_attention import DEVICE_LIMITS
from outrider_server.engine.hf_model import decoder_layers, explained
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.server_drafter import DraftContext
from outrider_server.engine.target import Target, public_name
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.size import KVLayout
from outrider_server.scheduling.request import Reply, Request

SESSIONS = (1, 8, 32)
LAYOUTS: tuple[KVLayout, ...] = ("contiguous", "paged")
_KINDS = 4  # of layers, at most, in any config that alternates
_LAYERS = 2 * _KINDS  # tables and masks are made in the first layers that need them, and count as outside
_WIDTH, _INTERMEDIATE, _VOCAB = 4, 16, 64  # _WIDTH: hidden size a head
_CHAIN = DraftTree.chain([5, 6, 7, 8])
_TREE = DraftTree(
    (5, 6, 7, 8, 5, 6, 5, 6, 7, 5, 6, 5, 6, 5, 6, 5), (-1, -1, -1, -1, 0, 0, 1, 1, 2, 4, 4, 6, 9, 9, 12, 14)
)
_SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=1)
_SHAPE = TreeShape(breadth=4, levels=4, budget=16)


@dataclass(frozen=True, slots=True)
class DraftKind:
    """The draft of every session. Where `is_kept`, one node that does not come first is what the target chooses.

    Without a tree, a random drafter grows it on the server. `logprobs` as in Draft.
    """

    tree: DraftTree | None
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: int | None = None
    is_kept: bool = False


DRAFTS: Mapping[str, DraftKind] = {
    "chain of 4": DraftKind(_CHAIN),
    "tree of 16": DraftKind(_TREE),
    "tree of 16, a node kept": DraftKind(_TREE, is_kept=True),
    "tree of 16, sampled": DraftKind(_TREE, _SAMPLED),
    "tree of 16, typical": DraftKind(_TREE, replace(_SAMPLED, acceptance="typical")),
    "tree of 16, logprobs": DraftKind(_TREE, _SAMPLED, logprobs=5),
    "server-draft": DraftKind(None),
}
_ROOT = 5
_DRAFT_WIDTH = 8
_WARM_UP = 2  # passes


@dataclass(frozen=True, slots=True)
class PassCost:
    """What one pass over `sessions` drafts asks, features and commits included, with K/V rows in the layout `kv`.

    `layer_kernels`: operations of one decoder layer that a GPU would run kernels for (views are not); `kernels`: those
    outside the layers. `reads`: times that the host waits for a result; `uploads`: tensors made from its data, of which
    `late_uploads` wait for the pass like a read. `draft_reads`: reads of the server's drafter before the pass.
    `host_ms`: CPU time of the pass, as a median, with layers that compute nothing. `begin_ms`: of beginning the
    sessions' requests, which a device's pass over other sessions hides.
    """

    kv: KVLayout
    draft: str
    sessions: int
    layer_kernels: float
    kernels: int
    reads: int
    uploads: int
    late_uploads: int
    draft_reads: int
    host_ms: float
    begin_ms: float


@dataclass(frozen=True, slots=True)
class PassReport:
    """Costs by kind of pass, and the target whose shape it was."""

    target: str
    layers: int
    context: int
    repeats: int
    pass_: Annotated[Literal["plain", "fused"], Field(alias="pass")]
    costs: abc.Sequence[PassCost]


class HollowTarget:
    """A random target with a few layers of a config, in the forward pass that a GPU would run.

    `num_layers`: of the real one. `plain`: in transformers' own pass, which other architectures always have.
    """

    def __init__(self, config: PretrainedConfig, name: str, *, plain: bool = False) -> None:
        self.num_layers: int = config.get_text_config().num_hidden_layers
        model = _hollow_model(config)
        fused = None if plain else fused_decoder(model, packed=False)
        self.target = replace(Target.of(model, name=name, fused=False), fused=fused)
        self._layers: abc.Sequence[Any] = [*decoder_layers(model)] if fused is None else fused.layers
        self._gives_tuples = False
        self._method = "forward" if fused is None else "run"
        self.drafter = _random_drafter(self.target)

    @property
    def num_built(self) -> int:
        """Number of its own layers."""
        return len(self._layers)

    @contextmanager
    def watched(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        """Call `begin` and `end` around every decoder layer."""

        def around(run: Callable[..., Any]) -> Callable[..., Any]:  # Any: as the layer's own
            def watched(*given: Any, **named: Any) -> Any:
                begin()
                output = run(*given, **named)
                end()
                self._gives_tuples = isinstance(output, tuple)
                return output

            return watched

        with self._layers_do(around):
            yield

    @contextmanager
    def without_layers(self) -> Iterator[None]:
        """Let every layer return what it is given, after a pass that was watched."""
        with self._layers_do(lambda _: partial(_pass_on, self._gives_tuples)):
            yield

    @contextmanager
    def _layers_do(self, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        for layer in self._layers:
            setattr(layer, self._method, change(getattr(layer, self._method)))
        try:
            yield
        finally:
            for layer in self._layers:
                delattr(layer, self._method)


def llama_8b(*, plain: bool = False) -> HollowTarget:
    """Return a hollow Llama-3-8B: 32 layers, 32 heads, 8 of them with K/V."""
    config = LlamaConfig(
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192
    )
    return HollowTarget(config, "the shape of Llama-3-8B", plain=plain)


def hollow_target(path: str, *, plain: bool = False) -> HollowTarget:
    """Return the hollow form of a checkpoint, of which only the config is read.

    Raises UsageError for an architecture that cannot be made so small.
    """
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        return HollowTarget(config, public_name(path), plain=plain)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"target {path}: {explained(error)}") from error


class PassesStudy(WholeStudy[PassesOptions, PassReport]):
    async def measure(self, step: Step) -> PassReport:
        options = self.options
        torch.set_num_threads(1)
        if options.target is None:
            hollow = llama_8b(plain=options.plain)
        else:
            hollow = hollow_target(str(target_source(options.target)), plain=options.plain)
        counter = ProgressCounter(step, "kinds of passes", len(LAYOUTS) * len(SESSIONS) * len(DRAFTS))
        return PassReport(
            target=hollow.target.name,
            layers=hollow.num_layers,
            context=options.context,
            repeats=options.repeats,
            pass_="plain" if hollow.target.fused is None else "fused",
            costs=pass_costs(hollow, options.context, options.repeats, counter),
        )

    @staticmethod
    def tables(report: PassReport) -> list[ResultTable]:
        return [pass_cost_table(report)]


def pass_costs(
    hollow: HollowTarget, context: int, repeats: int, step: Callable[[], None] = lambda: None
) -> list[PassCost]:
    """Measure all DRAFTS of all SESSIONS in all LAYOUTS, each session after `context` tokens of its own.

    Times are over `repeats` passes; `step` is called after every kind. Raises UsageError where the target's context has
    no room for them.
    """
    room = hollow.target.max_context - len(_TREE) - 2
    if not 1 <= context <= room:
        raise UsageError(f"context={context}: need 1 to {room}, so that {len(_TREE)} more tokens fit into it")
    costs = []
    for layout, count in product(LAYOUTS, SESSIONS):
        crowd = _Crowd(hollow, count, context, layout)
        for draft in DRAFTS:
            costs.append(_cost(hollow, crowd, draft, repeats))
            step()
    return costs


class _Crowd:
    """So many sessions on one engine, each with a text of its own."""

    def __init__(self, hollow: HollowTarget, count: int, context: int, layout: KVLayout) -> None:
        target, self.layout = hollow.target, layout
        # As on a device: whatever is chosen is chosen there, and groups are as large as there.
        self._engine, self._context = Engine(target, choices="batched", limits=DEVICE_LIMITS), context
        memory, tap = KVMemory(target.kv, layout=layout), LastHiddenTap(target.hidden_size)
        self.sequences = [Sequence(memory, tap, hollow.drafter, payer=str(number)) for number in range(count)]
        for number, sequence in enumerate(self.sequences):
            tokens = [(7919 * i + 13 * number) % target.vocab_size for i in range(context)]
            sequence.begin(_Request(), 0, tokens, len(_TREE) + 2)
            self._engine.commit(self._engine.verify([StepInput(sequence, tokens)])[0])
            self._engine.tap([sequence])

    def trees(self, kind: DraftKind) -> list[DraftTree]:
        """Return the drafts of all sessions, one level of all after the other where the server drafts."""
        if kind.is_kept:
            return [_keeping(_TREE, token) for token in self._chosen()]
        if kind.tree is not None:
            return [kind.tree] * len(self.sequences)
        growths = [
            sequence.drafter.begin(DraftContext(sequence.tokens, (_ROOT,), sequence.features), _SHAPE)
            for sequence in self.sequences
            if sequence.drafter is not None
        ]
        while any(TreeGrowth.step_together(growths)):
            pass
        return [growth.drafted().tree for growth in growths]

    def run(self, trees: abc.Sequence[DraftTree], kind: DraftKind) -> None:
        """Run one pass with a draft of every session, and keep its results."""
        results = self._engine.verify(
            [
                StepInput(sequence, (_ROOT,), tree, Sampler(kind.sampling), kind.logprobs)
                for sequence, tree in zip(self.sequences, trees, strict=True)
            ]
        )
        assert not any(self._engine.commit_all(results))
        self._engine.tap(self.sequences)

    def requests(self, trees: abc.Sequence[DraftTree]) -> list[Request]:
        """Return a request with such a draft for every session."""
        return [
            Request(sequence, Draft(1, len(sequence.tokens), (), _ROOT, tree), Sampler(Sampling()), _drop, 0.0)
            for sequence, tree in zip(self.sequences, trees, strict=True)
        ]

    def _chosen(self) -> list[int]:
        """Return the target's token after every session's root."""
        results = self._engine.verify(
            [StepInput(sequence, (_ROOT,), sampler=Sampler(Sampling())) for sequence in self.sequences]
        )
        return [result.accepted.bonus or 0 for result in results if result.accepted is not None]

    def go_back(self) -> None:
        """Leave every session where it began."""
        for sequence in self.sequences:
            sequence.truncate(self._context)


class _Request:
    """A request that is not over: its session is not evicted."""

    over = False


def _drop(_: Reply) -> None:
    """Post a reply to nobody."""


def _cost(hollow: HollowTarget, crowd: _Crowd, draft: str, repeats: int) -> PassCost:
    kind, trees = DRAFTS[draft], list[DraftTree]()
    drafting = _counted(hollow, lambda: trees.extend(crowd.trees(kind)))
    counts = _counted(hollow, lambda: crowd.run(trees, kind))
    crowd.go_back()
    with hollow.without_layers():
        trees, times, begin_times = crowd.trees(kind), list[float](), list[float]()
        for _ in range(_WARM_UP + repeats):
            requests, started = crowd.requests(trees), time.thread_time()
            for request in requests:
                request.begin()
            begun = time.thread_time()
            crowd.run(trees, kind)
            times.append(time.thread_time() - begun)
            begin_times.append(begun - started)
            crowd.go_back()
    in_layers = counts.layer_kernels.total()
    return PassCost(
        crowd.layout,
        draft,
        sessions=len(crowd.sequences),
        layer_kernels=round(in_layers / _KINDS, 2),
        kernels=counts.kernels.total() + counts.first_kernels.total() - in_layers,
        reads=counts.reads.total(),
        uploads=counts.uploads,
        late_uploads=counts.late_uploads,
        draft_reads=0 if kind.tree else drafting.reads.total(),
        host_ms=round(statistics.median(times[_WARM_UP:]) * 1e3, 3),
        begin_ms=round(statistics.median(begin_times[_WARM_UP:]) * 1e3, 3),
    )


def _counted(hollow: HollowTarget, run: Callable[[], None]) -> PassCounts:
    counts = PassCounts(_KINDS, hollow.num_built)

    def mark(in_layer: bool) -> None:
        counts.in_layer = in_layer
        counts.layers += in_layer

    with hollow.watched(partial(mark, True), partial(mark, False)), TransferCounter(counts), DispatchCounter(counts):
        run()
    return counts


def _pass_on(in_tuple: bool, hidden_states: Tensor, *_: object, **__: object) -> Tensor | tuple[Tensor]:
    """Do as a layer that computes nothing."""
    return (hidden_states,) if in_tuple else hidden_states


def _keeping(tree: DraftTree, token: int) -> DraftTree:
    """Return the tree with `token` at node 1, which is accepted then, but does not lie where its row is kept."""
    tokens = [token if node == 1 else other for node, other in enumerate(tree.tokens)]
    # Siblings differ: whoever had this token gets the one that node 1 had.
    return DraftTree(
        tuple(tree.tokens[1] if node in (0, 2, 3) and other == token else other for node, other in enumerate(tokens)),
        tree.parents,
    )


def _random_drafter(target: Target) -> Eagle2Drafter:
    width, vocab = target.hidden_size, target.vocab_size
    sizes = TargetSizes(width, 1, 1, 1, _DRAFT_WIDTH, vocab, 1e4, 1e-5, target.max_context, "")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        eagle = Eagle2(Eagle2Sizes(width, 1, 1, _DRAFT_WIDTH, _DRAFT_WIDTH)).requires_grad_(False)
        weights = TargetWeights(torch.randn(vocab, width), torch.randn(vocab, width), sizes, ())
    return Eagle2Drafter(eagle, weights)


def _hollow_model(config: PretrainedConfig) -> PreTrainedModel:
    small = config.get_text_config()
    heads = small.num_attention_heads
    sizes = {
        "head_dim": getattr(small, "head_dim", None) or small.hidden_size // heads,
        "hidden_size": _WIDTH * heads,
        "num_hidden_layers": _LAYERS,
        "layer_types": (getattr(small, "layer_types", None) or [])[:_LAYERS] or None,
        "intermediate_size": _INTERMEDIATE,
        "moe_intermediate_size": _INTERMEDIATE,
        "vocab_size": _VOCAB,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    for name, size in sizes.items():
        if hasattr(small, name):
            setattr(small, name, size)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(small, dtype=torch.float32)  # type: ignore[no-untyped-call] # transformers
        return model


def pass_cost_table(report: PassReport) -> ResultTable:
    rows = [
        [
            cost.kv,
            cost.draft,
            f"{cost.sessions}",
            f"{cost.layer_kernels:.1f}",
            f"{cost.kernels}",
            f"{round(cost.layer_kernels * report.layers) + cost.kernels}",
            *(f"{count}" for count in (cost.reads, cost.uploads, cost.late_uploads, cost.draft_reads)),
            f"{cost.host_ms:.1f}",
            f"{cost.begin_ms:.1f}",
        ]
        for cost in report.costs
    ]
    counted = ("a layer", "outside", "in all", "reads", "uploads", "late", "drafting")
    columns = ("K/V", "draft", "sessions", *counted, "host ms", "begin ms")
    title = f"a pass of {report.target}, {report.layers} layers, after {report.context} tokens"
    return table(
        title,
        columns,
        rows,
        caption="operations with a kernel; late: uploads that wait for the pass; drafting: reads before it; CPU time"
        " outside the layers, and of beginning as many requests",
    )
