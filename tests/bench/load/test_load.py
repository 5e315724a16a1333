"""Load runs: the parts without processes, and one small run with all of them."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.load.clients.client import CountingWindow, _AnswerCheck
from outrider_bench.load.clients.counters import ClientCounters, Histogram
from outrider_bench.load.clients.drafting import ReplayDrafter, ReplayDrafting, probability_for
from outrider_bench.load.clients.texts import LoadText
from outrider_bench.load.metrics import Fairness, jain_index
from outrider_client.core.events import Committed, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import verify_path

VOCABULARY = 50
TEXT = LoadText("text", tuple(range(5)), tuple(random.Random(7).choices(range(VOCABULARY), k=1500)))
runner = CliRunner()


def replaying(tau: float, shape: TreeShape, seed: int = 1) -> ReplayDrafting:
    drafter = ReplayDrafter(LookupDrafter(VOCABULARY))
    drafting = ReplayDrafting(drafter, probability_for(tau, shape.levels), random.Random(seed))
    drafting.text = TEXT
    return drafting


def mean_acceptance(tau: float, shape: TreeShape) -> float:
    """Over a text, the target's answers being the text's."""

    async def ride() -> float:
        drafting, known, cycles = replaying(tau, shape), len(TEXT.prompt) + 1, 0
        start, last = known, len(TEXT.whole) - shape.levels - 1
        while known < last:
            tree = (await drafting.grow(TEXT.whole[:known], shape)).drafted.tree
            path = verify_path(tree, lambda node, at=known, tree=tree: _truth(at, node, tree), frozenset(), 99).path
            known, cycles = known + len(path) + 1, cycles + 1
        return (known - start) / cycles

    return asyncio.run(ride())


def _truth(known: int, node: int, tree: DraftTree) -> int:
    return TEXT.whole[known + (0 if node < 0 else tree.depths()[node])]


@pytest.mark.parametrize("shape", [TreeShape(), TreeShape.chain(4), TreeShape(budget=3)])
@pytest.mark.parametrize("tau", [1.0, 2.2, 3.0])
def test_replayed_drafts_have_the_acceptance_length_asked_for(tau, shape):
    if shape.budget < shape.levels:  # so many levels are all that the nodes allow
        shape = TreeShape(shape.breadth, shape.budget, shape.budget)
    # 500 verdicts or more of a standard deviation below 1.8: 0.4 is over four standard errors
    assert mean_acceptance(tau, shape) == pytest.approx(tau, abs=0.4)


def test_percentiles_are_right_to_a_hundredth():
    histogram = Histogram()
    for ms in range(1, 1001):
        histogram.add(ms / 1e3)
    for percent in (50, 95, 99):
        assert histogram.percentile_ms(percent) == pytest.approx(percent * 10, rel=0.011)
    assert Histogram.merged([histogram, histogram]).count == 2000
    assert Histogram().percentile_ms(99) == 0


def test_fairness_compares_clients_with_enough_verdicts():
    client_counters = [ClientCounters(number, tokens=10) for number in range(3)]
    for counters, ms in zip(client_counters[:2], (10, 20), strict=True):
        for _ in range(100):
            counters.verdict_s.add(ms / 1e3)
    fairness = Fairness.of(client_counters)
    assert fairness.p99_ratio == pytest.approx(2, rel=0.03)
    assert (fairness.num_judged, fairness.jain) == (2, 1.0)
    assert jain_index([1, 0, 0, 0]) == 0.25


def test_an_answer_is_compared_whole_or_as_far_as_it_came():
    reading = _AnswerCheck(counters := ClientCounters(0), CountingWindow())
    reading.take(Committed(0, (1, 2), "accepted", ""), 0.0)
    reading.take(Unverified(2, (3, 9), ""), 0.0)
    assert reading.verified == (1, 2)
    assert reading.matches((1, 2, 3, 4))
    reading.take(Verified(2, 1), 0.0)
    reading.take(RolledBack(3, 1, ""), 0.0)
    assert reading.verified == (1, 2, 3)
    reading.take(Finished("limit", Statistics()), 0.0)
    assert not reading.matches((1, 2, 3, 4))
    assert reading.matches((1, 2, 3))
    assert (counters.tokens, counters.unverified, counters.rolled_back) == (3, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients", "0"], "need at least 1 client"),
        (["--clients", "a"], "need numbers"),
        (["--set", "tau=9"], "tau=9"),
        (["--clients-kind", "fake"], "need one of replay, real"),
        (["--set", "mode=pipelined"], "replayed clients need one of"),
        (["--set", "rate=0"], "more than 0"),
        (["--profile", "5g-ish"], "5g-ish"),
        (["--server-options", "'"], "server_options"),
        (["--dtype", "int3"], "dtype=int3"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, message):
    result = runner.invoke(app, ["load", *arguments])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


SMALL = ["--set", "families=chat", "--set", "per-family=4", "--set", "max-new-tokens=12"]
SMALL += ["--set", "long_share=0", "--set", "any-cores=true"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("load")


@pytest.fixture(scope="module")
def found(folder) -> dict:
    """The report of one run with its controls."""
    report, plot = folder / "load.json", folder / "load.png"
    counted = ["--clients", "2", "--set", "requests=2"]
    counted += ["--json", str(report), "--plot", str(plot)]
    result = runner.invoke(app, ["load", *SMALL, *counted], catch_exceptions=False)
    assert result.exit_code == 0
    assert plot.stat().st_size > 0
    (folder / "printed").write_text(result.output)
    return json.loads(report.read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
def test_two_clients_of_a_real_server(found):
    (run,) = found["runs"]
    assert (run["num_clients"], run["answers"], run["checked"]) == (2, 4, 4)
    assert (run["wrong"], run["strays"], run["lost"], run["errors"]) == (0, 0, 0, {})
    assert run["tokens_per_s"] > 0
    assert run["server"]["rss_after_bytes"] > 0
    assert found["plan"]["kind"] == "replay"
    assert run["batches"]["outrider_prefix_cache_queries_total"] > 0
    assert run["batches"]["outrider_prefix_cache_hits_total"] == 0  # each prompt is as new as a user's
    assert "command" in found["made_by"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
def test_controls_of_the_same_prompts(found):
    assert [one["batch"] for one in found["controls"]] == [1, 2]
    assert all(one["wrong"] == 0 and one["tokens_per_s"] > 0 for one in found["controls"])
    (stream,) = found["streams"]
    # 4 answers of 12 tokens, of which none was drafted
    assert (stream["num_clients"], stream["answers"], stream["wrong"]) == (2, 4, 0)
    assert stream["nodes_per_draft"] == 0


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
def test_a_report_is_shown_again(found, folder):
    again = folder / "again.png"
    result = runner.invoke(app, ["show", str(folder / "load.json"), "--plot", str(again)], catch_exceptions=False)
    assert result.output == (folder / "printed").read_text()
    assert again.read_bytes() == (folder / "load.png").read_bytes()
