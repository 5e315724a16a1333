"""Whole runs of `outrider-bench network`: killed and resumed ones, and prompts that are cold in every one."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.network import link_endpoint
from outrider_proto.errors import UsageError

COMMAND = [sys.executable, "-c", "from outrider_bench.cli.app import main; main()", "network"]
SMALL = ("--profile", "none", "--mode", "stop-and-wait", "--prompts", "4", "--runs", "2", "--set", "max-new-tokens=6")
ANSWERS = 4 * 2 * 3
# A row of a prompt beyond the first 64 costs 1 ms: a prompt of 256 tokens takes 0.2 s unless its K/V are there.
PACE = "source = 'made up'\nverify_ms = 3\ndraft_level_ms = 1\nserver_level_ms = 1\nrow_us = 1000\n"
START_S = 120.0

pytestmark = pytest.mark.slow


def network(*options: object) -> None:
    result = CliRunner().invoke(app, ["network", *map(str, options)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


def answers(file: Path) -> list[dict]:
    """The answers in a file of rows; the last line may not be whole."""
    text = file.read_text() if file.exists() else ""
    rows = [json.loads(line) for line in text.split("\n")[:-1]]
    return [row["row"] for row in rows if "answer" in row.get("row", {})]


@contextmanager
def running_until(count: int, report: Path, rows: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a process group of its own, with its server, and wait until `count` answers are recorded."""
    command = [*COMMAND, *SMALL, "--json", str(report)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            give_up_at = time.monotonic() + START_S
            while len(answers(rows)) < count and process.poll() is None and time.monotonic() < give_up_at:
                time.sleep(0.01)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_run_that_was_killed_goes_on_and_its_report_is_computed_from_all_rows(tmp_path):
    report, rows, table = (tmp_path / name for name in ("run.json", "run.json.partial", "run.csv"))
    with running_until(5, report, rows) as process:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = answers(rows)
    assert 5 <= len(before) < ANSWERS
    assert not report.exists()
    with pytest.raises(UsageError, match="max_new_tokens=7 here, 6 there"):
        network(*SMALL, "--json", report, "--set", "max-new-tokens=7")
    assert answers(rows) == before

    network(*SMALL, "--json", report, "--csv", table)
    assert not rows.exists()
    resumed = json.loads(report.read_text())
    assert resumed["mismatches"] == 0
    of_report = resumed["cases"][0]["answers"]
    slots = [(row["run"], row["place"], row["way"]) for row in of_report]
    assert len(slots) == len(set(slots)) == ANSWERS
    assert resumed["round_trip"]["pings"] == sum(row["pings"] for row in of_report) >= ANSWERS * 10
    with table.open(newline="") as file:
        in_table = list(csv.DictReader(file))
    assert [row["decode_ms"] for row in in_table] == [str(row["decode_ms"]) for row in of_report]
    # Those of before were not asked again.
    kept = {(one["slot"]["run"], one["slot"]["place"], one["slot"]["way"]): one["answer"] for one in before}
    for row in of_report:
        if answer := kept.get((row["run"], row["place"], row["way"])):
            arrivals = answer["arrivals"]
            assert row["decode_ms"] == arrivals[-1]["at_ms"] - arrivals[0]["at_ms"]


def test_a_run_that_is_told_to_end_takes_its_server_along_and_says_how_to_go_on(tmp_path):
    report, rows = tmp_path / "run.json", tmp_path / "run.json.partial"
    with running_until(2, report, rows) as process:
        process.terminate()
        _, said = process.communicate(timeout=60)
        with pytest.raises(ProcessLookupError):  # nobody is left in its group
            os.killpg(process.pid, 0)
    assert process.returncode not in (0, -signal.SIGTERM)
    assert f"{len(answers(rows)) + 1} rows are kept: the same command goes on" in said  # the case is one


@pytest.fixture
def few_pings(monkeypatch):
    """Ping less where a test is not about the round trip: 200 pings take a run at least two seconds."""
    monkeypatch.setattr(link_endpoint, "PINGS_A_RUN", 6)


def test_every_way_meets_every_prompt_of_every_run_cold(tmp_path, few_pings):
    report, pace = tmp_path / "run.json", tmp_path / "rows.toml"
    pace.write_text(PACE)
    cold = ("--pace", pace, "--profile", "none", "--prompts", "2", "--runs", "2", "--set", "prompt_tokens=384")
    network(*cold, "--set", "max-new-tokens=4", "--mode", "stop-and-wait", "--json", report)
    measured = json.loads(report.read_text())
    assert measured["ways"].keys() == {"stream", "server-draft", "stop-and-wait"}
    for row in measured["cases"][0]["answers"]:
        assert row["held_tokens"] < 16  # the template's head, which all prompts share
        # A row takes a millisecond, but for 64 of each pass. No pass is very long: the client before may be back.
        assert row["ttft_ms"] > (row["prompt_tokens"] - row["held_tokens"]) / 3
        assert row["ttft_warm_ms"] < row["ttft_ms"] - 100
    for metrics in measured["ways"].values():
        assert metrics["ttft_warm_ms"] < metrics["ttft_ms"] - 100
        first, second = (run["ttft_ms"] for run in metrics["runs"])
        assert second == pytest.approx(first, rel=0.5)
