"""The cost of verifying: all sizes on the same context, and the report. Times themselves are not tested."""

import json

import pytest
import torch
from golden_pairs import GOLDEN, target
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.studies.pair.verify_cost import SIZES, _StaticCachePass, _tokens, verify_costs
from outrider_proto.errors import UsageError
from outrider_server.engine.hf_model import eager_attention

from ....marks import needs_int8


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


def test_a_pass_over_many_sessions_is_measured_beside_transformers_own(monkeypatch):
    served, seen = target("target_tiny"), []
    monkeypatch.setattr(served.model.model, "forward", seeing(served.model.model.forward, seen))
    costs = verify_costs(served, 40, 2, sessions=3, control=True)
    assert {cost.sessions for cost in costs} == {3}
    assert all(cost.static_ms > 0 and cost.static_ratio > 0 for cost in costs)
    own = [rows for rows in seen if rows[0] == 3]  # a batch, where the server has one row of tokens
    assert own[0] == (3, 40)
    assert {(3, size) for size in SIZES} == set(own[1:])


def seeing(forward, seen):
    def run(input_ids, **more):
        seen.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **more)

    return run


def test_a_static_cache_begins_every_pass_where_the_context_ends():
    """Its answers are those of a pass over the whole text."""
    served = target("target_tiny")
    cached = _StaticCachePass(served, 2, 40)
    for size in (8, 3, 8):
        cached.seconds(size)
    text = [*_tokens(served, 40, 1), *_tokens(served, 8, 1)]
    with torch.inference_mode(), eager_attention(served.model):
        expected = served.model(torch.tensor([text]), use_cache=True).past_key_values.layers[-1].keys[0]
    torch.testing.assert_close(cached._cache.layers[-1].keys[1, :, :48], expected, atol=1e-4, rtol=1e-4)


def test_a_context_that_leaves_no_room_is_refused():
    room = target("target_tiny").max_context - 65
    with pytest.raises(UsageError, match=f"context={room + 1}: need 1 to {room}"):
        verify_costs(target("target_tiny"), room + 1, 1)


@pytest.mark.parametrize(
    "more",
    [(), *(pytest.param(more, marks=needs_int8) for more in (("--dtype", "int8"), ("--dtype", "int8", "--random")))],
    ids=str,
)
def test_the_command_reports_and_draws(more, tmp_path):
    report, picture = tmp_path / "cost.json", tmp_path / "cost.png"
    options = ["--target", GOLDEN / "target_tiny", "--context", 9, "--set", "repeats=1", *more]
    options += ["--json", report, "--plot", picture]
    result = CliRunner().invoke(app, ["verify-cost", *map(str, options)])
    assert result.exit_code == 0, result.output
    told = json.loads(report.read_text())
    assert (told["target"].partition(",")[0], told["context"], told["device"]) == ("target_tiny", 9, "cpu")
    assert told["dtype"] == ("int8" if "int8" in more else "float32")
    assert [cost["tokens"] for cost in told["costs"]] == list(SIZES)
    assert told["made_by"]["processor"]
    assert picture.stat().st_size > 5000
