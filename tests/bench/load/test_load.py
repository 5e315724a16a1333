"""Load runs: the parts without processes, and one small run with all of them."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.core.prompts import QuestionSource
from outrider_bench.load import study
from outrider_bench.load.clients.client import CountingWindow, _AnswerCheck
from outrider_bench.load.clients.counters import ClientCounters, Histogram
from outrider_bench.load.clients.drafting import ReplayDrafter, ReplayDrafting, probability_for
from outrider_bench.load.clients.texts import LoadText, _asked, _is_long
from outrider_bench.load.clients.verdict_observer import ObservedConnection
from outrider_bench.load.control import answer_of, left_padded, static_batches
from outrider_bench.load.metrics import Fairness, jain_index
from outrider_bench.load.options import LoadOptions
from outrider_bench.load.plan import client_counts, words_of
from outrider_bench.load.server_under_test import difference, parse
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.events import Committed, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.lookup.drafter import LookupDrafter
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Finish, Verdict
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


def test_replayed_trees_have_the_size_asked_for():
    async def grown() -> DraftTree:
        return (await replaying(3.0, TreeShape()).grow(TEXT.prompt, TreeShape(4, 5, 16))).drafted.tree

    tree = asyncio.run(grown())
    assert len(tree) == 16
    assert max(tree.depths()) == 5


def test_a_text_that_differs_gets_wrong_drafts_and_tokens():
    async def astray() -> tuple[DraftTree, int | None]:
        drafting = replaying(6.0, TreeShape())
        tokens = (*TEXT.prompt, (TEXT.answer[0] + 1) % VOCABULARY)
        return (await drafting.grow(tokens, TreeShape())).drafted.tree, await drafting.write(tokens, None)

    tree, word = asyncio.run(astray())
    assert len(tree) == 16
    assert word is not None


@pytest.mark.parametrize(("tau", "levels"), [(0.9, 5), (6.1, 5)])
def test_an_acceptance_length_that_no_tree_reaches_is_refused(tau, levels):
    with pytest.raises(UsageError, match=f"tau={tau}"):
        probability_for(tau, levels)


def test_percentiles_are_right_to_a_hundredth():
    histogram = Histogram()
    for ms in range(1, 1001):
        histogram.add(ms / 1e3)
    for percent in (50, 95, 99):
        assert histogram.percentile_ms(percent) == pytest.approx(percent * 10, rel=0.011)
    assert Histogram.merged([histogram, histogram]).count == 2000
    assert Histogram().percentile_ms(99) == 0


def test_a_wrong_answer_is_described():
    counters = ClientCounters(3)
    counters.differs("text", (1, 2), (1, 3))
    assert (counters.wrong, counters.examples) == (1, ["client 3, text: differs at token 1, [1, 2] for [1, 3]"])


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


class Wire:
    """A connection that answers what it is given."""

    bytes_up = bytes_down = 0

    def __init__(self, *answers: Verdict) -> None:
        self._answers = list(answers)

    def send(self, frame: object) -> None:
        pass

    async def receive(self) -> Verdict:
        return self._answers.pop(0)

    async def close(self) -> None:
        pass


class Noted:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.num_strays = 0

    def on_verdict(self, verdict: Verdict, seconds: float, *, on_prompt: bool) -> None:
        self.times.append(seconds)

    def on_stray(self) -> None:
        self.num_strays += 1


def test_verdicts_are_timed_and_a_second_one_is_noticed():
    async def ride() -> tuple[Noted, int]:
        verdict, noted, ticks = Verdict(1, (), 5, Finish.NOT_YET), Noted(), iter(range(10))
        connection = ObservedConnection(Wire(verdict, verdict), noted, lambda: float(next(ticks)))
        connection.send(Draft(1, 0, (1,), 2, DraftTree()))
        connection.send(Draft(2, 0, (1,), 2, DraftTree()))
        for _ in range(2):
            await connection.receive()
        return noted, connection.num_pending

    noted, owed = asyncio.run(ride())
    assert (noted.times, noted.num_strays, owed) == ([2.0], 1, 1)


def test_metrics_are_read_and_subtracted():
    text = '# HELP x\nrows_bucket{le="4.0"} 3.0\nrows_created 1.0\nother 5.0\n'
    found = parse(text, ("rows",))
    assert found == {'rows_bucket{le="4.0"}': 3.0}
    assert difference(found, {}) == found
    assert difference(found, found) == {'rows_bucket{le="4.0"}': 0.0}


def test_a_user_s_questions_are_asked_as_they_are(tmp_path):
    (tmp_path / "asked.jsonl").write_text(json.dumps({"question_id": 7, "category": "qa", "turns": ["Who?", "Why?"]}))
    source = QuestionSource.of(target_dir(), tmp_path / "asked.jsonl")
    options = LoadOptions(target=str(target_dir()), questions=tmp_path / "asked.jsonl", max_new_tokens=4)
    mix = options.mix
    assert (mix.source, mix.per_family, mix.long_share) == (source, None, 0.0)
    models = LocalModels.load(ClientConfig(target=target_dir(), drafter=NO_DRAFTER))
    asked = _asked(models, mix, 1, lambda prompt, limit: [5])
    assert [name for name, _ in asked] == ["qa 7.1", "qa 7.2"]
    assert mix.settings["source"]["questions"]
    with pytest.raises(UsageError, match=r"long_share=0.5: --questions are asked as they are"):
        _ = replace(options, long_share=0.5).mix
    of_corpus = LoadOptions(families=("chat",)).mix
    assert (of_corpus.families, of_corpus.per_family, of_corpus.long_share) == (("chat",), 8, 0.25)
    assert sum(_is_long(number, 0.25) for number in range(40)) == 10


def test_counts_of_clients():
    assert client_counts("1,4,16") == (1, 4, 16)
    assert words_of("--threads 2 --pace 'a b'") == ("--threads", "2", "--pace", "a b")


def test_static_batches_are_full_and_have_all_texts():
    texts = [LoadText(str(n), (n,), (0,) * (n % 5 + 1)) for n in range(10)]
    batches = static_batches(texts, 4, seed=1)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert {text.name for batch in batches for text in batch} == {text.name for text in texts}
    assert static_batches(texts, 4, seed=1) == batches != static_batches(texts, 4, seed=2)
    (large,) = static_batches(texts, 64, seed=1)
    assert len(large) == 64


def test_prompts_are_padded_on_the_left_and_answers_cut_at_their_end():
    ids, mask = left_padded([(5, 6, 7), (8,)])
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert answer_of([4, 1, 2, 2], frozenset({1})) == (4, 1)
    assert answer_of([4, 3], frozenset({1})) == (4, 3)


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


@pytest.mark.slow
@pytest.mark.timeout(900)  # several processes begin with torch: on a busy machine that takes minutes
def test_an_interrupted_run_measures_what_it_lacks(folder, monkeypatch):
    report, run = folder / "two.json", study.measure_count
    arguments = ["load", *SMALL, "--set", "requests=1", "--set", "control=false", "--json", str(report), "--clients"]

    async def interrupted(plan, count, *rest, **others):
        counts.append(count)
        if count == 2 and len(counts) == 2:
            raise UsageError("stopped")
        return await run(plan, count, *rest, **others)

    counts: list[int] = []
    monkeypatch.setattr(study, "measure_count", interrupted)
    assert str(runner.invoke(app, [*arguments, "1,2"]).exception) == "stopped"
    other = runner.invoke(app, [*arguments, "1,2", "--set", "tau=2"])
    assert "give the same options" in str(other.exception)
    runner.invoke(app, [*arguments, "1,2"], catch_exceptions=False)
    assert counts == [1, 2, 2]
    assert [one["num_clients"] for one in json.loads(report.read_text())["runs"]] == [1, 2]
