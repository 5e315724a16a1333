"""The cost of verifying: all sizes on the same context, and the report. Times themselves are not tested."""

import json

import pytest
from golden_pairs import GOLDEN, target
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.studies.pair.verify_cost import SIZES, verify_costs
from outrider_proto.errors import UsageError


def test_every_size_is_measured_on_the_same_context(monkeypatch):
    seen = []
    forward = type(target("target_tiny")).forward

    def watched(self, tokens, positions, *more):
        seen.append((len(tokens), positions[0], positions[-1]))
        return forward(self, tokens, positions, *more)

    monkeypatch.setattr(type(target("target_tiny")), "forward", watched)
    rounds = []
    costs = verify_costs(target("target_tiny"), 40, 2, lambda: rounds.append(1))
    assert seen[0] == (40, 0, 39)
    assert len(rounds) == 2
    assert {(size, 40, 39 + size) for size in SIZES} == set(seen[1:])
    assert [cost.tokens for cost in costs] == list(SIZES)
    assert costs[0].ratio == 1.0
    assert all(cost.fastest_ms <= cost.median_ms <= cost.slowest_ms for cost in costs)


def test_a_context_that_leaves_no_room_is_refused():
    room = target("target_tiny").max_context - 65
    with pytest.raises(UsageError, match=f"context={room + 1}: need 1 to {room}"):
        verify_costs(target("target_tiny"), room + 1, 1)


def test_the_command_reports_and_draws(tmp_path):
    report, picture = tmp_path / "cost.json", tmp_path / "cost.png"
    options = ["--target", GOLDEN / "target_tiny", "--context", 9, "--repeats", 1, "--json", report, "--plot", picture]
    result = CliRunner().invoke(app, ["verify-cost", *map(str, options)])
    assert result.exit_code == 0, result.output
    told = json.loads(report.read_text())
    assert (told["target"], told["context"], told["device"]) == ("target_tiny", 9, "cpu")
    assert [cost["tokens"] for cost in told["costs"]] == list(SIZES)
    assert told["made_by"]["processor"]
    assert picture.stat().st_size > 5000
