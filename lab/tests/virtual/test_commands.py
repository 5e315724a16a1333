"""`outrider-lab virtual` and `sweep` on a tape made by hand."""

import json

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings
from outrider_proto.errors import UsageError

from .tapes import CYCLE, LEVELS, NEVER, RIGHT, SECOND, recording_of, tape_of

NEW = 1 + 4 * CYCLE
PACE = "source = 'made up'\nverify_ms = 30\ndraft_level_ms = 6\nserver_level_ms = 4\n"
TREES = settings(breadth=1, levels=LEVELS, budget=LEVELS)


@pytest.fixture
def tape(tmp_path):
    tape_of(recording_of(NEW, lambda number: SECOND if number % 7 == 0 else RIGHT)).save(tmp_path / "tape.json")
    (tmp_path / "hand.toml").write_text(PACE)
    return tmp_path / "tape.json"


def run(tape, command, *options):
    report = tape.with_name("report.json")
    where = ["--tape", tape, "--set", f"pace={tape.with_name('hand.toml')}", "--json", report]
    result = CliRunner().invoke(app, [command, *map(str, (*where, *options))])
    return result, json.loads(report.read_text()) if report.exists() else {}


def test_a_replay_has_the_keys_of_the_network_bench(tape):
    result, report = run(tape, "virtual", "--profile", "paper-4g", "--profile", "none", *TREES, "--set", "runs=2")
    assert result.exit_code == 0, result.output
    for key in ("tokens_per_second", "mean_acceptance_length", "eta", "rtt_ms", "verify_ms", "ttft_ms", "hit_rate"):
        assert key in report
    assert report["engine"] == "virtual"
    assert "congestion" in report["note"]
    assert set(report["controls"]) == {"stream", "server_draft"}
    assert [scenario["profile"] for scenario in report["cases"]] == ["paper-4g", "none"]
    assert report["cases"][1]["controls"]["stream"]["tokens_per_second"] == pytest.approx(1e3 / 30)
    assert report["mismatches"] == 0


def test_reports_are_shown_again_with_their_tables_and_plots(tape):
    picture = tape.with_name("picture.png")
    grid = settings(rtt="0,200", verify=6, thin=0, max_new_tokens=NEW)
    commands = {"virtual": ("--profile", "none", "--set", "runs=1"), "sweep": grid}
    for command, options in commands.items():
        result, _ = run(tape, command, *options, *TREES, *settings(mode="stop-and-wait", plot=picture))
        drawn = picture.read_bytes()
        picture.unlink()
        again = CliRunner().invoke(app, ["show", str(tape.with_name("report.json")), "--plot", str(picture)])
        assert again.exit_code == 0, again.output
        assert again.output == result.output
        assert picture.read_bytes() == drawn


def test_a_sweep_maps_the_fastest_modes_and_draws_them(tape):
    picture = tape.with_name("map.png")
    grid = settings(rtt="0,200", verify="6,60", thin="0,0.5", max_new_tokens=NEW)
    result, report = run(tape, "sweep", *grid, *TREES, *settings(mode="stop-and-wait", plot=picture))
    assert result.exit_code == 0, result.output
    points = report["points"]
    assert len(points) == 8
    near = next(p for p in points if (p["rtt_ms"], p["verify_ms"], p["share"]) == (0, 60, 0))
    far = next(p for p in points if (p["rtt_ms"], p["verify_ms"], p["share"]) == (200, 6, 0.5))
    assert near["best"] != "stream"
    assert far["best"] == "stream"
    assert near["tau"] > far["tau"]
    assert near["ratio_to_stream"] > 1 == far["ratio_to_stream"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_lead_is_decided_where_it_holds_for_other_prompts(tmp_path):
    """One prompt is drafted all right and one all wrong: which mode wins depends on the prompts."""
    texts = (recording_of(NEW), recording_of(NEW, lambda number: NEVER, "hand-1", (3, 2, 1), salt=5))
    alike = (recording_of(NEW), recording_of(NEW, name="hand-1", prompt=(3, 2, 1), salt=5))
    (tmp_path / "hand.toml").write_text(PACE)
    decided = {}
    for name, recordings in (("mixed", texts), ("alike", alike)):
        tape_of(*recordings).save(tmp_path / f"{name}.json")
        grid = settings(rtt=20, verify=30, thin=0, max_new_tokens=NEW)
        result, report = run(tmp_path / f"{name}.json", "sweep", *grid, *TREES, "--set", "mode=stop-and-wait")
        (point,) = report["points"]
        decided[name] = point["decided"]
        assert point["decided"] == (point["lead_ci95"][0] > 1)
        assert ("within the 95 % interval" in result.output) is (name == "mixed")
    assert decided == {"mixed": False, "alike": True}


@pytest.mark.parametrize(("option", "value"), [("--set", "rtt=5,x"), ("--set", "verify=60,6"), ("--set", "thin=0,2")])
def test_a_grid_is_numbers_in_order(tape, option, value):
    result, _ = run(tape, "sweep", option, value, "--set", f"max-new-tokens={NEW}")
    assert isinstance(result.exception, UsageError)
