"""The lab's studies go on where they were killed, and are shown again from their reports alone."""

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from outrider_bench.harness.study import Study
from outrider_lab.cli.app import STUDIES, app
from outrider_lab.paper.measurement import settings

SHORT = settings(families="code,math", per_family=1, max_new_tokens=3)
COMMAND = [sys.executable, "-c", "from outrider_lab.cli.app import main; main()"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", [command.name for command in app.registered_commands])
def test_every_command_has_help_for_every_option(name):
    result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    command = next(command for command in app.registered_commands if command.name == name)
    assert (command.callback.__doc__ or "").split("\n")[0].split()[0] in result.output


@pytest.mark.parametrize(
    ("command", "options", "draws"),
    [
        ("staleness", (*SHORT, "--drafter", "moa", "--drafter", "independent"), True),
        ("eval", (*SHORT, *settings(code=2, tau_per_family=1), "--drafter", "eagle2"), False),
        ("depth-sweep", (*SHORT, "--drafter", "eagle2", "--levels", 2, "--set", "repetitions=1"), True),
        ("routing", (*SHORT, "--set", "repetitions=1"), False),
    ],
)
def test_a_report_shows_the_same_tables_and_plot_again(tmp_path, command, options, draws):
    report, first, again = (tmp_path / name for name in ("report.json", "first.png", "again.png"))
    measured = run(command, *options, "--json", report, *(settings(plot=first) if draws else ()))
    assert measured.exit_code == 0, measured.output
    shown = run("show", report, *(("--plot", again) if draws else ()))
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == measured.stderr
    assert len(shown.stderr.splitlines()) > 4
    assert not draws or first.read_bytes() == again.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"report.json"} | (
        {"first.png", "again.png"} if draws else set()
    )


def counted(report: object) -> object:
    """The report without what is timed, and how it was made."""
    if isinstance(report, list):
        return [counted(one) for one in report]
    if not isinstance(report, dict):
        return report
    # The last features of an answer come or not, and a pipelined client drafts more or less, as time will have it;
    # what a client sends up may be a byte longer on a busy machine.
    timed = ("made_by", "speeds", "seconds", "bytes_down_per_token", "bytes_up_per_token", "drafted")
    return {name: counted(one) for name, one in report.items() if name not in timed and not name.startswith("draft_ms")}


@pytest.mark.slow
def test_a_killed_study_goes_on_and_reports_as_an_undisturbed_one(tmp_path):
    command, options = "eval", (*SHORT, *settings(code=2, tau_per_family=1), "--drafter", "eagle2", "--drafter", "moa")
    report, partial, undisturbed = (tmp_path / name for name in ("a.json", "a.json.partial", "b.json"))
    process = subprocess.Popen([*COMMAND, command, *map(str, options), "--json", str(report)])
    give_up_at = time.monotonic() + 120
    while not (partial.exists() and partial.read_bytes().count(b"\n") > 1):
        assert process.poll() is None
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = run(command, *options, "--json", report)
    assert resumed.exit_code == 0, resumed.output
    assert "rows are there already" in resumed.stderr
    assert run(command, *options, "--json", undisturbed).exit_code == 0
    found, expected = (counted(json.loads(path.read_text())) for path in (report, undisturbed))
    assert found == expected


def test_options_that_draw_have_a_study_that_draws():
    for command in STUDIES:
        draws = command.study.plot is not Study.plot
        assert draws == ("plot" in command.options.__dataclass_fields__), command.name
