"""What the command line loads before a command runs."""

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.harness.options import drafter_for
from outrider_bench.network.options import NetworkOptions
from outrider_models.core.embedded import DRAFTERS, target_dir

COMMANDS = [command.name for command in app.registered_commands]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_every_option(name):
    result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    command = next(command for command in app.registered_commands if command.name == name)
    assert (command.callback.__doc__ or "").split("\n")[0].split()[0] in result.output


def test_the_default_drafter_is_the_best_that_ships_or_else_lookup(monkeypatch):
    assert drafter_for(target_dir(), None) == DRAFTERS[0]
    assert drafter_for(target_dir(), "eagle2") == "eagle2"
    monkeypatch.setattr("outrider_bench.harness.options.shipped_drafters", lambda target: ())
    assert drafter_for(target_dir(), None) == "lookup"
    assert NetworkOptions().plan.drafters == ("lookup",)
