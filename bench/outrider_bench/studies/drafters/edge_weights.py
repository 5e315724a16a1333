"""Costs and savings of smaller weights on the edge: bytes, time per draft level, mean acceptance length.

For every drafter and type of weights an edge bundle is made, loaded as a client loads it, and asked the same held-out
questions in process against the full target. Draft levels are timed in turns on the same texts, so that a busy machine
is busy for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outrider_bench.core.acceptance import TREE, measure_acceptance
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.tables import ResultTable, table
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.trees.grow import grow_tree
from outrider_models.bundling import make_bundle, size_bytes
from outrider_server.engine.target import Target

MAX_NEW_TOKENS = 192
TIMED_TOKENS = 64  # of a prompt and its answer, before a level is timed
REPEATS = 15


@dataclass(frozen=True, slots=True)
class EdgeWeights:
    """One drafter with one type of weights.

    `mean_acceptance_length` counts the bonus; `not_exact` answers differ from the target's own (0, or there is a
    defect); `ms_per_level` is the median time of a tree divided by its levels.
    """

    drafter: str
    weights: str
    bundle_bytes: int
    tensor_bytes: int
    ms_per_level: float
    mean_acceptance_length: float
    not_exact: int


async def edge_weights(
    target_path: Path, drafters: Mapping[str, str], kinds: Sequence[str], per_family: int, step: Step
) -> list[EdgeWeights]:
    """Measure all drafters and types of weights in one process."""
    target = Target.load(str(target_path))
    asked = questions(LocalModels.load(ClientConfig(target=target_path, drafter=NO_DRAFTER)), per_family)
    expected = plain_answers(target, asked, MAX_NEW_TOKENS, step)
    results = []
    with TemporaryDirectory() as place:
        for name, source in drafters.items():
            bundles = {kind: Path(place) / f"{name.replace('/', '-')}-{kind}" for kind in kinds}
            for kind, bundle in bundles.items():
                make_bundle(target_path, source, kind, bundle)
            times = _level_times(bundles, [(*asked[i].prompt, *expected[i]) for i in range(0, len(asked), per_family)])
            for kind, bundle in bundles.items():
                config = stop_and_wait_config(target=bundle, drafter=bundle)
                async with in_process(target_path, config, target) as pair:
                    counter = ProgressCounter(step, f"{name} {kind}", len(asked))
                    accepted = await measure_acceptance(pair, TREE, asked, expected, counter)
                tensors = sum(path.stat().st_size for path in bundle.rglob("*.safetensors"))
                results.append(
                    EdgeWeights(
                        name, kind, size_bytes(bundle), tensors, times[kind], accepted.overall, accepted.mismatches
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
        times_and_tau = (f"{r.ms_per_level:.3f}", f"{r.mean_acceptance_length:.3f}", f"{share:.1%}")
        rows.append([r.drafter, r.weights, *sizes, *times_and_tau])
    columns = ("drafter", "weights", "bundle kB", "tensors kB", "ms a level", "tau", "of the first")
    return table("edge bundles by type of weights", columns, rows, keys=2)


def _level_times(bundles: Mapping[str, Path], texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the median ms per draft level by type of weights, measured in turns on each text."""
    threads = torch.get_num_threads()
    drafters = {}
    for kind, bundle in bundles.items():
        models = LocalModels.load(ClientConfig(target=bundle, drafter=bundle))
        assert models.drafter is not None
        drafters[kind] = models.drafter
        torch.set_num_threads(models.drafter_threads or threads)
    times: dict[str, list[float]] = {kind: [] for kind in bundles}
    for text in texts:
        for _ in range(REPEATS):
            for kind, drafter in drafters.items():
                times[kind].append(_level_ms(drafter, text[:TIMED_TOKENS]))
    torch.set_num_threads(threads)
    return {kind: statistics.median(some) for kind, some in times.items()}


def _level_ms(drafter: Drafter, tokens: Sequence[int]) -> float:
    """Time one tree without features, which costs the same as with them; the prefix is not timed."""
    state = drafter.new_state()
    state.append(tokens)
    # The first tree also computes the prefix's keys and values: only the second is timed.
    grow_tree(state, TREE)
    started = time.perf_counter()
    grow_tree(state, TREE)
    return (time.perf_counter() - started) * 1000 / TREE.levels
