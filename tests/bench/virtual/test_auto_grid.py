"""`auto` beside the modes that it chooses from: the ratios and their bounds, and the command on a small grid."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner
from virtual_tapes import CYCLE, RIGHT, recording_of, tape_of, texts_of

from outrider_bench.cli.app import app
from outrider_bench.network.metrics import Decoding
from outrider_bench.network.variants import ModeVariant
from outrider_bench.virtual import study
from outrider_bench.virtual.auto_grid import AutoResult, auto_table
from outrider_bench.virtual.replay import ReplaySetup, answers
from outrider_bench.virtual.sweep import SweepGrid
from outrider_drafters.emulation.pace import Pace
from outrider_netsim import Direction, Profile

from .test_commands import PACE, TREES

NEW = 1 + 8 * CYCLE


def result(auto: float, **fixed: float) -> AutoResult:
    names = {name.replace("_", "-"): speed for name, speed in fixed.items()}
    return AutoResult(50.0, 33.0, 4.3, "server-draft" in names, auto, names)


@pytest.mark.parametrize(
    ("auto", "fixed", "holds"),
    [
        (96.0, {"stream": 30.0, "proactive": 100.0}, True),
        (94.0, {"stream": 30.0, "proactive": 100.0}, False),
        (97.0, {"stream": 100.0, "proactive": 90.0}, False),
        (97.0, {"stream": 30.0, "server_draft": 99.5, "proactive": 100.0}, False),
        (120.0, {"stream": 30.0, "server_draft": 99.5, "proactive": 100.0}, True),
    ],
)
def test_auto_may_lose_5_percent_to_a_mode_and_2_to_a_control(auto, fixed, holds):
    one = result(auto, **fixed)
    assert one.holds is holds
    assert one.ratios["best"] == pytest.approx(auto / max(fixed.values()))
    assert ("server-draft" in one.ratios) == ("server_draft" in fixed)


def test_the_grid_has_auto_with_server_draft_on_offer_and_without(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "AUTO_GRID", SweepGrid((0.0, 300.0), (30.0,), (0.0,)))
    tape_of(recording_of(NEW, lambda number: RIGHT)).save(tmp_path / "tape.json")
    (tmp_path / "hand.toml").write_text(PACE)
    report = tmp_path / "report.json"
    options = ["--tape", tmp_path / "tape.json", "--pace", tmp_path / "hand.toml", "--json", report]
    more = ["--auto-grid", "--mode", "stop-and-wait", "--rounds", 3, "--max-new-tokens", NEW, *TREES]
    result = CliRunner().invoke(app, ["sweep", *map(str, (*options, *more))])
    points = json.loads(report.read_text())["points"]
    assert [(point["rtt_ms"], point["server_draft"]) for point in points] == [
        (0.0, True),
        (0.0, False),
        (300.0, True),
        (300.0, False),
    ]
    assert points[2]["best"] == "server-draft"
    assert "server-draft" not in points[3]["fixed"]
    assert points[2]["auto"] > 1.5 * points[3]["auto"]
    assert result.exit_code == (0 if all(point["holds"] for point in points) else 1)
    assert all(set(point["ratios_ci95"]) == set(point["ratios"]) for point in points)


@pytest.mark.parametrize(("high", "surely"), [(0.94, True), (0.96, False)])
def test_auto_is_surely_off_where_its_interval_stays_below_the_bound(high, surely):
    one = replace(result(90.0, stream=30.0, proactive=100.0), ratios_ci95={"best": (0.8, high), "stream": None})
    assert not one.holds
    assert one.is_surely_off is surely
    assert [row[-1] for row in auto_table([one]).rows] == ["off" if surely else "off?"]


def test_auto_learns_from_a_target_that_writes_alone_that_drafting_would_pay():
    """At first the stream looks better: nobody knows that all drafts are right."""
    recordings = (recording_of(NEW, prompt=(1, 2, 3) * 14), recording_of(NEW, name="hand-1", prompt=(3, 2, 1) * 14))
    link = Profile.symmetric("80 ms", Direction(40.0, rate_bps=20e6))
    pace = Pace("hand", "made up", verify_ms=30.0, draft_level_ms=6.0, server_level_ms=4.0)
    tree = dict(zip(("breadth", "levels", "budget"), TREES[1::2], strict=True))
    setup = ReplaySetup(texts_of(*recordings), link, pace, max_new_tokens=NEW, rounds=16, server_draft=False)
    auto, stream = (Decoding.of(answers(setup, ModeVariant.parse(mode, tree), 1)) for mode in ("auto", "stream"))
    assert auto.tokens_per_second > 1.1 * stream.tokens_per_second
