"""Claims hold, fail or stay undecided by their interval, which is paired by prompt."""

import random

import pytest

from outrider_lab.paper.claims import Claim, Estimate, share_difference, speed_ratio, tau_ratio


def prompts(count=40, better=1.2, seed=1):
    """Prompts of very different difficulty on which `a` accepts `better` times as much as `b`, give or take a bit."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        easy = chance.uniform(1, 6)
        judged = {"a": easy * better * chance.uniform(0.95, 1.05), "b": easy}
        seconds = {"a": [1 / judged["a"], 1.1 / judged["a"]], "b": [1 / easy, 1.1 / easy]}
        made.append({"family": "code", "judged": judged, "verdicts": {"a": 1, "b": 1}, "seconds": seconds})
    return made


def test_a_paired_ratio_is_narrow_however_different_the_prompts_are():
    found = tau_ratio(prompts(), "a", "b")
    assert found.figure == pytest.approx(1.2, abs=0.02)
    low, high = found.interval
    assert low < found.figure < high
    assert high - low < 0.06  # unpaired, the spread of the prompts alone would make it wider than 0.4


@pytest.mark.parametrize(
    ("measured", "bound", "outcome"),
    [
        (Estimate(1.2, (1.1, 1.3)), 1.0, "holds"),
        (Estimate(1.2, (0.9, 1.5)), 1.0, "undecided"),
        (Estimate(0.8, (0.7, 0.9)), 1.0, "fails"),
        (Estimate(0.1, (-0.1, 0.3)), 0.0, "undecided"),
        (Estimate(2.0, None), 1.0, "undecided"),
        (None, 1.0, "not measured"),
    ],
)
def test_the_interval_decides(measured, bound, outcome):
    assert Claim("a > b", "2 > 1", measured, bound).outcome == outcome


def test_who_was_not_measured_is_not_compared():
    assert tau_ratio(prompts(), "a", "c") is None
    assert speed_ratio(prompts(), "c", "b") is None
    assert tau_ratio([], "a", "b") is None


def test_a_prompt_without_verdicts_does_not_spoil_the_ratio():
    some = prompts()
    some[3]["judged"] = some[3]["verdicts"] = {"a": 0, "b": 0}
    assert tau_ratio(some, "a", "b").interval[0] > 1
    for prompt in some:
        prompt["verdicts"] = {"a": 1, "b": 0}
    assert tau_ratio(some, "a", "b") is None


def test_seeds_that_agree_hold_and_seeds_that_do_not_leave_a_claim_undecided():
    for ratio in (tau_ratio, speed_ratio):
        alone = ratio(prompts(), "a", "b")
        agreeing = ratio(prompts(), "a", "b", [prompts(better=1.25), prompts(better=1.15)])
        assert (alone.seeds, agreeing.seeds) == (1, 3)
        assert agreeing.figure == pytest.approx(1.2, abs=0.03)
        assert Claim("a > b", "", agreeing).outcome == "holds"
        low, high = agreeing.interval
        assert high - low > alone.interval[1] - alone.interval[0]
        differing = ratio(prompts(), "a", "b", [prompts(better=0.9)])
        assert differing.interval[0] < 0.92
        assert differing.interval[1] > 1.18
        assert Claim("a > b", "", differing).outcome == "undecided"


def test_shares_of_the_same_questions_are_subtracted():
    above, below = [True] * 30 + [False] * 70, [True] * 15 + [False] * 85
    found = share_difference([above], [below])
    assert found.figure == pytest.approx(0.15)
    assert 0 < found.interval[0] < 0.15 < found.interval[1]
    assert found.seeds == 1
    assert share_difference([above], [below[:50]]) is None
    assert share_difference([], []) is None
    of_two = share_difference([above, below], [below, above])
    assert (of_two.figure, of_two.seeds) == (0, 2)
    assert of_two.interval[0] < -0.15
    assert of_two.interval[1] > 0.15
