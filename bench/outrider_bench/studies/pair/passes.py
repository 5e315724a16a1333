"""What a pass asks of its host: operations dispatched, results read back, data sent, and the time of Python itself.

On a GPU a pass over many sessions is bound by its host, not by arithmetic. All that can be counted without one: the
passes run on a hollow target: a few layers with the heads and K/V of a real one, and next to no width besides.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel

from outrider_bench.core.tables import ResultTable, table
from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.hf_model import decoder_layers, explained
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target, public_name
from outrider_server.kv.memory import KVMemory

SESSIONS = (1, 8, 32)
_LAYERS = 4  # as many kinds as there are in any config that alternates
_WIDTH, _INTERMEDIATE, _VOCAB = 4, 16, 512  # _WIDTH: hidden size a head
_CHAIN = DraftTree.chain([5, 6, 7, 8])
_TREE = DraftTree(
    (5, 6, 7, 8, 5, 6, 5, 6, 7, 5, 6, 5, 6, 5, 6, 5), (-1, -1, -1, -1, 0, 0, 1, 1, 2, 4, 4, 6, 9, 9, 12, 14)
)
_SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=1)
DRAFTS: Mapping[str, tuple[DraftTree, Sampling]] = {
    "chain of 4": (_CHAIN, Sampling()),
    "tree of 16": (_TREE, Sampling()),
    "tree of 16, sampled": (_TREE, _SAMPLED),
}
_WARM_UP = 2  # passes
_NO_KERNEL = frozenset(
    {"aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::_unsafe_view", "aten::detach_"}
)
_READS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::equal"})


@dataclass(frozen=True, slots=True)
class PassCost:
    """What one pass over `sessions` drafts asks, features and commits included.

    `layer_kernels`: operations of one decoder layer that a GPU would run kernels for (views are not); `kernels`: those
    outside the layers. `reads`: times that the host waits for a result; `uploads`: tensors made from its data.
    `host_ms`: CPU time outside the layers, as a median.
    """

    draft: str
    sessions: int
    layer_kernels: float
    kernels: int
    reads: int
    uploads: int
    host_ms: float


class HollowTarget:
    """A random target with a few layers of a config, in transformers' own forward pass.

    `num_layers`: of the real one.
    """

    def __init__(self, config: PretrainedConfig, name: str) -> None:
        self.num_layers: int = config.get_text_config().num_hidden_layers
        model = _hollow_model(config)
        self.target = Target.of(model, name=name, fused=False)
        self._layers = decoder_layers(model)

    def a_layer(self, count: int) -> float:
        """Return the share of one layer in a count over all."""
        return count / len(self._layers)

    @contextmanager
    def watched(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        """Call `begin` and `end` around every decoder layer."""
        hooks = []
        for layer in self._layers:
            hooks.append(layer.register_forward_pre_hook(lambda *_: begin()))
            hooks.append(layer.register_forward_hook(lambda *_: end()))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def llama_8b() -> HollowTarget:
    """Return a hollow Llama-3-8B: 32 layers, 32 heads, 8 of them with K/V."""
    config = LlamaConfig(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8)
    return HollowTarget(config, "the shape of Llama-3-8B")


def hollow_target(path: str) -> HollowTarget:
    """Return the hollow form of a checkpoint, of which only the config is read.

    Raises UsageError for an architecture that cannot be made so small.
    """
    try:
        return HollowTarget(AutoConfig.from_pretrained(path, trust_remote_code=False), public_name(path))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"target {path}: {explained(error)}") from error


def num_kinds() -> int:
    """Return how many kinds of passes there are to measure."""
    return len(SESSIONS) * len(DRAFTS)


def pass_costs(
    hollow: HollowTarget, context: int, repeats: int, step: Callable[[], None] = lambda: None
) -> list[PassCost]:
    """Measure all DRAFTS of all SESSIONS, each session after `context` tokens of its own; times over `repeats` passes.

    `step` is called after every kind. Raises UsageError where the target's context has no room for them.
    """
    room = hollow.target.max_context - len(_TREE) - 2
    if not 1 <= context <= room:
        raise UsageError(f"context={context}: need 1 to {room}, so that {len(_TREE)} more tokens fit into it")
    costs = []
    for count in SESSIONS:
        crowd = _Crowd(hollow.target, count, context)
        for draft in DRAFTS:
            costs.append(_cost(hollow, crowd, draft, repeats))
            step()
    return costs


class _Crowd:
    """So many sessions on one engine, each with a text of its own."""

    def __init__(self, target: Target, count: int, context: int) -> None:
        self._engine, self._context = Engine(target), context
        memory, tap = KVMemory(target.kv), LastHiddenTap(target.hidden_size)
        self.sequences = [Sequence(memory, tap, payer=str(number)) for number in range(count)]
        for number, sequence in enumerate(self.sequences):
            tokens = [(7919 * i + 13 * number) % target.vocab_size for i in range(context)]
            sequence.begin(_Request(), 0, tokens, len(_TREE) + 2)
            self._engine.commit(self._engine.verify([StepInput(sequence, tokens)])[0])
            self._engine.tap([sequence])

    def run(self, tree: DraftTree, sampling: Sampling) -> None:
        """Run one pass with a draft of every session, and keep its results."""
        for result in self._engine.verify(
            [StepInput(sequence, (5,), tree, Sampler(sampling)) for sequence in self.sequences]
        ):
            self._engine.commit(result)
        self._engine.tap(self.sequences)

    def go_back(self) -> None:
        """Leave every session where it began."""
        for sequence in self.sequences:
            sequence.truncate(self._context)


class _Request:
    """A request that is not over: its session is not evicted."""

    over = False


@dataclass(slots=True)
class _Counts:
    """What was counted in one pass."""

    in_layer: bool = False
    layer_kernels: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    read: set[int] = field(default_factory=set)  # storages that the host has: reading them again is free


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch
    """Counts operations that reach a device; composite ones by what they consist of."""

    def __init__(self, counts: _Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch
        self._counts = counts

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # In inference mode they come here whole.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if name in _READS:
            self._counts.reads[name] += 1
        elif name not in _NO_KERNEL and not _is_view(func):
            kernels = self._counts.layer_kernels if self._counts.in_layer else self._counts.kernels
            kernels[name] += 1
        return func(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    """Counts transfers. On a CPU they are calls that do nothing, and never reach the dispatcher."""

    def __init__(self, counts: _Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("tensor", "from_numpy", "as_tensor"):
            self._counts.uploads += 1
            if "device" not in (kwargs or {}):
                self._counts.read.add(_storage(result))
        elif name in ("cpu", "numpy", "tolist") and _storage(args[0]) not in self._counts.read:
            self._counts.reads[name] += 1
            self._counts.read.add(_storage(args[0]))
        return result


def _cost(hollow: HollowTarget, crowd: _Crowd, draft: str, repeats: int) -> PassCost:
    run = partial(crowd.run, *DRAFTS[draft])
    counts = _counted(hollow, run)
    crowd.go_back()
    times = []
    for _ in range(_WARM_UP + repeats):
        times.append(_timed_ms(hollow, run))
        crowd.go_back()
    return PassCost(
        draft,
        sessions=len(crowd.sequences),
        layer_kernels=round(hollow.a_layer(counts.layer_kernels.total()), 2),
        kernels=counts.kernels.total(),
        reads=counts.reads.total(),
        uploads=counts.uploads,
        host_ms=round(statistics.median(times[_WARM_UP:]), 3),
    )


def _counted(hollow: HollowTarget, run: Callable[[], None]) -> _Counts:
    counts = _Counts()

    def mark(in_layer: bool) -> None:
        counts.in_layer = in_layer

    with hollow.watched(partial(mark, True), partial(mark, False)), _Called(counts), _Dispatched(counts):
        run()
    return counts


def _timed_ms(hollow: HollowTarget, run: Callable[[], None]) -> float:
    """Return milliseconds of CPU time outside the layers."""
    marks: list[float] = []

    def mark() -> None:
        marks.append(time.thread_time())

    started = time.thread_time()
    with hollow.watched(mark, mark):
        run()
    whole = time.thread_time() - started
    return (whole - sum(marks[1::2]) + sum(marks[::2])) * 1e3


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


def _is_view(func: Any) -> bool:  # a torch operator
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def pass_cost_table(hollow: HollowTarget, context: int, costs: abc.Sequence[PassCost]) -> ResultTable:
    rows = [
        [
            cost.draft,
            f"{cost.sessions}",
            f"{cost.layer_kernels:.1f}",
            f"{cost.kernels}",
            f"{round(cost.layer_kernels * hollow.num_layers) + cost.kernels}",
            *(f"{count}" for count in (cost.reads, cost.uploads)),
            f"{cost.host_ms:.1f}",
        ]
        for cost in costs
    ]
    columns = ("draft", "sessions", "a layer", "outside", "in all", "reads", "uploads", "host ms")
    title = f"a pass of {hollow.target.name}, {hollow.num_layers} layers, after {context} tokens"
    return table(title, columns, rows, caption="operations with a kernel; CPU time outside the layers")
