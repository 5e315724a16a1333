"""A replay beside a small real report, made by `outrider-bench network --profile paper-5g --profile paper-4g --families
code,math --prompts 2 --runs 2 --max-new-tokens 24` with trees of four levels: what is in sample, and what is not."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.network.intervals import DecodedPrompts
from outrider_bench.virtual.real_report import real_cases
from outrider_proto.errors import UsageError

DATA = Path(__file__).parent / "data"
REPORT, TAPE = DATA / "report.json", DATA / "tape.json.gz"
OPTIONS = ("--codec", "lean", "--breadth", 1, "--levels", 4, "--budget", 4, "--runs", 1, "--tolerance", 0.5)
WAYS = ("--mode", "stop-and-wait", "--mode", "proactive")


def run(tmp_path, *options):
    out = tmp_path / "out.json"
    command = ["virtual", "--tape", TAPE, *OPTIONS, *WAYS, "--json", out, *options]
    result = CliRunner().invoke(app, list(map(str, command)))
    return result, json.loads(out.read_text()) if out.exists() else {}


def samples(report):
    return {(one["profile"], one["sample"]) for one in report["against"]}


def test_a_report_judged_by_itself_is_in_sample_and_so_is_a_copy_of_it(tmp_path):
    copy = shutil.copy(REPORT, tmp_path / "another-name.json")
    for judge in (REPORT, copy):
        result, report = run(tmp_path, "--overhead", REPORT, "--against", judge)
        assert result.exit_code == 0, result.output
        assert samples(report) == {("paper-5g", "in sample"), ("paper-4g", "in sample")}
        assert report["samples"]["out_of_sample"] is None
        assert report["samples"]["in_sample"]["rows"] == 8
        assert "in sample: worst" in result.output
        assert "out of sample" not in result.output


def test_what_was_fitted_on_one_link_is_out_of_sample_on_another(tmp_path):
    result, report = run(tmp_path, "--overhead", f"{REPORT},case=paper-4g", "--against", REPORT)
    assert samples(report) == {("paper-5g", "out of sample"), ("paper-4g", "in sample")}
    assert {tuple(one["fitted_on"]) for one in report["against"]} == {("paper-4g",)}
    lines = [line.partition(":")[0] for line in result.output.splitlines() if "sample: worst" in line]
    assert lines == ["out of sample", "in sample"]
    assert report["overhead"]["exchange_ms"] > 0


def test_leave_one_out_never_fits_on_the_link_that_judges(tmp_path):
    _, report = run(tmp_path, "--overhead", "leave-one-out", "--against", REPORT)
    assert samples(report) == {("paper-5g", "out of sample"), ("paper-4g", "out of sample")}
    assert report["samples"]["in_sample"] is None
    _, other = run(tmp_path, "--overhead", f"{REPORT},case=paper-4g", "--against", REPORT)
    assert report["overheads"]["paper-5g"] == other["overheads"]["paper-5g"]
    deviations = [abs(one["deviation"]) for one in report["against"]]
    assert abs(report["samples"]["out_of_sample"]["worst"]) == max(deviations) < 0.25


@pytest.mark.parametrize(("judge", "sample"), [("even", "out of sample"), ("2", "out of sample"), ("1+2", "in sample")])
def test_runs_of_one_report_may_fit_and_others_judge(tmp_path, judge, sample):
    _, report = run(tmp_path, "--overhead", f"{REPORT},runs=odd", "--against", f"{REPORT},case=paper-5g,runs={judge}")
    assert samples(report) == {("paper-5g", sample)}
    assert report["overheads"]["paper-5g"]["fitted_on"][0]["runs"] == [1]


def test_without_overhead_nothing_was_fitted(tmp_path):
    _, report = run(tmp_path, "--against", f"{REPORT},case=paper-4g")
    assert samples(report) == {("paper-4g", "out of sample")}
    assert report["against"][0]["fitted_on"] == []


def answers(way, run, *ms):
    """Rows of a report: ten tokens in so many ms for each prompt."""
    rows = [{"way": way, "run": run, "decoded_tokens": 10, "decode_ms": took} for took in ms]
    return [row | {"place": place} for place, row in enumerate(rows)]


def test_a_deviation_inside_the_real_interval_is_said_to_be(tmp_path):
    content = json.loads(REPORT.read_text())
    (case,) = (case for case in content["cases"] if case["profile"] == "paper-5g")
    case["answers"] = [*answers("stream", 0, 250, 450), *answers("stream", 1, 300, 400)]
    case["answers"] += [*answers("proactive", 0, 500, 510), *answers("proactive", 1, 505, 515)]
    real = tmp_path / "real.json"
    real.write_text(json.dumps(content))
    _, report = run(tmp_path, "--against", f"{real},case=paper-5g")
    inside = {one["way"]: one["inside"] for one in report["against"]}
    assert inside == {"stream": True, "server-draft": None, "stop-and-wait": None, "proactive": False}
    low, high = next(one["real_ci95"] for one in report["against"] if one["way"] == "proactive")
    assert 1e4 / 515 <= low < high <= 1e4 / 500
    assert report["samples"]["out_of_sample"]["inside"] == 1
    assert report["samples"]["out_of_sample"]["with_interval"] == 2


def test_a_deviation_is_taken_prompt_by_prompt():
    """Prompts differ by half, and the replay is 10 % faster at each: the deviation has no reach, the speed has."""
    real = DecodedPrompts(np.full((2, 3), 10.0), np.array([[100.0, 200.0, 300.0]] * 2))
    replayed = DecodedPrompts(np.full((5, 3), 10.0), np.array([[100.0, 200.0, 300.0]] * 5) / 1.1)
    assert replayed.ratio_ci95(real) == pytest.approx((1.1, 1.1))
    low, high = real.speed_ci95
    assert low < 50 < high


def test_answers_of_a_report_that_lacks_some_give_no_interval(tmp_path):
    content = json.loads(REPORT.read_text())
    content["cases"][0]["answers"] = [*answers("stream", 0, 250, 450), *answers("stream", 1, 330)]
    (tmp_path / "real.json").write_text(json.dumps(content))
    assert real_cases([f"{tmp_path / 'real.json'},case=paper-5g"])[0].decoding("stream") is None


def test_the_interval_is_that_of_the_runs_taken(tmp_path):
    content = json.loads(REPORT.read_text())
    content["cases"][0]["answers"] = [*answers("stream", 0, 250, 450), *answers("stream", 1, 330, 350)]
    real = tmp_path / "real.json"
    real.write_text(json.dumps(content))
    first, second = (real_cases([f"{real},case=paper-5g,runs={n}"])[0].decoding("stream").speed_ci95 for n in (1, 2))
    assert first == pytest.approx((1e4 / 450, 1e4 / 250))
    assert second == pytest.approx((1e4 / 350, 1e4 / 330))


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--overhead", f"{REPORT},case=lan"), "no case lan"),
        (("--overhead", f"{REPORT},run=1"), "need case=PROFILE or runs="),
        (("--against", f"{REPORT},runs=3"), "there are runs 1 to 2"),
        (("--against", f"{REPORT},case=paper-5g", "--overhead", "leave-one-out"), "no case of another profile"),
        (("--against", REPORT, "--overhead", "leave-one-out", "--overhead", REPORT), "name no others"),
        (("--overhead", "leave-one-out"), "by --against"),
        (("--against", DATA / "none.json"), "cannot read"),
    ],
)
def test_wrong_choices_say_what_to_do(tmp_path, options, remedy):
    result, _ = run(tmp_path, *options)
    assert isinstance(result.exception, UsageError)
    assert remedy in str(result.exception)


@pytest.mark.parametrize("content", ["{}", "no json", '{"cases": [{"profile": "lan"}]}', '{"cases": [{"ways": {}}]}'])
def test_other_files_are_no_reports(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(UsageError, match="not a report of outrider-bench network"):
        real_cases([str(tmp_path / "other.json")])
