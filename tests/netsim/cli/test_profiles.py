"""The commands `outrider-netsim list`, `show` and `trace`."""

import pytest
from typer.testing import CliRunner

from outrider_netsim.cli import profiles as cli_profiles
from outrider_netsim.cli import trace as cli_trace
from outrider_netsim.profiles.builtin import PROFILES
from outrider_netsim.profiles.profile_files import load_profile
from outrider_netsim.profiles.trace_files import load_trace


def run(app, *arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def listed(*arguments):
    return run(cli_profiles.app, *arguments)


def trace(*arguments):
    return run(cli_trace.app, "trace", *arguments)


def test_list_shows_every_profile_with_its_source():
    shown = listed("list").output
    for name, profile in PROFILES.items():
        assert name in shown
        assert profile.source in shown
    for expected in ("4.5 + N(21, 19)", "0.6, 1.2", "30.7 ms", "53.6 ms"):
        assert expected in shown


@pytest.mark.parametrize("name", PROFILES)
def test_show_describes_a_profile(name):
    result = listed("show", name)
    assert result.exit_code == 0
    for expected in ("mean, deviation", f"{PROFILES[name].up.mean_delay_ms:.2f}", PROFILES[name].source):
        assert expected in result.output


def test_show_describes_outages_bursts_and_traces(tmp_path):
    (tmp_path / "t.csv").write_text("time_s,loss\n0,0.1\n")
    both = '[both]\nbursts = {p = 0.1, r = 0.4}\ntrace = "t.csv"'
    (tmp_path / "mine.toml").write_text(f'outages = ["1s@5s/30s"]\n{both}\n')
    shown = listed("show", tmp_path / "mine.toml").output
    for expected in ("1s@5s/30s", "20.00%, in bursts of 2", "a trace replaces", "no limit"):
        assert expected in shown


def test_show_prints_a_file_to_start_from(tmp_path):
    (tmp_path / "x.toml").write_text(listed("show", "train", "--toml").output)
    assert load_profile(tmp_path / "x.toml") == PROFILES["train"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["6g"], "choose one of paper-5g"),
        (["no.toml"], "no.toml: cannot be read"),
    ],
)
def test_what_cannot_be_shown_ends_with_2_and_a_remedy(arguments, message):
    result = listed("show", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("name", ["x.trace", "x.csv"])
def test_generated_traces_check_and_repeat_by_seed(tmp_path, name):
    file, again = tmp_path / name, tmp_path / f"again-{name}"
    made = trace("generate", file, "--seconds", 5, "--mbps", 8, "--seed", 3)
    assert made.exit_code == 0
    assert "in 5 s" in made.output
    trace("generate", again, "--seconds", 5, "--mbps", 8, "--seed", 3)
    assert file.read_bytes() == again.read_bytes()
    checked = trace("check", file, again)
    assert checked.exit_code == 0
    assert checked.output.count("rate, Mbit/s") == 2
    load_trace(file)


def test_a_wrong_trace_ends_with_2_and_its_line(tmp_path):
    (tmp_path / "x.trace").write_text("1\n5\n3\n")
    result = trace("check", tmp_path / "x.trace")
    assert result.exit_code == 2
    assert "x.trace, line 3: 3 comes after 5" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--mbps", 0], "rate_bps=0"), (["--seconds", -1], "duration_s=-1"), (["--handover-ms", -1], "handover_s=-0.001")],
)
def test_absurd_traces_are_refused_and_nothing_is_written(tmp_path, options, message):
    result = trace("generate", tmp_path / "x.csv", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())
