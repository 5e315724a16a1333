"""The lab's studies go on where they were killed, and are shown again from their reports alone."""

import pytest
from typer.testing import CliRunner

from outrider_bench.harness.study import Study
from outrider_lab.cli.app import STUDIES, app
from outrider_lab.paper.measurement import settings

SHORT = settings(families="code,math", per_family=1, max_new_tokens=3)


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


def test_options_that_draw_have_a_study_that_draws():
    for command in STUDIES:
        draws = command.study.plot is not Study.plot
        assert draws == ("plot" in command.options.__dataclass_fields__), command.name
