"""The command `outrider-netsim fit`: a profile that loads, tables that compare, and refusals."""

import random

import pytest
from typer.testing import CliRunner

from outrider_netsim.cli.app import app
from outrider_netsim.profiles.profile_files import load_profile
from outrider_netsim.profiles.synthetic import Cellular
from outrider_netsim.profiles.trace_files import load_trace, save_trace


def fit(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


@pytest.fixture
def ping(tmp_path):
    """A ping of 30 to 50 ms, every 200 ms, that loses one in ten."""
    rng = random.Random(1)
    lines = [
        f"[{1e9 + n / 5:.6f}] 64 bytes from 192.0.2.1: icmp_seq={n} ttl=57 time={rng.uniform(30, 50):.1f} ms"
        for n in range(1, 2001)
        if n % 10
    ]
    file = tmp_path / "home.txt"
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def trace(tmp_path):
    save_trace(Cellular().deliveries(60, 1), tmp_path / "down.trace")
    return tmp_path / "down.trace"


def test_a_ping_becomes_a_profile_on_standard_output(ping, tmp_path):
    result = fit(ping)
    assert result.exit_code == 0
    (tmp_path / "mine.toml").write_text(result.stdout)
    profile = load_profile(tmp_path / "mine.toml")
    assert profile.name == "home"
    assert profile.round_trip_ms == pytest.approx(40, rel=0.02)
    assert profile.up.mean_loss == pytest.approx(0.05, rel=0.05)
    for expected in (
        "recorded",
        "fitted",
        "p99, ms",
        "losses in a row",
        "mean distance of quantiles",
        "half of a round",
    ):
        assert expected in result.stderr


def test_a_ping_and_a_trace_go_to_a_file(ping, trace, tmp_path):
    output = tmp_path / "mine.toml"
    assert fit(ping, trace, "--output", output).exit_code == 0
    profile = load_profile(output)
    assert profile.name == "mine"
    assert profile.down.trace.at_ms == load_trace(trace).at_ms
    assert profile.up.mean_delay_ms == pytest.approx(20, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ping", "--output", "x.txt"], "--output x.txt: need a name that ends in .toml"),
        (["ping", "--interval", "0"], "--interval 0: need more than 0 and at most 3600 seconds"),
        (["ping", "--up", "ping"], "a ping has both ways in it: give it without --up"),
        (["trace", "trace"], "a second trace: give the one of the way up with --up"),
        (["missing"], "missing: cannot be read: No such file"),
        (["ping", "--output", "no/x.toml"], "no/x.toml: cannot be written"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(ping, trace, arguments, message):
    files = {"ping": ping, "trace": trace}
    result = fit(*(files.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
