"""Exhibits of our own from small reports."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from outrider_bench.studies.drafters.comparison import ComparisonStudy
from outrider_lab.paper.claims import Estimate
from outrider_lab.paper.exhibits import moa, own, own_drafting
from outrider_lab.paper.exhibits.moa import OWN_TREES
from outrider_lab.paper.exhibits.own import clients_within
from outrider_lab.paper.exhibits.own_drafting import SAMPLED, calibration_error
from outrider_lab.paper.measurement import KEPT, Measurement, MeasurementError, settings, take_all
from outrider_lab.paper.setup import paper_setup
from outrider_lab.studies.acceptance_replay import Lag
from outrider_lab.studies.staleness import (
    EXACT,
    LATE,
    Degradation,
    DegradationResult,
    StalenessReport,
    StalenessStudy,
    TauShare,
)
from outrider_lab.virtual.sweep import SweepPoint

from .paper_reports import as_json, compared

EXHIBITS = {exhibit.name: exhibit for exhibit in (*moa.EXHIBITS, *own.EXHIBITS, *own_drafting.EXHIBITS)}
SHOWN = {name: exhibit.show for name, exhibit in EXHIBITS.items()}


@pytest.fixture
def setup():
    return paper_setup(None, (), None, quick=False)


def run(clients, p95, tokens_per_s):
    verdict = {"p50": p95 / 2, "p95": p95, "p99": 2 * p95}
    return {"num_clients": clients, "verdict": verdict, "tokens_per_s": tokens_per_s, "wrong": 0}


def test_late_and_coarse_features_are_held_against_all_of_them(setup):
    def degraded(cell, share):
        kept = TauShare(5.0 * share, share, share - 0.01, share + 0.01)
        return DegradationResult(cell, kept, {"math": kept})

    def measured(late, coarse):
        cells = {Degradation(): 1.0, Degradation(LATE): late, Degradation(Lag(), "int8"): coarse}
        return {"tree": [degraded(cell, share) for cell, share in cells.items()]}

    drafters = {"moa": measured(0.95, 1.0), "eagle2": measured(0.7, 0.9)}
    report = as_json(StalenessStudy, StalenessReport(10, 96, drafters))
    shown = SHOWN["own-staleness"](setup, {"staleness": report})
    assert [claim.outcome for claim in shown.claims] == ["holds", "holds", "fails", "fails"]
    assert degraded(Degradation(), 1.0).cell.coding == EXACT


def test_the_map_of_modes_has_the_fastest_at_every_point(setup, tmp_path):
    speeds = {5: {"stream": 30.0, "stop-and-wait": 60.0}, 200: {"stream": 30.0, "stop-and-wait": 15.0}}
    points = [
        asdict(SweepPoint(rtt, 6, share, rtt, by_mode, {"stop-and-wait": 4.0}, 0, {}, (1.5, 2.5))) | {"best": "ignored"}
        for share in (0, 0.25)
        for rtt, by_mode in speeds.items()
    ]
    shown = SHOWN["own-modes"](setup, {"modes": json.loads(json.dumps({"conditions": {}, "points": points}))})
    assert shown.tables[0].rows[0] == ("0", "6", "stop-and-wait 2.00", "stream 1.00")
    assert shown.notes == [f"{name}: the fastest at 2 of 4 points" for name in ("stream", "stop-and-wait")]
    shown.plots[0].draw(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_clients_count_up_to_the_first_number_that_is_too_slow(setup):
    runs = [run(1, 10, 100), run(2, 40, 150), run(4, 60, 200), run(8, 45, 250)]
    assert [clients_within(runs, bound) for bound in (5, 20, 50, 100)] == [0, 1, 2, 8]
    shown = SHOWN["own-clients"](setup, {"clients": {"runs": runs}})
    assert shown.tables[0].rows[:2] == (("20", "1"), ("50", "2"))
    assert "WRONG" in SHOWN["own-clients"](setup, {"clients": {"runs": [{**runs[0], "wrong": 1}]}}).notes[0]


def test_users_and_server_stand_side_by_side(setup):
    reports = {
        "batches-moa": {"runs": [run(1, 5, 60.0), run(2, 9, 80.0)], "streams": [run(1, 5, 40.0)]},
        "batches-eagle2": {"runs": [run(1, 5, 50.0)], "streams": []},
    }
    rows = SHOWN["own-pareto"](setup, reports).tables[0].rows
    assert rows[:2] == (("moa", "1", "60.0", "60", "yes"), ("moa", "2", "40.0", "80", "yes"))
    assert rows[-1] == ("stream", "1", "40.0", "40", "")


def test_first_tokens_are_held_against_the_streams(setup):
    figures = dict.fromkeys(("ttft_ms", "bytes_up_per_token", "bytes_down_per_token"), 100.0)
    figures |= dict.fromkeys(("link_bytes_up_per_token", "link_bytes_down_per_token"))
    ways = {
        "stream": figures,
        "auto": figures | {"ttft_ratio_to_stream": 1.1, "ttft_ratio_to_stream_ci95": [1.0, 1.2]},
    }
    report = {"cases": [{"drafter": "moa", "profile": profile, "ways": ways} for profile in ("none", "paper-4g")]}
    shown = SHOWN["own-first-token"](setup, {"network": report})
    assert [claim.outcome for claim in shown.claims] == ["holds"]
    assert shown.tables[0].rows[0] == ("moa", "stream", "100", "-", "100")


def test_a_drafter_is_as_often_right_as_it_says_or_not(setup):
    assert calibration_error([0] * 5 + [10] + [0] * 4, [0] * 5 + [5] + [0] * 4) == pytest.approx(0.05)
    assert calibration_error([0] * 10, [0] * 10) == 0
    report = as_json(ComparisonStudy, compared({"moa": 3.0, "eagle2": 2.0}))
    report_of_moa = as_json(ComparisonStudy, compared({"moa": 2.5}))
    shown = SHOWN["own-calibration"](setup, {OWN_TREES: report})
    # 80 tokens of which none is accepted, 20 of which half are, 20 of which half are.
    assert shown.tables[0].rows[0][1:3] == (f"{(80 * 0.05 + 20 * 0.05 + 20 * 0.45) / 120:.3f}", "0.00")
    assert shown.tables[0].rows[0][3] == "-"
    assert [claim.outcome for claim in shown.claims] == ["holds", "holds"]
    further = replace(setup, more_seeds=[{"moa": "1/moa"}])
    both = SHOWN["own-calibration"](further, {OWN_TREES: report, f"{OWN_TREES}-seed-1": report_of_moa})
    assert [claim.measured.seeds for claim in both.claims] == [2, 1]
    assert SHOWN["own-positions"](setup, {OWN_TREES: report}).tables[0].rows[0][2:] == ("0.90", "0.67", "0.83")


def test_tau_of_both_temperatures_is_compared_prompt_by_prompt(setup):
    greedy = as_json(ComparisonStudy, compared({"moa": 3.0, "eagle2": 2.0}, speeds={"moa": 2.0}))
    sampled = as_json(ComparisonStudy, compared({"moa": 2.0, "eagle2": 2.0}))
    shown = SHOWN["own-temperature"](setup, {OWN_TREES: greedy, SAMPLED: sampled})
    assert [row[0] for row in shown.tables[0].rows] == ["moa", "eagle2"]
    assert shown.tables[0].rows[0][3:] == ("2.00", "1.00")
    assert [claim.outcome for claim in shown.claims] == ["holds", "undecided"]
    # The same prompts are as easy in both runs, which leaves nothing to chance.
    assert shown.claims[1].measured == Estimate(1.0, (1.0, 1.0))


def test_what_a_measurement_needs_is_made_first_and_found_by_it(tmp_path):
    tape, short = ("--tape", f"{KEPT}.tape.json.gz"), ("--set", "max-new-tokens=4")
    recorded = ("record", *tape, "--set", "prompts=1", "--drafter", "moa", *short)
    swept = ("sweep", *tape, *settings(rtt=5, verify=6, thin=0, mode="stop-and-wait"), *short)
    measurement = Measurement("modes", swept, first=recorded)
    report = take_all([measurement], tmp_path)["modes"]
    assert [point["rtt_ms"] for point in report["points"]] == [5]
    assert [path.name for path in tmp_path.iterdir()] == ["modes.json"]  # the tape is gone: it is large
    assert measurement.command.startswith("outrider-lab record --tape")
    assert " && outrider-lab sweep --tape" in measurement.command
    assert measurement.taken(tmp_path) is not None
    with pytest.raises(MeasurementError, match="ended with 2"):
        take_all([Measurement("modes", swept, first=(*recorded, "--nonsense"))], tmp_path)
