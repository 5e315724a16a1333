"""Routing measured on the embedded pair."""

import json

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.studies.drafters.routing import routing_variants


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("routing") / "report.json"
    command = ["routing", "--per-family", "1", "--max-new-tokens", "12", "--gate", "0.5", "--json", str(path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


def test_every_variant_is_exact(report):
    assert list(report["ways"]) == list(routing_variants(("a/eagle2_math", "b/eagle2_chat"), 0.5))
    assert all(variant["mismatches"] == 0 and variant["overall"] > 1 for variant in report["ways"].values())


def test_what_the_second_head_costs(report):
    alone, apart, batch, _, gated, gated_batch = (
        variant for name, variant in report["ways"].items() if "head 2" not in name
    )
    assert alone["extra_drafts"] == 0.0
    assert apart["extra_drafts"] == batch["extra_drafts"] == 1.0  # the routing report's +100 %
    assert apart["passes_per_1000_tokens"] == pytest.approx(2 * batch["passes_per_1000_tokens"])
    assert apart["tau"] == batch["tau"]
    assert 0 < gated["skipped"] == pytest.approx(1 - gated["extra_drafts"])
    assert gated_batch["extra_drafts"] == gated["extra_drafts"]
    assert alone["confidence"]["accepted"] > alone["confidence"]["rejected"]


def test_missing_heads_are_refused():
    result = CliRunner().invoke(app, ["routing", "--heads", "/nowhere", "/neither"])
    assert result.exit_code != 0
    assert "/nowhere" in str(result.exception)
