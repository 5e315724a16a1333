"""The notes on EAGLE-3 from small reports of the studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider_bench.studies.drafters.comparison import ComparisonStudy
from outrider_bench.studies.pair.verify_cost import VerifyCost, VerifyCostReport, VerifyCostStudy
from outrider_lab.paper.exhibits.eagle3 import DEPTHS, EXHIBITS, PASSES, VOCABULARY, WEIGHTS
from outrider_lab.paper.setup import paper_setup
from outrider_lab.studies.depth_sweep import DepthSweep, DepthSweepStudy
from outrider_lab.studies.edge_weights import EdgeWeights, EdgeWeightsStudy

from .paper_reports import as_json, compared

DEPTH, QUANTIZATION, COMPACT, GAMMA = EXHIBITS
WAYS = {levels: f"eagle3, {levels}" for levels in range(1, 9)}


@pytest.fixture
def setup():
    return paper_setup(None, (), None, quick=False)


def depths(taus, speeds=None):
    comparison = compared({WAYS[levels]: tau for levels, tau in taus.items()}, speeds=speeds)
    ways = {levels: WAYS[levels] for levels in taus}
    return as_json(DepthSweepStudy, DepthSweep({"eagle3": ways}, None, None, comparison))


def outcomes(shown):
    return [claim.outcome for claim in shown.claims]


def test_the_ceiling_is_held_against_accepted_over_drafted_tokens(setup):
    # Every answer drafts 120 tokens in 10 verdicts: tau = 10 accepts 90 of them, tau = 2 just 10.
    assert outcomes(DEPTH.show(setup, {DEPTHS: depths({1: 9.0, 2: 10.0, 3: 10.0})})) == ["holds"] * 3
    shown = DEPTH.show(setup, {DEPTHS: depths({1: 2.0, 2: 2.0, 3: 2.0})})
    assert outcomes(shown) == ["fails", "fails", "undecided"]
    assert shown.notes == ["the head's vocabulary: 768 of 2048 tokens"]
    assert outcomes(DEPTH.show(setup, {DEPTHS: depths({1: 2.0, 2: 10.0})})) == ["holds", *["not measured"] * 2]


def test_chains_of_two_are_held_against_the_plain_loop_and_other_depths(setup):
    speeds = {WAYS[1]: 1.2, WAYS[2]: 1.4, WAYS[8]: 1.0}
    costs = [
        VerifyCost(1, 10.0, 9.0, 11.0, 1.0, None, None),
        VerifyCost(2, 11.0, 9.0, 12.0, 1.1, None, (1.0, 1.2)),
        VerifyCost(8, 90.0, 80.0, 99.0, 9.0, None, (8.5, 9.5)),
    ]
    passes = as_json(VerifyCostStudy, VerifyCostReport("target", 256, 3, "float32", "cpu", "plain", costs))
    reports = {DEPTHS: depths({1: 9.0, 2: 8.0, 8: 6.0}, speeds), PASSES: passes}
    shown = GAMMA.show(setup, reports)
    assert outcomes(shown) == [*["holds"] * 5, "fails"]
    assert shown.notes == ["matched: every answer of every chain is the plain loop's"]
    way = reports[DEPTHS]["comparison"]["drafters"][WAYS[2]]
    way["mismatches"] = 2
    assert GAMMA.show(setup, reports).notes == ["2 ANSWERS DIFFER: this is a defect."]
    slots = next(one for one in shown.tables if one.title.startswith("by slot"))
    assert slots.rows[1] == ("of those that accepted the one before", "0.90", "0.67", "0.83")


@pytest.mark.parametrize(("coarse", "outcome"), [(5, "holds"), (4, "fails")])
def test_coarser_weights_are_held_to_the_same_acceptance_prompt_by_prompt(setup, coarse, outcome):
    sizes = {"bundle_bytes": 10, "tensor_bytes": 9, "ms_per_level": 1.0, "not_exact": 0, "ms_per_level_ci95": None}
    bundles = [
        EdgeWeights("eagle3", kind, **sizes, mean_acceptance_length=tau, mean_acceptance_length_ci95=None,
                    judged=[tau * count for count in range(1, 20)], verdicts=list(range(1, 20)))
        for kind, tau in (("float32", 5), ("int4", coarse))
    ]  # fmt: skip
    shown = QUANTIZATION.show(setup, {WEIGHTS: as_json(EdgeWeightsStudy, {"edge_weights": bundles})})
    assert outcomes(shown) == [outcome]


def test_a_compact_vocabulary_is_held_against_all_tokens():
    setup = paper_setup("smollm2", (), Path("questions.jsonl"), quick=False)
    (measurement,) = COMPACT.needs(setup)
    assert "--drafter smollm2/eagle2 --drafter smollm2/eagle2,draft_vocab=all" in measurement.command
    assert "smollm2/moa,draft_vocab=all" in measurement.command
    assert not COMPACT.needs(paper_setup(None, (), None, quick=False))  # none of the embedded drafters has another
    taus = {"eagle2": 3.0, "eagle2,draft_vocab=all": 3.0, "moa": 2.0, "moa,draft_vocab=all": 4.0}
    report = as_json(ComparisonStudy, compared(taus, speeds={"eagle2": 1.3}))
    shown = COMPACT.show(setup, {VOCABULARY: report})
    assert outcomes(shown)[:3] == ["holds", "fails", "holds"]
