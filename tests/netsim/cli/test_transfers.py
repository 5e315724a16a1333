"""`outrider-netsim transfers`."""

import json

import pytest
from typer.testing import CliRunner

from outrider_netsim.cli.app import app

SHORT = ("--seconds", "1", "--transfers", "1", "--replies", "3", "--requests", "2", "--exchanges", "30")


def transfers(*arguments):
    return CliRunner().invoke(app, ["transfers", *arguments])


def measured(file, *arguments):
    virtual = ("--profile", "paper-4g", "--engine", "virtual", "--repetitions", "1", *SHORT)
    return transfers(*virtual, "--output", str(file), *arguments)


def test_the_table_has_every_figure_and_the_file_says_how_it_was_made(tmp_path):
    file = tmp_path / "report.json"
    result = measured(file)
    assert result.exit_code == 0, result.output
    for heading in ("Mbit/s", "RTT loaded", "150 kB after 1.5 s", "lone loss", "cut of 3 s", "8-packet reply"):
        assert heading in result.stdout
    written = json.loads(file.read_text())
    assert written["rows"][0]["figures"]["goodput_mbps"]["samples"] == 1
    assert written["plan"]["seconds"] == 1
    assert {"command", "started", "seeds", "kernel"} <= written["made_by"][0].keys()
    assert "paper-4g through virtual, repetition 1 of 1" in result.stderr


def test_details_have_means_percentiles_and_counts(tmp_path):
    result = measured(tmp_path / "report.json", "--details")
    assert "95 % interval" in result.stdout
    (line,) = [line.split() for line in result.stdout.splitlines() if "8-packet reply" in line and "virtual" in line]
    assert line[-1] == "3"


def test_the_table_as_markdown_has_a_line_for_each_row(tmp_path):
    header, rule, row = measured(tmp_path / "report.json", "--markdown").stdout.splitlines()
    assert header.startswith("| profile | engine | Mbit/s |")
    assert rule.count("---") == header.count("|") - 1 == row.count("|") - 1


def test_json_on_standard_output_is_alone_there(tmp_path):
    result = measured(tmp_path / "report.json", "--json")
    assert json.loads(result.stdout)["rows"][0]["engine"] == "virtual"
    assert "8-packet reply" in result.stderr


def test_earlier_reports_are_shown_together(tmp_path):
    measured(tmp_path / "a.json")
    report = json.loads((tmp_path / "a.json").read_text())
    report["rows"][0]["engine"] = "tun"
    slower = [[sample * 2 for sample in samples] for samples in report["rows"][0]["samples"]["reply_ms"]]
    report["rows"][0]["samples"]["reply_ms"] = slower
    (tmp_path / "b.json").write_text(json.dumps(report))
    files = ("--with", str(tmp_path / "a.json"), "--with", str(tmp_path / "b.json"))
    result = transfers(*files)
    assert result.exit_code == 0, result.output
    assert result.stdout.index("tun") < result.stdout.index("virtual")
    assert "x0.50!" in result.stdout
    assert transfers(*files, "--check").exit_code == 1
    assert "x2.00!" in transfers(*files, "--reference", "virtual").stdout


def test_a_congestion_control_that_is_not_modeled_ends_with_1(tmp_path):
    result = measured(tmp_path / "report.json", "--congestion", "bbr")
    assert result.exit_code == 1
    assert "'bbr'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--profile is missing"),
        (["--profile", "paper-4g"], "--engine is missing"),
        (["--profile", "6g", "--engine", "tun"], "6g"),
        (["--profile", "paper-4g", "--engine", "ns3"], "engine 'ns3' is unknown: choose from kernel, tun"),
        (["--profile", "paper-4g", "--engine", "virtual", "--loss", "0.9"], "loss=0.9: need 0 to 0.5"),
        (["--profile", "paper-4g", "--engine", "virtual", "--repetitions", "0"], "repetitions=0: need 1"),
        (["--with", "/nowhere/report.json"], "cannot be read"),
        (["--profile", "paper-4g", "--engine", "virtual", *SHORT, "--reference", "tun"], "no row has that engine"),
        (["--profile", "paper-4g", "--engine", "virtual", *SHORT, "--output", "/nowhere/x.json"], "cannot be written"),
    ],
)
def test_bad_requests_end_with_2_and_a_remedy(arguments, message):
    result = transfers(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
