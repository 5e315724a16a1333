"""Whole runs of `outrider-bench network`: killed and resumed ones, and prompts that are cold in every one."""

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
from outrider_bench.network import pings
from outrider_proto.errors import UsageError

COMMAND = [sys.executable, "-c", "from outrider_bench.cli.app import main; main()", "network"]
SMALL = ("--profile", "none", "--mode", "stop-and-wait", "--prompts", "4", "--runs", "2", "--max-new-tokens", "6")
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


def answers(file: Path) -> list[str]:
    """The lines of whole answers in a file of records."""
    text = file.read_text() if file.exists() else ""
    return [line for line in text.split("\n")[:-1] if line.startswith('{"answer"')]


@contextmanager
def running_until(count: int, report: Path, records: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a process group of its own, with its server, and wait until `count` answers are recorded."""
    command = [*COMMAND, *SMALL, "--json", str(report)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            give_up_at = time.monotonic() + START_S
            while len(answers(records)) < count and process.poll() is None and time.monotonic() < give_up_at:
                time.sleep(0.01)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_run_that_was_killed_is_resumed_and_its_report_computed_from_all_records(tmp_path):
    report, records, table = (tmp_path / name for name in ("run.json", "run.records.jsonl", "run.csv"))
    with running_until(5, report, records) as process:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = answers(records)
    assert 5 <= len(before) < ANSWERS
    assert not report.exists()
    with pytest.raises(UsageError, match="answers of an unfinished run: continue with --resume"):
        network(*SMALL, "--json", report)
    with pytest.raises(UsageError, match="max_new_tokens=7 here, 6 there"):
        network(*SMALL, "--json", report, "--resume", "--max-new-tokens", "7")

    network(*SMALL, "--json", report, "--resume", "--records", table)
    lines = answers(records)
    assert lines[: len(before)] == before
    slots = [(entry["slot"]["run"], entry["slot"]["place"], entry["slot"]["way"]) for entry in map(_answer, lines)]
    assert len(slots) == len(set(slots)) == ANSWERS
    resumed = json.loads(report.read_text())
    assert resumed["mismatches"] == 0
    assert len(resumed["cases"][0]["answers"]) == ANSWERS
    assert resumed["round_trip"]["pings"] == sum(len(entry["pings_ms"]) for entry in map(_answer, lines))
    assert resumed["round_trip"]["pings"] >= ANSWERS * 10
    assert len(table.read_text().splitlines()) == 1 + ANSWERS

    # Nothing is left to measure: no server is started, and the report of the same records is the same.
    network(*SMALL, "--json", report, "--resume")
    assert answers(records) == lines
    assert _figures(json.loads(report.read_text())) == _figures(resumed)


def test_a_run_that_is_told_to_end_takes_its_server_along_and_says_how_to_go_on(tmp_path):
    report, records = tmp_path / "run.json", tmp_path / "run.records.jsonl"
    with running_until(2, report, records) as process:
        process.terminate()
        _, said = process.communicate(timeout=60)
        with pytest.raises(ProcessLookupError):  # nobody is left in its group
            os.killpg(process.pid, 0)
    assert process.returncode not in (0, -signal.SIGTERM)
    assert f"{len(answers(records))} answers are kept: the same command with --resume goes on" in said


@pytest.fixture
def few_pings(monkeypatch):
    """Ping less where a test is not about the round trip: 200 pings take a run at least two seconds."""
    monkeypatch.setattr(pings, "PINGS_A_RUN", 6)


def test_every_way_meets_every_prompt_of_every_run_cold(tmp_path, few_pings):
    report, pace = tmp_path / "run.json", tmp_path / "rows.toml"
    pace.write_text(PACE)
    cold = ("--pace", pace, "--profile", "none", "--prompts", "2", "--runs", "2", "--prompt-tokens", "384")
    network(*cold, "--max-new-tokens", "4", "--mode", "stop-and-wait", "--json", report)
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


def test_an_experiment_file_has_a_case_per_link_and_seed(tmp_path, few_pings):
    report, file = tmp_path / "run.json", tmp_path / "links.toml"
    file.write_text(
        'profiles = ["none", "lan"]\nseeds = [1, 5]\nmodes = ["stop-and-wait"]\nengine = "proxy"\n'
        'prompts = 3\nmax_new_tokens = 8\nfamilies = ["qa"]\n'
    )
    network("--experiment", file, "--prompts", "1", "--json", report)
    cases = json.loads(report.read_text())["cases"]
    assert [(case["profile"], case["seed"]) for case in cases] == [("none", 1), ("none", 5), ("lan", 1), ("lan", 5)]
    assert all((case["families"], case["prompts"], case["mismatches"]) == (["qa"], 1, 0) for case in cases)
    assert [case["engine"] for case in cases] == ["none", "none", "proxy", "proxy"]
    assert len((tmp_path / "run.records.jsonl").read_text().splitlines()) == 1 + 4 + 4 * 3 + 1


def _answer(line: str) -> dict:
    return json.loads(line)["answer"]


def _figures(report: dict) -> dict:
    return {key: value for key, value in report.items() if key != "made_by"}
