"""The report on edge weights."""

import json

from typer.testing import CliRunner

from outrider_lab.cli.app import app


def test_bundles_by_type_of_weights(tmp_path):
    """Smaller, and as exact: what a drafter drafts never changes the answer."""
    report = tmp_path / "report.json"
    few = ["--drafter", "moa", "--set", "weights=float32", "--set", "weights=int8", "--set", "per-family=1"]
    result = CliRunner().invoke(app, ["edge-weights", *few, "--json", str(report)])
    assert result.exit_code == 0, result.output
    full, small = json.loads(report.read_text())["edge_weights"]
    assert (full["weights"], small["weights"]) == ("float32", "int8")
    assert small["tensor_bytes"] < 0.35 * full["tensor_bytes"]
    assert full["not_exact"] == small["not_exact"] == 0
    assert min(full["ms_per_level"], small["ms_per_level"]) > 0
    assert 0.9 < small["mean_acceptance_length"] / full["mean_acceptance_length"] < 1.1
    assert result.stderr.count("int8") == 1
