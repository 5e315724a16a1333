"""CPU time of a draft by its parts: attention, MLP, other products, the head, the choice of nodes, and the rest.

A draft is what a verdict asks of the edge: three tokens and their features come, and a tree grows. All drafters and
types of weights take turns in random order, on one thread, so that a busy machine is busy for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from outrider_bench.core.acceptance import TREE
from outrider_bench.core.bootstrap import Interval, median_interval
from outrider_bench.core.stats import median, median_of_medians
from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.blocks.fused import FusedBlock, FusedMLP
from outrider_drafters.blocks.layers import Attention, GatedMLP, LlamaBlock
from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.checkpoints.draft_vocabulary import DraftLogits
from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.families.eagle3.layer import FusedPairLayer
from outrider_drafters.families.independent.drafter import IndependentDrafter
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_drafters.trees.grow import TreeGrowth, grow
from outrider_models.bundling import make_bundle

ATTENTION, MLP, PRODUCTS, HEAD, CHOICE, REST = "attention", "MLP", "other products", "head", "choice", "rest"
PARTS = (ATTENTION, MLP, PRODUCTS, HEAD, CHOICE, REST)
PREFIX, VERDICT = 64, 3  # tokens of the text, and of each verdict
TEXTS, REPEATS = 4, 15

_Method = tuple[type, str]
_ATTENTION: tuple[_Method, ...] = (
    *((owner, name) for owner in (FusedBlock, FusedPairLayer) for name in ("run", "append_kv")),
    (FusedBlock, "cross_attend"),
    (LlamaBlock, "forward"),
    (LlamaBlock, "keys_values"),
    (Attention, "keys_values"),
)
_MLP: tuple[_Method, ...] = ((FusedMLP, "run"), (GatedMLP, "forward"))


@dataclass(frozen=True, slots=True)
class EdgeParts:
    """One drafter with one type of weights: medians over repetitions and texts, in ms of CPU time.

    `ms_by_part` is of a level. `of_first` is the ratio of a draft to the first one's of the same drafter and turn.
    """

    drafter: str
    weights: str
    levels: int
    ms_per_draft: float
    ms_per_draft_ci95: Interval | None
    of_first: float
    of_first_ci95: Interval | None
    ms_by_part: Mapping[str, float]


class PartTimer:
    """Adds up CPU time of this thread by part; a part inside another one does not count for it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._parts = [REST]
        self._since = time.thread_time()

    def enter(self, part: str) -> None:
        self._count()
        self._parts.append(part)

    def leave(self) -> None:
        self._count()
        self._parts.pop()

    @property
    def part(self) -> str:
        return self._parts[-1]

    def _count(self) -> None:
        now = time.thread_time()
        self.seconds[self.part] += now - self._since
        self._since = now

    @contextmanager
    def timing(self, head_rows: int, modules: Sequence[nn.Module] = ()) -> Iterator[None]:
        """Count until the end of the block. `head_rows`: outputs of the product that is the drafter's head.

        `modules` are those of a model of transformers, whose layers and MLPs are known by the names of their classes.
        """

        def product(function: Any, weight_of: Callable[..., Tensor]) -> Any:  # Any: functions of torch
            def part(*arguments: Any) -> str:
                if weight_of(*arguments).shape[0] == head_rows:
                    return HEAD
                return self.part if self.part in (ATTENTION, MLP) else PRODUCTS

            return self._counted(function, part)

        kinds = {type(module) for module in modules}
        layers = [(kind, "forward") for kind in kinds if kind.__name__.endswith("DecoderLayer")]
        mlps = [(kind, "forward") for kind in kinds if kind.__name__.endswith("MLP")]
        before: list[tuple[Any, str, Any]] = []  # Any: classes and modules, and what they held

        def put(owner: Any, name: str, made: Any) -> None:
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, made)

        try:
            for part, methods in ((ATTENTION, (*_ATTENTION, *layers)), (MLP, (*_MLP, *mlps))):
                for owner, name in methods:
                    put(owner, name, self._counted(owner.__dict__[name], lambda *_, part=part: part))
            functional = torch.nn.functional
            put(functional, "linear", product(functional.linear, lambda x, weight, *_: weight))
            for name in ("__call__", "plus"):
                put(PackedLinear, name, product(PackedLinear.__dict__[name], lambda linear, *_: linear.weight))
            put(DraftLogits, "of", staticmethod(self._counted(DraftLogits.of, lambda *_: HEAD)))
            put(TreeGrowth, "_read_together", staticmethod(self._counted(TreeGrowth._read_together, lambda *_: CHOICE)))
            self._since = time.thread_time()
            yield
            self._count()
        finally:
            for owner, name, held in reversed(before):
                setattr(owner, name, held)

    def _counted(self, function: Any, part_of: Callable[..., str]) -> Any:  # Any: functions of all kinds
        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:  # Any: theirs
            self.enter(part_of(*arguments))
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return counted


class _Variant:
    """A drafter as a client loads it from a bundle, with a state for each text."""

    def __init__(self, bundle: Path) -> None:
        drafter = LocalModels.load(ClientConfig(target=bundle, drafter=bundle)).drafter
        assert drafter is not None
        (self._drafter,) = RoutedDrafter.of(drafter).heads
        inner = getattr(self._drafter, "inner", self._drafter)  # behind one that copies
        self._modules = list(inner.model.model.modules()) if isinstance(inner, IndependentDrafter) else []
        self._states = [self._begin(seed) for seed in range(TEXTS)]
        self._head_rows = int(self._states[0].root_logits().isfinite().sum())  # the others it can never draft
        self.levels = 0

    def draft(self, number: int) -> dict[str, float]:
        """Time a verdict's draft on one of the texts, and take it back; returns seconds by part."""
        state, tap = self._states[number], self._drafter.tap
        tokens, rows = _text(self._drafter, number)
        timer = PartTimer()
        with timer.timing(self._head_rows, self._modules):
            state.append(tokens[PREFIX : PREFIX + VERDICT])
            last = PREFIX + VERDICT - 1
            first = last - 1 if tap.newest_only else PREFIX - 1
            state.add_features(first, rows[first:last])
            self.levels = min(TREE.levels, state.max_levels)
            grow(state, TREE)
        state.rollback(PREFIX)
        return timer.seconds

    def _begin(self, number: int) -> DraftState:
        tokens, rows = _text(self._drafter, number)
        state = self._drafter.new_state()
        state.append(tokens[:PREFIX])
        state.add_features(0, rows[: PREFIX - 1])
        grow(state, TREE)
        return state


def edge_parts(
    target: Path, drafters: Mapping[str, str], kinds: Sequence[str], repeats: int = REPEATS
) -> list[EdgeParts]:
    """Measure all drafters and types of weights side by side, on one thread."""
    threads = torch.get_num_threads()
    with TemporaryDirectory() as place:
        variants: dict[tuple[str, str], _Variant] = {}
        for name, source in drafters.items():
            for kind in kinds:
                bundle = Path(place) / str(len(variants))
                make_bundle(target, source, kind, bundle)
                variants[name, kind] = _Variant(bundle)
        torch.set_num_threads(1)
        try:
            for variant in variants.values():
                variant.draft(0)
            times = _measure(variants, repeats)
        finally:
            torch.set_num_threads(threads)
    return [_result(key, variants, times) for key in variants]


def edge_parts_table(results: Sequence[EdgeParts]) -> ResultTable:
    """Build a row per drafter and type of weights."""
    rows = []
    for r in results:
        draft = plus_minus(r.ms_per_draft, r.ms_per_draft_ci95, 2)
        share = plus_minus(r.of_first, r.of_first_ci95, 2)
        level = f"{r.ms_per_draft / r.levels:.2f}" if r.levels else ""
        parts = (f"{r.ms_by_part[part]:.2f}" for part in PARTS)
        rows.append([r.drafter, r.weights, str(r.levels), draft, share, level, *parts])
    columns = ("drafter", "weights", "levels", "ms a draft", "of the first", "ms a level", *PARTS)
    caption = f"CPU time of one thread; {VERDICT} tokens come, a tree of breadth {TREE.breadth} grows; 95 % intervals"
    return table("drafts by their parts", columns, rows, keys=2, caption=caption)


_Times = Mapping[tuple[str, str], list[list[dict[str, float]]]]  # by repetition and text: seconds by part


def _measure(variants: Mapping[tuple[str, str], _Variant], repeats: int) -> _Times:
    times: dict[tuple[str, str], list[list[dict[str, float]]]] = {key: [] for key in variants}
    for repetition in range(repeats):
        for of_repetition in times.values():
            of_repetition.append([])
        for text in range(TEXTS):
            for key in random.Random(f"{repetition}/{text}").sample(list(variants), len(variants)):
                times[key][-1].append(variants[key].draft(text))
    return times


def _result(key: tuple[str, str], variants: Mapping[tuple[str, str], _Variant], times: _Times) -> EdgeParts:
    name, kind = key
    # The same files with other options or weights are variants of one drafter.
    first = next(other for other in variants if other[0].partition(",")[0] == name.partition(",")[0])
    totals, firsts = ([[1e3 * sum(parts.values()) for parts in run] for run in times[of]] for of in (key, first))
    ratios = [[its / ours for its, ours in zip(*runs, strict=True)] for runs in zip(totals, firsts, strict=True)]
    levels = variants[key].levels
    by_part = {
        part: (median(1e3 * parts[part] for run in times[key] for parts in run) or 0.0) / max(levels, 1)
        for part in PARTS
    }
    return EdgeParts(
        name,
        kind,
        levels,
        median_of_medians(totals) or 0.0,
        median_interval(totals),
        median_of_medians(ratios) or 0.0,
        median_interval(ratios),
        by_part,
    )


def _text(drafter: Drafter, number: int) -> tuple[list[int], Tensor]:
    """Return tokens that do not repeat themselves, and their features; a pass takes as long for any of them."""
    tokens = random.Random(number).sample(range(drafter.vocab_size), PREFIX + VERDICT)
    generator = torch.Generator().manual_seed(number)
    return tokens, torch.randn(PREFIX + VERDICT, drafter.tap.width, generator=generator)
