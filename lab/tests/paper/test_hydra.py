"""The Hydra paper's figures from small reports, also where drafters are missing."""

from dataclasses import replace

import pytest

from outrider_lab.paper.exhibits import EXHIBITS
from outrider_lab.paper.exhibits.hydra import SMALL_TREES, TYPICAL, TYPICAL_HOT
from outrider_lab.paper.setup import HYDRA_ROLES, OWN_TREES, paper_setup
from outrider_lab.studies.options import EPSILONS
from outrider_lab.studies.typical import TypicalStudy
from outrider_lab.studies.typical_report import (
    GREEDY,
    SAMPLING,
    TARGET,
    Rule,
    RuleResult,
    ScoredAnswer,
    TypicalReport,
)

TRAINED = tuple(f"{role}=trained/{role}" for role in HYDRA_ROLES if role not in ("medusa", "hydra"))
# Tokens of 10 verdicts on every prompt, and its seconds.
JUDGED = {"medusa": 25, "hydra_plain": 30, "hydra_labels": 33, "hydra_noise": 34, "hydra_noprefix": 35, "hydra": 37}


@pytest.fixture(autouse=True)
def nothing_trained(tmp_path, monkeypatch):
    """What `paper train` has trained takes its role by itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def setup_of(*named, quick=False):
    return paper_setup(None, named, None, quick=quick)


def compared(*roles, worse=(), judged=JUDGED):
    """A report of `drafters`: 12 prompts that differ in difficulty, on which everybody is as good as `judged` says."""
    prompts = [
        {
            "family": "code",
            "judged": {role: judged[role] + number % 3 for role in roles},
            "verdicts": dict.fromkeys(roles, 10),
            "seconds": {role: [(2.0 if role in worse else 1.0) / JUDGED[role]] * 2 for role in roles},
        }
        for number in range(12)
    ]
    drafters = {role: {"overall": JUDGED[role] / 10, "tau_ci95": {"all": (2.0, 4.0)}} for role in roles}
    speeds = {role: {"speedup": JUDGED[role] / 20, "speedup_ci95": None} for role in roles}
    return {"prompts": prompts, "drafters": drafters, "speeds": speeds}


def show(name, setup, report):
    return EXHIBITS[name].show(setup, {OWN_TREES: report, SMALL_TREES: report})


def outcomes(shown):
    return {claim.text: claim.outcome for claim in shown.claims}


def scored(judged, *, is_right=True, tokens=(1, 2, 3), verdicts=10):
    return ScoredAnswer("code", tokens, verdicts, judged, -1.0, is_right)


def typical(*drafters, right=None, temperature=0.7):
    """A report of `typical`, as JSON: tau falls with epsilon; `right`: how many of 12 answers of each drafter are."""
    results = [RuleResult(TARGET, rule, [[scored(0, verdicts=0)] * 12]) for rule in (GREEDY, SAMPLING)]
    for drafter in drafters:
        rules = [GREEDY, SAMPLING, *(Rule("typical", epsilon) for epsilon in EPSILONS)]
        for step, rule in enumerate(rules):
            count = (right or {}).get(drafter, 12)
            answers = [
                scored(
                    JUDGED[drafter.rpartition("/")[2]] + number % 3 - step,
                    is_right=None if right is None else number < count,
                )
                for number in range(12)
            ]
            results.append(RuleResult(drafter, rule, [answers]))
    return TypicalStudy.as_dict(TypicalReport(temperature, results))


def test_every_ordering_of_heads_holds_where_the_figures_say_so():
    setup, report = setup_of(*TRAINED), compared(*HYDRA_ROLES)
    expected = {
        2: ["hydra_plain > medusa"],
        3: ["hydra_noprefix > hydra_plain", "hydra > hydra_labels", "hydra > hydra_noise"],
        4: ["hydra > hydra_noprefix"],
        5: ["hydra > medusa", "hydra > hydra_plain"],
    }
    for number, pairs in expected.items():
        shown = show(f"hydra-figure-{number}", setup, report)
        assert outcomes(shown) == {f"{what}: {pair}": "holds" for what in ("tau", "speed") for pair in pairs}
        (rows,) = (one.rows for one in shown.tables)
        assert {row[0] for row in rows} == {role for pair in pairs for role in pair.split(" > ")}


def test_orderings_are_held_against_all_seeds():
    setup, seeds = setup_of(*TRAINED), [{"medusa": "1/medusa", "hydra": "1/hydra"}]
    setup = replace(setup, more_seeds=seeds)
    needed = [one.name for one in EXHIBITS["hydra-figure-5"].needs(setup)]
    assert needed == [OWN_TREES, f"{OWN_TREES}-seed-1", SMALL_TREES, f"{SMALL_TREES}-seed-1"]
    reports = dict.fromkeys(needed, compared(*HYDRA_ROLES))
    assert set(outcomes(EXHIBITS["hydra-figure-5"].show(setup, reports)).values()) == {"holds"}
    reports[f"{OWN_TREES}-seed-1"] = compared("medusa", "hydra", judged={"medusa": 37, "hydra": 25})
    shown = EXHIBITS["hydra-figure-5"].show(setup, reports)
    assert outcomes(shown) == {
        "tau: hydra > medusa": "undecided",
        "tau: hydra > hydra_plain": "holds",
        "speed: hydra > medusa": "holds",
        "speed: hydra > hydra_plain": "holds",
    }
    assert [claim.measured.seeds for claim in shown.claims] == [2, 1, 2, 2]


def test_a_missing_drafter_leaves_its_claims_unmeasured(tmp_path):
    shown = show("hydra-figure-5", setup_of(), compared("medusa", "hydra"))
    assert outcomes(shown) == {
        "tau: hydra > medusa": "holds",
        "tau: hydra > hydra_plain": "not measured",
        "speed: hydra > medusa": "holds",
        "speed: hydra > hydra_plain": "not measured",
    }
    assert [row[0] for row in shown.tables[0].rows] == ["medusa", "hydra"]
    assert shown.tables[0].rows[1][2:4] == ("3.70 +0.30 -1.70", "1.85")
    shown.plots[0].draw(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 5_000


def test_typical_acceptance_is_held_where_epsilon_makes_a_difference(tmp_path):
    cold, hot = (
        typical("medusa", "hydra"),
        typical("medusa", "hydra", right={"medusa": 2, "hydra": 10}, temperature=2.5),
    )
    shown = EXHIBITS["hydra-figure-6"].show(setup_of(), {TYPICAL: cold, TYPICAL_HOT: hot})
    found = outcomes(shown)
    assert len(found) == 2 + len(EPSILONS) + 1
    assert set(found.values()) == {"holds"}
    assert all("temperature 2.5" in text for text in found)
    assert [one.title.split(";")[0] for one in shown.tables[:2]] == ["temperature 0.7", "temperature 2.5"]
    for number, plot in enumerate(shown.plots):
        plot.draw(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 10_000


def test_typical_acceptance_is_held_against_the_heads_of_all_seeds():
    setup = replace(setup_of(), more_seeds=[{"medusa": "1/medusa", "hydra": "1/hydra"}])
    needed = [one.name for one in EXHIBITS["hydra-figure-6"].needs(setup)]
    assert needed == [TYPICAL, TYPICAL_HOT, f"{TYPICAL_HOT}-seed-1"]
    first = typical("medusa", "hydra", right={"medusa": 2, "hydra": 10}, temperature=2.5)
    again = typical("1/medusa", "1/hydra", right={"1/medusa": 10, "1/hydra": 2}, temperature=2.5)
    shown = EXHIBITS["hydra-figure-6"].show(setup, dict(zip(needed, (typical("medusa"), first, again), strict=True)))
    assert len(shown.plots) == 2
    assert {claim.measured.seeds for claim in shown.claims} == {2}
    assert [claim.outcome for claim in shown.claims] == ["holds"] * (2 + len(EPSILONS)) + ["undecided"]


@pytest.mark.parametrize("there", ["medusa", "hydra"])
def test_typical_acceptance_of_one_drafter_compares_it_with_nobody(there):
    shown = EXHIBITS["hydra-figure-6"].show(setup_of(), {TYPICAL: typical(there)})
    found = outcomes(shown)
    assert found.pop(f"tau, temperature 0.7: {there} with epsilon 0.05 > 0.25") == "holds"
    assert set(found.values()) == {"not measured"}
