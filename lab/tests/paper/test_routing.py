"""The routing report's tables from a small report of `outrider-lab routing`."""

import pytest

from outrider_client.core.head_statistics import AcceptedMeans
from outrider_lab.paper.exhibits.routing import EXHIBITS
from outrider_lab.paper.setup import PaperSetup, paper_setup
from outrider_lab.studies.routing import RoutingCost, RoutingReport, RoutingStudy, routings

from .paper_reports import as_json, compared

ALONE = ("head 1: eagle2_math", "head 2: eagle2_chat")
COST = RoutingCost(800, 4000, 1.0, 0.0, 5.0, None, {"a": 1.0}, 20, 100, AcceptedMeans(0.6, 0.1), AcceptedMeans())
ACCEPTANCE, CONFIDENCE, SPEED = EXHIBITS


@pytest.fixture
def setup():
    return paper_setup(None, (), None, quick=False)


def reports(setup, routed_on_math=4.9, routed_on_chat=3.9, own_speed=1.5):
    taus = {ALONE[0]: {"math": 5.0, "chat": 2.0}, ALONE[1]: {"math": 3.0, "chat": 3.6}}
    taus |= {way: {"math": routed_on_math, "chat": routed_on_chat} for way in routings(0.8)}
    comparison = compared(taus, speeds={list(taus)[-1]: own_speed})
    report = RoutingReport(("eagle2_math", "eagle2_chat"), 0.8, ALONE, dict.fromkeys(taus, COST), comparison)
    return {one.name: as_json(RoutingStudy, report) for one in ACCEPTANCE.needs(setup)}


def test_both_heads_of_a_system_are_needed(setup):
    (measurement,) = ACCEPTANCE.needs(setup)
    assert measurement.command.startswith("outrider-lab routing --heads eagle2_math --heads eagle2_chat ")
    both = paper_setup(None, ("hass_math=one", "hass_chat=other"), None, quick=False)
    assert [one.name for one in SPEED.needs(both)] == ["routing-eagle", "routing-hass"]
    assert not ACCEPTANCE.needs(PaperSetup("smollm2", {}, None, setup.extent))


@pytest.mark.parametrize(
    ("on_math", "on_chat", "outcomes"),
    [
        (4.9, 3.9, ("holds", "holds")),
        (5.6, 3.6, ("undecided", "fails")),  # no better on chat, and not equivalent, if for the better, on math
        (3.0, 3.0, ("fails", "fails")),
    ],
)
def test_the_router_is_held_against_the_head_that_is_better_on_a_text(setup, on_math, on_chat, outcomes):
    shown = ACCEPTANCE.show(setup, reports(setup, on_math, on_chat))
    assert tuple(claim.outcome for claim in shown.claims) == (*outcomes, "holds")  # the routers' counts are the same
    assert shown.tables[0].title.startswith("EAGLE: ")


def test_accepted_tokens_are_held_against_rejected_ones(setup):
    shown = CONFIDENCE.show(setup, reports(setup))
    assert [claim.outcome for claim in shown.claims] == ["holds", "holds"]
    assert all(claim.measured.figure == pytest.approx(0.5) for claim in shown.claims)


def test_speeds_are_held_against_the_reports_own_router(setup):
    assert [claim.outcome for claim in SPEED.show(setup, reports(setup)).claims] == ["holds"]
    assert [claim.outcome for claim in SPEED.show(setup, reports(setup, own_speed=0.7)).claims] == ["fails"]
