"""Trees as large as they pay: the rule, and what it is learnt from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.tree_tuner import TreeTuner
from outrider_proto.tree import ROOT, DraftTree

LIMITS = TreeShape(8, 8, 32)
# Of 1.5 B parameters on one core, by rows: a second one doubles float32's time, the others' first rows are nearly free.
PASSES_MS = {
    "float32": {1: 359, 2: 714, 8: 714, 16: 800},
    "bfloat16": {1: 197, 8: 237, 16: 348},
    "int8": {1: 87, 4: 90, 8: 119, 16: 214},
    "a row as dear as ever": {1: 11, 16: 26},
}

# Two children of the root, of probability .6 and .2, and a child of the first, of .3.
TREE = ScoredTree(DraftTree((5, 6, 7), (ROOT, ROOT, 0)), tuple(map(math.log, (0.6, 0.2, 0.3))))


def taught(row_ms: float, paths: int = 24, path: tuple[int, ...] = (0,), hiccup: int = 6) -> TreeTuner:
    """A tuner that has seen passes of 10 ms and `row_ms` a row, some held up, and trees of which `path` held."""
    tuner = TreeTuner()
    for number in range(paths):
        rows = 1 + (7 * number) % 33
        tuner.row_cost.record_pass(rows, 10 + row_ms * rows + (90 if number % hiccup == 0 else 0))
        tuner.record_tree(TREE, path)
    return tuner


@pytest.mark.parametrize("row_ms", [0.0, 0.2, 1.5])
def test_the_cost_of_a_row_is_found_despite_passes_that_were_held_up(row_ms):
    assert taught(row_ms).row_cost.row_ms == pytest.approx(row_ms, abs=0.15)


def test_sizes_go_on_changing_until_the_cost_of_a_row_is_known():
    """Passes of one size, or of sizes within narrow limits, must not leave it at one size for ever."""
    tuner, narrow, sizes = TreeTuner(), TreeShape(1, 2, 3), []
    for number in range(200):
        sizes.append((shape := tuner.shape(narrow if number < 150 else LIMITS, 0.05, 1.0)).budget)
        tuner.row_cost.record_pass(1 + shape.budget, 10.0 + shape.budget)
    assert set(sizes[100:150]) == {1, 2, 3}
    assert tuner.row_cost.row_ms == pytest.approx(1.0)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("accept", [0.3, 0.7])
@pytest.mark.parametrize("passes", PASSES_MS)
def test_the_best_size_in_a_simulation(passes, accept, copies):
    """Independent chains: every level is accepted with one probability, and takes the drafter a twentieth of a decode.

    Copies do not know the probability: it has to be learnt.
    """
    sizes, times = zip(*PASSES_MS[passes].items(), strict=True)
    pass_ms = {rows: float(np.interp(rows, sizes, times)) for rows in range(1, 14)}
    level_ms, fixed = pass_ms[1] / 20, dict[int, float]()
    for levels in range(1, 13):
        tau = sum(accept**k for k in range(levels + 1))
        fixed[levels] = tau / (pass_ms[1 + levels] + level_ms * levels)
    best = max(fixed, key=fixed.__getitem__)
    tuner, speed = TreeTuner(), None
    chain = TreeShape(1, 12, 12)
    for number in range(60):
        shape = tuner.shape(chain, speed, level_ms)
        levels = grown(shape, shape.certainty if copies else accept)
        scores = tuple(0.0 if copies else k * math.log(accept) for k in range(1, levels + 1))
        drafted = ScoredTree(DraftTree.chain(tuple(range(levels))), scores)
        tuner.row_cost.record_pass(1 + levels, pass_ms[1 + levels])
        # In turn as many as the probabilities say: no chance is needed for a mean.
        accepted = sum((number * 0.618) % 1 < accept**k for k in range(1, levels + 1))
        tuner.record_tree(drafted, tuple(range(accepted)))
        speed = fixed[levels]
    assert abs(levels - best) <= 1
    assert fixed[levels] > 0.96 * fixed[best]


def test_one_kind_of_nodes_is_not_judged_by_the_other():
    """Copies that rarely hold make later copies short, and leave the drafter's own trees as they were."""
    copy = ScoredTree(DraftTree.chain((5, 6, 7, 8)), (0.0,) * 4)
    own, mixed = taught(0.2), taught(0.2)
    for number in range(60):
        mixed.record_tree(copy, (0,) if number % 3 == 0 else ())
        for tuner in (own, mixed):
            tuner.record_tree(TREE, (0,))
    assert own.shape(LIMITS, 0.05, 1.0).certainty == 1.0
    assert mixed.shape(LIMITS, 0.05, 1.0).certainty == pytest.approx(0.25, abs=0.03)  # of four reached one held
    assert mixed.calibration == pytest.approx(own.calibration, rel=0.1)


def test_a_copy_is_tried_again_however_seldom_copies_held():
    tuner = taught(8.0)
    for _ in range(200):
        tuner.record_tree(ScoredTree(DraftTree.chain((5,)), (0.0,)), ())
    shape = tuner.shape(LIMITS, 0.1, 1.0)
    assert 0 < shape.min_probability <= shape.certainty < 0.1


def grown(shape: TreeShape, accept: float) -> int:
    """Levels of a chain whose every token has probability `accept`."""
    levels = 1
    while (
        levels < min(shape.levels, shape.budget)
        and accept**levels >= shape.min_level_probability
        and accept ** (levels + 1) >= shape.min_probability
    ):
        levels += 1
    return levels
