"""`outrider-bench network` whole: a server process, a link, a client; and its refusals."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_proto.errors import UsageError

KEYS = {"tokens_per_second", "mean_acceptance_length", "rtt_ms", "verify_ms", "ttft_ms", "bytes_down_per_token"}


def network(*options: str, code: int = 0) -> None:
    result = CliRunner().invoke(app, ["network", *options])
    assert result.exit_code == code, result.output


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("network")


@pytest.fixture(scope="module")
def report(directory) -> dict:
    options = ["--profile", "lan", "--set", "engine=proxy", "--mode", "stop-and-wait,levels=3", "--prompts", "2"]
    files = ["--json", str(directory / "report.json"), "--plot", str(directory / "report.png")]
    network(*options, "--set", "families=qa,math", "--set", "max-new-tokens=10", *files)
    assert (directory / "report.png").stat().st_size > 10_000
    return json.loads((directory / "report.json").read_text())


def test_a_mode_and_both_controls_are_measured_in_one_run(report):
    assert report["ways"].keys() == {"stream", "server-draft", "stop-and-wait,levels=3"}
    for metrics in (report, *report["controls"].values()):
        assert metrics.keys() >= KEYS
        assert metrics["tokens_per_second"] > 0
    assert report["controls"]["stream"]["mean_acceptance_length"] == 1.0
    assert 1 < report["mean_acceptance_length"] <= 4
    assert report["controls"]["server_draft"]["mean_acceptance_length"] > 1


def test_the_answers_are_the_stream_s_and_the_link_was_used(report):
    assert report["mismatches"] == 0
    assert report["packets_per_reply"] >= 1
    assert report["eta"] > 0
    assert report["controls"]["stream"]["eta"] is None
    assert report["rtt_ms"] > 0.2


def test_the_report_is_shown_again_with_its_tables_and_plot(report, directory):
    again = CliRunner().invoke(app, ["show", str(directory / "report.json"), "--plot", str(directory / "again.png")])
    assert again.exit_code == 0, again.output
    for shown in ("moa over lan (proxy), seed 1, R ", "by text", "ms of a token's time", "all answers the same"):
        assert shown in again.output
    assert (directory / "again.png").read_bytes() == (directory / "report.png").read_bytes()


def test_a_user_s_questions_are_asked_turn_by_turn_over_a_link(tmp_path):
    asked = [{"question_id": 81, "category": "math", "turns": ["1 + 1?", "And 2 + 2?"]}, {"prompt": "Left out."}]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    out, rows = tmp_path / "report.json", tmp_path / "rows.csv"
    options = ["--profile", "none", "--mode", "stop-and-wait", "--questions", str(tmp_path / "asked.jsonl")]
    files = ["--json", str(out), "--csv", str(rows)]
    network(*options, "--set", "families=math", "--drafter", "lookup", "--set", "max-new-tokens=4", *files)
    report = json.loads(out.read_text())
    assert (report["prompts"], report["families"], report["questions"]) == (2, ["math"], "asked.jsonl")
    assert report["mismatches"] == 0
    assert report["text"] == {}  # not easy, although the corpus has a family of that name that is
    first, second = (row for row in report["cases"][0]["answers"] if row["way"] == "stream")
    assert second["prompt_tokens"] > first["prompt_tokens"] + 4
    assert {row["text"] for row in report["cases"][0]["answers"]} == {""}


def test_client_and_server_get_a_core_each(tmp_path):
    if len(cores := os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    out = tmp_path / "report.json"
    options = ["--profile", "none", "--mode", "stop-and-wait", "--prompts", "1", "--set", "max-new-tokens=2"]
    network(*options, "--set", "cores_apart=true", "--json", str(out))
    report = json.loads(out.read_text())
    assert report["cores_apart"] is True
    assert report["mismatches"] == 0
    assert os.sched_getaffinity(0) == cores  # afterwards as before
    os.sched_setaffinity(0, {min(cores)})
    try:
        with pytest.raises(UsageError, match="cores_apart: need two cores"):
            CliRunner().invoke(app, ["network", *options, "--set", "cores_apart=true"], catch_exceptions=False)
    finally:
        os.sched_setaffinity(0, cores)


def test_prompts_that_leave_no_room_for_an_answer_are_refused():
    options = ["--set", "prompt_tokens=1000", "--prompts", "1", "--set", "max-new-tokens=128"]
    result = CliRunner().invoke(app, ["network", "--profile", "none", *options])
    assert isinstance(result.exception, UsageError)
    assert "the target's context leaves room for 896 before max_new_tokens=128" in str(result.exception)


def test_messages_are_measured_by_codec(tmp_path):
    out = tmp_path / "messages.json"
    sizes = ["--set", "table7=true", "--set", "codec=int8", "--set", "codec=float32", "--set", "max-new-tokens=12"]
    network("--drafter", "moa", *sizes, "--prompts", "1", "--json", str(out))
    small, large = json.loads(out.read_text())["messages"]
    assert small["draft"] == pytest.approx(large["draft"], rel=0.05)  # features may come too late for a draft
    assert small["draft"] > small["paper_up"] == 4 * small["nodes"]
    assert large["bytes_down_per_token"] > 2 * small["bytes_down_per_token"] > 0
    # Features that come late also shift tokens from one verdict to the next, so that a verdict has not the same rows.
    assert large["features"] > 1.5 * small["features"] > 0
    assert large["features"] > 4 * small["width"] * (small["accepted"] - 1)
