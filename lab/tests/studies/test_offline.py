"""Offline quality: its figures from hand-made texts, and a run on the embedded target."""

import json
import math

import pytest
from typer.testing import CliRunner

from outrider_lab.cli.app import app
from outrider_lab.studies.offline_figures import WINDOW, OfflineText, median_perplexity, offline_figures
from outrider_proto.errors import UsageError


def written(*perplexities: float, tokens: int | None = None, kept: int = 0, circles_at: int = 10**6) -> OfflineText:
    """A text with a perplexity for each window, cut to `tokens`."""
    likelihoods = tuple(-math.log(one) for one in perplexities for _ in range(WINDOW))
    return OfflineText("q", "", kept, 0, circles_at, likelihoods[:tokens])


def test_text_is_readable_up_to_the_first_window_that_is_unlikely_or_in_circles():
    assert written(2, 3, 4).readable(5) == 3 * WINDOW
    assert written(2, 9, 2).readable(5) == WINDOW
    assert written(9, tokens=3).readable(5) == 0  # a window may be shorter at the end
    assert written(2, 2, tokens=WINDOW + 1).readable(5) == WINDOW + 1
    assert written(2, 2, 2, circles_at=WINDOW + 2).readable(5) == WINDOW
    assert written(2, 2, circles_at=2 * WINDOW).readable(5) == 2 * WINDOW  # its length: it does not
    assert written().readable(5) == 0


def test_figures_are_over_the_answers_and_windows_over_those_that_reach_them():
    some = [written(2, 8, kept=16), written(2, tokens=4, kept=4), written(kept=0), written(2, kept=1, circles_at=3)]
    figures = offline_figures(some, max_perplexity=4.0)
    assert (figures.kept, figures.kept_median) == (21 / 4, 2.5)
    assert figures.kept_at_least == {1: 0.75, 4: 0.5, 16: 0.25}
    assert (figures.readable, figures.written) == ((WINDOW + 4 + 0 + 0) / 4, (2 * WINDOW + 4 + WINDOW) / 4)
    near, far = figures.windows
    assert (near.first, near.answers, far.first, far.answers) == (0, 3, WINDOW, 1)
    assert (near.perplexity, far.perplexity) == (pytest.approx(2), pytest.approx(8))
    assert (near.in_circles, far.in_circles) == (pytest.approx(1 / 3), 0)
    assert median_perplexity(some) == pytest.approx(2)


def test_drafters_go_on_where_the_link_died(tmp_path):
    report = tmp_path / "offline.json"
    asked = ["--prompts", "2", "--cut-at", "6", "--tokens", "10", "--drafter", "moa", "--drafter", "lookup"]
    result = CliRunner().invoke(app, ["offline", *asked, "--json", str(report)])
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text())
    assert found["questions"] + found["left_out"] == 2
    assert found["mismatches"] == {"moa": 0, "lookup": 0}
    target, moa = found["texts"]["target"], found["texts"]["moa"]
    assert [one["kept"] for one in target] == [len(one["log_likelihoods"]) for one in target]
    for its, right in zip(moa, target, strict=True):
        assert 1 <= len(its["log_likelihoods"]) <= 10
        # The same tokens after the same text are as likely.
        same = slice(its["kept"])
        assert its["log_likelihoods"][same] == pytest.approx(right["log_likelihoods"][same], abs=1e-3)
    assert found["figures"]["moa"]["windows"][0]["answers"] == len(moa)


def test_a_cut_behind_all_answers_is_refused():
    result = CliRunner().invoke(app, ["offline", "--prompts", "1", "--cut-at", "400", "--drafter", "lookup"])
    assert isinstance(result.exception, UsageError)
    assert "cut_at=400: all 1 answers end before" in str(result.exception)
