"""Acceptance with late and coarse features: the replay counts what the real loop counts, and less without them."""

import asyncio

import numpy as np
import pytest
import torch

from outrider_bench.core.acceptance import SHAPES
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_drafters import TargetWeights, load_drafter
from outrider_lab.studies.acceptance_replay import Lag, accepted
from outrider_lab.studies.evaluation import measure_acceptance
from outrider_lab.studies.recorded_features import RecordedAnswer, codings, record
from outrider_lab.studies.staleness import (
    LATE,
    Degradation,
    measure,
    tau_share,
)
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.tree import DraftTree
from outrider_server.engine.target import Target

TREE = DraftTree(tokens=(7, 8, 9, 7), parents=(-1, -1, 0, 2))


@pytest.mark.parametrize(("truth", "length"), [((7, 9, 7, 7), 3), ((7, 9), 2), ((8, 9), 1), ((9,), 0), ((), 0)])
def test_the_truth_takes_its_path_through_the_tree(truth, length):
    assert accepted(TREE, truth) == length


@pytest.mark.parametrize(
    ("lag", "there"),
    [
        (Lag(), 17),
        (Lag(tokens=2), 15),
        (Lag(tokens=9), 10),
        (Lag(verdicts=1), 14),
        (Lag(verdicts=2), 11),
        (Lag(verdicts=9), 11),
    ],
)
def test_what_is_there_with_a_prompt_of_ten(lag, there):
    """Drafts 0, 1 and 2 could have had 11, 14 and 17; the prompt's are never missing."""
    assert lag.num_features([11, 14, 17], prompt=10) == there


def test_shares_of_counts():
    whole = np.array([[8, 2], [6, 3], [9, 3]])
    assert (tau_share(whole, whole).share, tau_share(whole, whole).low, tau_share(whole, whole).high) == (1, 1, 1)
    less = tau_share(np.array([[8, 4], [6, 3], [9, 4]]), whole)
    assert (less.tau, less.share) == (pytest.approx(23 / 11), pytest.approx(8 / 11))
    assert less.low < less.share < less.high <= 1


def test_coded_rows_are_what_a_client_decodes():
    recording = RecordedAnswer((1,) * 40, (2,) * 6, torch.randn(46, 64, generator=torch.Generator().manual_seed(0)))
    exact, lean = (recording.coded(codings()[name]).features for name in ("float32", "lean"))
    assert torch.equal(exact, recording.features)
    noise = (lean - recording.features).square().mean(1).sqrt()
    assert noise[:40].mean() > 1.4 * noise[40:].mean()  # a prompt's rows are coarser than a reply's


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(str(target_dir()))


@pytest.fixture(scope="module")
def record_features(target):
    """EAGLE-2, which waits for its features, on six answers; and what the real loop counts."""
    return asyncio.run(record_and_count(target))


async def record_and_count(target):
    config = stop_and_wait_config(target=target_dir(), drafter=drafter_dir("eagle2"), codec="float32")
    async with in_process(target_dir(), config, target) as pair:
        asked = questions(pair.models, lambda family: 2 if family in ("math", "qa", "instruct") else 0)
    answers = plain_answers(target, asked, 96, lambda *_: None)
    async with in_process(target_dir(), config, target) as pair:
        loop = {name: await measure_acceptance(pair, shape, asked, answers) for name, shape in SHAPES.items()}
        return pair.models.drafter, await record(pair, asked, answers), loop


@pytest.mark.parametrize("shape", SHAPES)
def test_the_replay_counts_what_the_real_loop_counts(record_features, shape):
    drafter, recordings, loop = record_features
    (fresh,) = measure(drafter, recordings, {}, SHAPES[shape], [Degradation()])
    assert loop[shape].mismatches == 0
    assert fresh.overall.tau == pytest.approx(loop[shape].overall)


def test_less_is_accepted_where_features_lack(record_features):
    drafter, recordings, _ = record_features
    chosen = [Degradation(), Degradation(LATE), Degradation(coding="2 bits")]
    families = {"first": [0, 1], "others": [2, 3, 4, 5]}
    fresh, *short = measure(drafter, recordings, families, SHAPES["chain"], chosen)
    assert fresh.overall.share == 1
    assert all(one.overall.share < 1 for one in short)
    assert set(fresh.by_family) == set(families)


def test_eagle2_taught_for_late_features_loses_little_by_them(record_features):
    drafter, recordings, _ = record_features
    taught = load_drafter(drafter_dir("eagle2_late"), TargetWeights.load(target_dir()))
    assert taught.tap == drafter.tap  # so the recordings serve both
    assert (taught.stale_tolerant, drafter.stale_tolerant) == (True, False)
    chosen = [Degradation(), Degradation(LATE)]
    (untaught_fresh, untaught_late), (fresh, late) = (
        [one.overall for one in measure(which, recordings, {}, SHAPES["tree"], chosen)] for which in (drafter, taught)
    )
    assert fresh.tau > untaught_fresh.tau
    assert late.share > 0.9 > untaught_late.share
