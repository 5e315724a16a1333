"""The report on the embedded pair: measured once, gone on with, written the same again, refused where it cannot be."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper import measurement
from outrider_lab.paper import setup as paper
from outrider_lab.paper.exhibits import EXHIBITS
from outrider_lab.paper.measurement import KEPT, Measurement, MeasurementError, settings, take_all
from outrider_lab.paper.setup import QUICK, WHOLE, paper_setup
from outrider_proto.errors import UsageError

COMMAND = [sys.executable, "-c", "from outrider_lab.cli.app import main; main()"]
ONE_TABLE = ("paper", "--quick", "--table", "moa-a5", "--out")
PAPERS, QUESTIONS = Path(__file__).parents[3] / "docs" / "papers", "docs/papers/questions.jsonl"
IMAGE = re.compile(r"base64,[^\"]*")
SHOWN = ("drafters", *settings(families="math", per_family=1, repetitions=1, max_new_tokens=4), "--drafter", "lookup")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_exhibits_have_their_own_names_and_say_what_differs():
    setup = paper_setup(None, (), None, quick=False)
    assert all(exhibit.name == name for name, exhibit in EXHIBITS.items())
    assert all(exhibit.differs for exhibit in EXHIBITS.values())
    needed = [one for exhibit in EXHIBITS.values() for one in exhibit.needs(setup)]
    # One name stands for one command, so that exhibits share it.
    assert len({one.name for one in needed}) == len(set(needed))
    listed = run("paper", "--list").output
    assert all(name in listed for name in EXHIBITS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_report_has_every_exhibit(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "QUICK", replace(QUICK, new_tokens=3))  # what it writes is not looked at
    out = tmp_path / "out"
    assert run("paper", "--quick", "--out", out).exit_code == 0
    html = (out / "report.html").read_text()
    for name, exhibit in EXHIBITS.items():
        if exhibit.needs(paper_setup(None, (), None, quick=True)):
            assert f'id="{name}"' in html
            assert len((out / "csv" / f"{name}-1.csv").read_text().splitlines()) > 1
    assert html.count("data:image/png;base64,") >= 3
    assert "ANSWERS DIFFER" not in html
    assert "No answer differs" in html


@pytest.mark.slow
def test_a_report_that_is_told_to_end_takes_its_command_along(tmp_path):
    kept = "drafters-own-trees.begun-*.json.partial"
    command = [*COMMAND, *ONE_TABLE, str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        give_up_at = time.monotonic() + 240
        while not list((tmp_path / "json").glob(kept)) and process.poll() is None and time.monotonic() < give_up_at:
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) != 0
        while has_processes(process.pid):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


def test_a_report_on_a_file_of_questions_that_has_changed_is_measured_again(tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"category": "math", "turns": ["Add 1 and 2."]}')
    one = Measurement("one", (*SHOWN, "--set", f"questions={questions}"))
    report = take_all([one], tmp_path / "json")["one"]
    assert one.taken(tmp_path / "json") == report
    questions.write_text('{"category": "math", "turns": ["Add 17 and 5."]}')
    assert one.taken(tmp_path / "json") is None


@pytest.mark.parametrize(("content", "said"), [("{", "cannot be read as JSON"), ("[]", "no report of outrider-bench")])
def test_a_file_that_is_no_report_is_refused_in_one_line(tmp_path, content, said):
    (tmp_path / "one.json").write_text(content)
    with pytest.raises(UsageError, match=said):
        take_all([Measurement("one", SHOWN)], tmp_path)
    assert (tmp_path / "one.json").read_text() == content


def test_what_an_interrupted_command_has_left_is_gone_on_with_and_that_of_another_one_removed(tmp_path):
    one, other = Measurement("one", (*SHOWN, "--nonsense")), Measurement("one", (*SHOWN, "--other-nonsense"))
    left = Path(f"{one.begun(tmp_path)}.json.partial")
    left.write_text("kept")
    with pytest.raises(MeasurementError, match="ended with 2"):
        take_all([one], tmp_path)
    assert left.exists()
    with pytest.raises(MeasurementError):
        take_all([other], tmp_path)
    assert not left.exists()


def test_what_is_not_timed_runs_side_by_side_after_what_is(tmp_path, capfd):
    both = [Measurement(name, SHOWN, timed=False) for name in ("one", "other")]
    reports = take_all([*both, Measurement("timed", SHOWN)], tmp_path, at_once=2)
    assert list(reports) == ["one", "other", "timed"]
    said = capfd.readouterr().err
    timed, one, other = (said.index(f"{name}: outrider-bench drafters") for name in ("timed", "one", "other"))
    assert timed < one < other
    # What each says comes when it has ended: both had begun by then.
    assert "plain loop" not in said[one:other]
    assert said[other:].count("in process, one answer at a time") == 2
    assert not list(tmp_path.glob("*.log"))


def test_what_a_measurement_needs_is_made_first_and_found_by_it(tmp_path):
    tape, short = ("--tape", f"{KEPT}.tape.json.gz"), ("--set", "max-new-tokens=4")
    recorded = ("record", *tape, "--set", "prompts=1", "--drafter", "moa", *short)
    swept = ("sweep", *tape, *settings(rtt=5, verify=6, thin=0, mode="stop-and-wait"), *short)
    measurement = Measurement("modes", swept, first=recorded)
    report = take_all([measurement], tmp_path)["modes"]
    assert [point["rtt_ms"] for point in report["points"]] == [5]
    assert [path.name for path in tmp_path.iterdir()] == ["modes.json"]  # the tape is gone: it is large
    assert measurement.command.startswith("outrider-lab record --tape")
    assert " && outrider-lab sweep --tape" in measurement.command
    assert measurement.taken(tmp_path) is not None
    with pytest.raises(MeasurementError, match="ended with 2"):
        take_all([Measurement("modes", swept, first=(*recorded, "--nonsense"))], tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "moa-table-22"), "table='moa-table-22': did you mean moa-table-2?"),
        (("--drafter", "eagle2"), "drafter='eagle2': need ROLE=DRAFTER"),
        (("--target", "smollm2"), "target=smollm2: its own prompts come only with the embedded target"),
        ((), "where to: need --out DIR, or --list"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, message, tmp_path):
    out = ("--out", str(tmp_path / "out")) if options else ()
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["paper", *options, *out], catch_exceptions=False)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_a_drafter_takes_the_place_of_the_one_that_ships_for_its_role():
    setup = paper_setup(None, ("eagle2=somewhere/mine,tli=1", "moa_nolsa=other"), None, quick=False)
    assert setup.roles["moa"] == "moa"
    assert setup.roles["eagle2"] == "somewhere/mine,tli=1"
    assert setup.label("eagle2") == "mine,tli=1"
    assert setup.present("moa_nolsa", "moa_tli3", "lookup") == ["moa_nolsa", "lookup"]
    quick = paper_setup(None, (), None, quick=True)
    assert quick.extent is QUICK
    assert quick.present("independent", "eagle2") == ["eagle2"]
    assert setup.extent is WHOLE


def test_of_another_target_its_own_drafters_answer_the_users_questions(tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('"Who are you?"\n')
    setup = paper_setup("smollm2", (), Path(questions), quick=False)
    assert setup.roles["eagle3"] == "smollm2/eagle3"
    comparison = setup.comparison("one", ["eagle3"], families="code")
    assert comparison.arguments[:5] == ("drafters", "--target", "smollm2", "--set", f"questions={questions}")
    assert "families=code" not in comparison.arguments
    # The corpus' code is asked of the embedded target only.
    assert not EXHIBITS["moa-table-4"].needs(setup)


@pytest.fixture
def written_only(tmp_path, monkeypatch):
    """Nothing is measured: the reports in docs are there."""
    # Their commands name the questions from the repository, and what was trained from the user's home.
    monkeypatch.chdir(PAPERS.parents[1])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setattr(
        measurement, "_take", lambda missing, *_: pytest.fail(f"measured: {missing}") if missing else {}
    )


@pytest.mark.usefixtures("written_only")
def test_a_report_that_says_that_an_answer_differs_is_kept_and_ends_the_command_with_1(tmp_path):
    shutil.copytree(PAPERS / "embedded" / "json", tmp_path / "json")
    path = tmp_path / "json" / "drafters-own-trees.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"paper_failed": True}))
    assert run("paper", "--table", "moa-a5", "--out", tmp_path).exit_code == 1
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("written_only")
@pytest.mark.parametrize("options", [("embedded",), ("smollm2", "--target", "smollm2", "--questions", QUESTIONS)])
def test_the_reports_in_docs_are_written_again_from_their_json(options, tmp_path):
    name, *target = options
    shutil.copytree(PAPERS / name / "json", tmp_path / "json")
    assert run("paper", *target, "--out", tmp_path).exit_code == 0
    for path in (PAPERS / name / "csv").iterdir():
        assert (tmp_path / "csv" / path.name).read_text() == path.read_text()
    # The pictures' bytes are those of one version of matplotlib.
    said, again = (IMAGE.sub("", (folder / "report.html").read_text()) for folder in (PAPERS / name, tmp_path))
    assert again == said
