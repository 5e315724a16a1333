"""Typical acceptance on the embedded pair, and what its report says."""

import json
import math

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.paper.measurement import settings
from outrider_lab.studies.typical import TypicalStudy
from outrider_lab.studies.typical_report import (
    GREEDY,
    SAMPLING,
    TARGET,
    Rule,
    RuleResult,
    ScoredAnswer,
    TypicalReport,
)
from outrider_proto.errors import UsageError

LOOSE = Rule("typical", 0.05)
HOT = settings(temperature=3, epsilon="[0.001, 0.9]")


def run(*arguments):
    return CliRunner().invoke(app, ["typical", *map(str, arguments)])


def answer(tokens, verdicts=2, judged=6, nats=1.0, is_right=True, family="math"):
    return ScoredAnswer(family, tuple(tokens), verdicts, judged, -nats, is_right)


def test_figures_are_of_all_tokens_not_means_of_answers():
    few, many = answer([1] * 2, verdicts=1, judged=1, nats=4.0), answer([1] * 6, verdicts=3, judged=11, nats=4.0)
    figures = RuleResult("hydra", GREEDY, [[few, many]]).figures
    assert (figures["tau"], figures["tokens"], figures["perplexity"]) == (3.0, 4.0, pytest.approx(math.e))
    low, high = figures["perplexity_ci95"]
    assert low < math.e < high


def test_only_lossless_rules_are_held_against_the_target_s_own_answers():
    own, other = [[answer([1, 2]), answer([3])]], [[answer([1, 2]), answer([4])]]
    report = TypicalReport(
        0.7, [RuleResult(TARGET, GREEDY, own), RuleResult("hydra", GREEDY, other), RuleResult("hydra", LOOSE, other)]
    )
    assert [report.mismatches(one) for one in report.results] == [None, 1, None]
    assert TypicalStudy.failures(report) == ["hydra, greedy: 1 answers are not the target's own"]


@pytest.mark.parametrize("rounded", [0, 1, 2])
def test_every_departure_that_rounding_does_not_explain_fails(rounded):
    own, drawn = ([answer([other if number < 2 else number]) for number in range(30)] for other in (98, 99))
    hydra = RuleResult("hydra", SAMPLING, [drawn], rounded)
    report = TypicalReport(2.5, [RuleResult(TARGET, SAMPLING, [own]), hydra])
    assert report.mismatches(hydra) == 2 - rounded
    wrong = [f"hydra, sampling: {2 - rounded} answers are not the target's own"]
    assert TypicalStudy.failures(report) == ([] if rounded == 2 else wrong)
    told = [line.split(" where ")[0] for line in TypicalStudy.notes(report)]
    assert told == [f"hydra, sampling: {rounded} answers depart from the plain loop's"] * (rounded > 0)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    directory = tmp_path_factory.mktemp("typical")
    files = ("--json", directory / "report.json", "--set", f"plot={directory / 'report.png'}")
    result = run("--drafter", "hydra", *HOT, *settings(per_family=1, max_new_tokens=16, budget=8), *files)
    assert result.exit_code == 0, result.output
    assert (directory / "report.png").stat().st_size > 10_000
    return json.loads((directory / "report.json").read_text())


def figures(report, drafter, name, epsilon=None):
    return next(
        one
        for one in report["results"]
        if one["drafter"] == drafter and one["rule"] == {"name": name, "epsilon": epsilon}
    )


def test_the_controls_write_what_the_target_writes_alone(report):
    for name, runs in (("greedy", 1), ("sampling", 2)):
        alone, drafted = (figures(report, drafter, name) for drafter in (TARGET, "hydra"))
        assert len(drafted["runs"]) == runs
        assert drafted["mismatches"] == 0
        # At this temperature rounding may turn a draw, in a processor's own way.
        assert drafted["rounded"] <= (0 if name == "greedy" else 1)
        if not drafted["rounded"]:
            assert drafted["perplexity"] == pytest.approx(alone["perplexity"])
            assert (drafted["tokens"], drafted["right"]) == (alone["tokens"], alone["right"])
        assert drafted["tau"] > 1
        assert "tau" not in alone


def test_a_lower_epsilon_accepts_more_and_less_likely_tokens(report):
    loose, strict = (figures(report, "hydra", "typical", epsilon) for epsilon in (0.001, 0.9))
    assert loose["tau"] > strict["tau"]
    assert loose["perplexity"] > strict["perplexity"]
    assert figures(report, TARGET, "sampling")["perplexity"] > loose["perplexity"]  # at temperature 3
    assert loose["mismatches"] is None
    low, high = loose["tau_ci95"]
    assert low <= loose["tau"] <= high


def test_a_user_s_questions_have_perplexity_alone(tmp_path):
    asked, out = tmp_path / "asked.jsonl", tmp_path / "report.json"
    asked.write_text('{"prompt": "Who are you?"}\n')
    asking = settings(questions=asked, epsilon=0.1, seeds=1, max_new_tokens=8, plot=tmp_path / "plot.png")
    result = run("--drafter", "medusa", *asking, "--json", out)
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())["results"]
    assert [one["rule"]["name"] for one in found] == ["greedy", "sampling", "greedy", "sampling", "typical"]
    assert all(one["perplexity"] >= 1 and "right" not in one for one in found)
    again = CliRunner().invoke(app, ["show", str(out)])
    assert again.exit_code == 0
    assert "typical 0.1" in again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "epsilon=-1"), "epsilon=-1"),
        (("--set", "epsilon=0"), "typical acceptance needs more than 0"),
        (("--set", "temperature=0"), "typical acceptance needs more"),
    ],
)
def test_what_is_no_typical_acceptance_is_refused(options, message):
    result = run("--drafter", "medusa", "--set", "per-family=1", *options)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
