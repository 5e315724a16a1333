"""Tables 3 and 4 of Mixture of Attentions from small reports: orderings over training seeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from outrider_lab.paper.exhibits import EXHIBITS
from outrider_lab.paper.setup import paper_setup

TABLE_3, TABLE_4 = EXHIBITS["moa-table-3"], EXHIBITS["moa-table-4"]
PROMPTS = 12
ROLES = ("moa", "eagle2")


@pytest.fixture
def setup():
    """Two seeds: the drafters that ship, and two below the home directory, which reports call ~."""
    more = {role: str(Path.home() / "trained" / role) for role in ROLES}
    return replace(paper_setup(None, (), None, quick=False), more_seeds=[more])


def linked(speeds, mismatches=0):
    """A report of `network` over one link, whose drafters write so many tokens a second, with all prompts as hard."""
    figures = {
        "tokens_per_second": 1.0,
        "mean_acceptance_length": 1.0,
        "target_calls": 1.0,
        "ttft_ms": 1.0,
        "bytes_up_per_token": 1.0,
        "bytes_down_per_token": 1.0,
    }
    way = "stop-and-wait"
    cases = [
        {
            "drafter": drafter,
            "profile": "paper-4g",
            "ways": {way: figures},
            "answers": [
                {"way": way, "decoded_tokens": 50 + place, "decode_ms": 1000 * (50 + place) / speed}
                for place in range(PROMPTS)
            ],
        }
        for drafter, speed in speeds.items()
    ]
    return {"cases": cases, "mismatches": mismatches}


def scored(right):
    """A report of `eval` on code: how many of 50 programs are right that a drafter has ended after 10 tokens."""

    def passed(count):
        return {cut: [number < count for number in range(50)] for cut in ("1", "10", "25")}

    drafters = {name: {"passed": passed(count), "outage": {"10": count / 50}} for name, count in right.items()}
    scores = {"code": {"passed": 50, "total": 50}}
    return {"drafters": drafters, "stopped": passed(1), "stop": {"10": 0.02}, "target_alone": 1.0, "scores": scores}


def held(exhibit, setup, reports, text):
    """The outcome of a claim, its figure, and over how many seeds it is."""
    claim = next(claim for claim in exhibit.show(setup, reports).claims if claim.text == text)
    return claim.outcome, claim.measured and (pytest.approx(claim.measured.figure), claim.measured.seeds)


def test_both_ask_the_drafters_of_all_seeds_the_same(setup):
    for exhibit, name in ((TABLE_3, "network"), (TABLE_4, "quality")):
        first, further = exhibit.needs(setup)
        assert (first.name, further.name) == (name, f"{name}-seed-1")
        ships, trained = (
            [one for one in each.arguments if one not in setup.roles and "trained" not in one and one != "--drafter"]
            for each in (first, further)
        )
        assert ships == trained
        assert {f"{Path.home()}/trained/{role}" for role in ROLES} <= set(further.arguments)
    assert len(EXHIBITS["own-first-token"].needs(setup)) == 1


def test_speeds_over_a_link_are_held_against_all_seeds(setup):
    reports = {"network": linked({"moa": 120, "eagle2": 100})}
    asked = (TABLE_3, setup, reports, "paper-4g, stop-and-wait: moa > eagle2")
    assert held(*asked) == ("holds", (1.2, 1))
    reports["network-seed-1"] = linked({"~/trained/moa": 80, "~/trained/eagle2": 100}, mismatches=2)
    assert held(*asked) == ("undecided", (0.96, 2))
    assert TABLE_3.show(setup, reports).notes == ["2 answers differ from the target's own"]
    reports["network-seed-1"] = linked({"~/trained/moa": 80})
    assert held(*asked) == ("holds", (1.2, 1))


def test_right_answers_after_an_outage_are_held_against_all_seeds(setup):
    reports = {"quality": scored({"moa": 30, "eagle2": 10})}

    def after_ten(below):
        return held(TABLE_4, setup, reports, f"success after 10 tokens: moa > {below}")

    assert after_ten("eagle2") == ("holds", (0.4, 1))
    reports["quality-seed-1"] = scored({"~/trained/moa": 20, "~/trained/eagle2": 10})
    assert after_ten("eagle2") == ("holds", (0.3, 2))
    assert after_ten("stop") == ("holds", (0.48, 2))
    reports["quality-seed-1"] = scored({"~/trained/moa": 10, "~/trained/eagle2": 20})
    assert after_ten("eagle2") == ("undecided", (0.1, 2))
    reports["quality-seed-1"] = scored({"~/trained/moa": 20})
    assert after_ten("eagle2") == ("holds", (0.4, 1))
    assert after_ten("independent") == ("not measured", None)
