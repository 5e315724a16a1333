"""Costs and savings of smaller weights on the edge: bytes, time per draft level, mean acceptance length.

For every drafter and type of weights an edge bundle is made, loaded as a client loads it, and asked the same held-out
questions in process against the full target. Draft levels are timed on the same texts, in random order and several
times, so that a busy machine is busy for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import torch

from outrider_bench.core.acceptance import ALL, TREE
from outrider_bench.core.bootstrap import Interval, median_interval
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, by_family
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.harness.study import Measured, Study
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.quantization.quantize import Weights
from outrider_drafters.trees.grow import grow_tree
from outrider_lab.studies.evaluation import measure_acceptance
from outrider_lab.studies.options import EdgeWeightsOptions
from outrider_models.bundling import make_bundle, size_bytes
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

TIMED_TOKENS = 64  # of a prompt and its answer, before a level is timed
REPEATS = 15


@dataclass(frozen=True, slots=True)
class EdgeWeights:
    """One drafter with one type of weights.

    `mean_acceptance_length` counts the bonus; `not_exact` answers differ from the target's own (0, or there is a
    defect); `ms_per_level` is the median time of a tree divided by its levels. `*_ci95` are 95 % intervals. `judged`
    and `verdicts`: as in TauByText.
    """

    drafter: str
    weights: str
    bundle_bytes: int
    tensor_bytes: int
    ms_per_level: float
    mean_acceptance_length: float
    not_exact: int
    ms_per_level_ci95: Interval | None
    mean_acceptance_length_ci95: Interval | None
    judged: Sequence[int]
    verdicts: Sequence[int]


EdgeReport = dict[Literal["edge_weights"], list[EdgeWeights]]


class EdgeWeightsStudy(Study[EdgeWeightsOptions, list[EdgeWeights], EdgeReport]):
    """Measures all types of weights of one drafter after the other."""

    async def run(self, taken: Mapping[str, list[EdgeWeights]], step: Step) -> Measured[list[EdgeWeights]]:
        options = self.options
        drafters = options.drafters
        kinds = options.weights or list(get_args(Weights))
        target = Target.load(str(options.directory))
        models = LocalModels.load(ClientConfig(target=options.directory, drafter=NO_DRAFTER))
        limit = options.max_new_tokens
        count = options.or_all(options.per_family, 20)
        asked = options.source.per_family(models, count, limit, partial(plain_greedy, target))
        answered = _Answered(options.directory, target, asked, plain_answers(target, asked, limit, step))
        for name, source in drafters.items():
            if name not in taken:
                yield name, await answered.measured(name, source, kinds, step)

    def report(self, rows: Mapping[str, list[EdgeWeights]]) -> EdgeReport:
        return {"edge_weights": [one for row in rows.values() for one in row]}

    @staticmethod
    def tables(report: EdgeReport) -> list[ResultTable]:
        return [edge_weights_table(report["edge_weights"])]

    @staticmethod
    def failures(report: EdgeReport) -> list[str]:
        wrong = [one for one in report["edge_weights"] if one.not_exact]
        return [f"{one.drafter}, {one.weights}: {one.not_exact} answers are not the target's" for one in wrong]


@dataclass(frozen=True, slots=True)
class _Answered:
    """What is asked, and the target's own answers."""

    directory: Path
    target: Target
    asked: Sequence[Question]
    expected: Sequence[tuple[int, ...]]

    async def measured(self, name: str, source: str, kinds: Sequence[str], step: Step) -> list[EdgeWeights]:
        """Make a bundle of each kind, and measure them."""
        firsts = [places[0] for places in by_family(self.asked).values()]
        texts = [(*self.asked[number].prompt, *self.expected[number]) for number in firsts]
        results = []
        with TemporaryDirectory() as place:
            bundles = {kind: Path(place) / kind for kind in kinds}
            for kind, bundle in bundles.items():
                make_bundle(self.directory, source, kind, bundle)
            times = _level_times(bundles, texts)
            for kind, bundle in bundles.items():
                config = stop_and_wait_config(target=bundle, drafter=bundle)
                async with in_process(self.directory, config, self.target) as pair:
                    counter = ProgressCounter(step, f"{name} {kind}", len(self.asked))
                    accepted = await measure_acceptance(pair, TREE, self.asked, self.expected, counter)
                results.append(
                    EdgeWeights(
                        drafter=name,
                        weights=kind,
                        bundle_bytes=size_bytes(bundle),
                        tensor_bytes=sum(path.stat().st_size for path in bundle.rglob("*.safetensors")),
                        ms_per_level=median_of_medians(times[kind]) or 0.0,
                        mean_acceptance_length=accepted.overall,
                        not_exact=accepted.mismatches,
                        ms_per_level_ci95=median_interval(times[kind]),
                        mean_acceptance_length_ci95=accepted.ci95[ALL],
                        judged=accepted.judged,
                        verdicts=accepted.verdicts,
                    )
                )
        return results


def edge_weights_table(results: Sequence[EdgeWeights]) -> ResultTable:
    """Build a row per bundle; tau is also given as a share of the drafter's first row."""
    rows = []
    first: dict[str, float] = {}
    for r in results:
        share = r.mean_acceptance_length / first.setdefault(r.drafter, r.mean_acceptance_length or 1.0)
        sizes = (f"{r.bundle_bytes / 1000:,.0f}", f"{r.tensor_bytes / 1000:,.0f}")
        level_ms = plus_minus(r.ms_per_level, r.ms_per_level_ci95, 3)
        tau = plus_minus(r.mean_acceptance_length, r.mean_acceptance_length_ci95, 3)
        times_and_tau = (level_ms, tau, f"{share:.1%}")
        rows.append([r.drafter, r.weights, *sizes, *times_and_tau])
    columns = ("drafter", "weights", "bundle kB", "tensors kB", "ms a level", "tau", "of the first")
    return table("edge bundles by type of weights", columns, rows, keys=2, caption=OVER_PROMPTS)


def _level_times(bundles: Mapping[str, Path], texts: Sequence[Sequence[int]]) -> dict[str, list[list[float]]]:
    """Return ms per draft level by type of weights, repetition and text."""
    threads = torch.get_num_threads()
    drafters = {}
    for kind, bundle in bundles.items():
        models = LocalModels.load(ClientConfig(target=bundle, drafter=bundle))
        assert models.drafter is not None
        drafters[kind] = models.drafter
        torch.set_num_threads(models.drafter_threads or threads)
    times: dict[str, list[list[float]]] = {kind: [] for kind in bundles}
    for repetition in range(REPEATS):
        for of_repetition in times.values():
            of_repetition.append([])
        for number, text in enumerate(texts):
            for kind in random.Random(f"{repetition}/{number}").sample(list(drafters), len(drafters)):
                times[kind][-1].append(_level_ms(drafters[kind], text[:TIMED_TOKENS]))
    torch.set_num_threads(threads)
    return times


def _level_ms(drafter: Drafter, tokens: Sequence[int]) -> float:
    """Time one tree without features, which costs the same as with them; the prefix is not timed."""
    state = drafter.new_state()
    state.append(tokens)
    # The first tree also computes the prefix's keys and values: only the second is timed.
    grow_tree(state, TREE)
    started = time.perf_counter()
    grow_tree(state, TREE)
    return (time.perf_counter() - started) * 1000 / TREE.levels
