"""From an answer's events to the metrics of a run and the report of several. No clock, no network."""

import pytest
from network_answers import answer

from outrider_bench.network.link_endpoint import PingStats
from outrider_bench.network.metrics import medians, variant_metrics
from outrider_bench.network.report import Scenario, ScenarioSetting
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.timed_answer import AnswerRecorder, Arrival, TimedAnswer, VerdictRecord
from outrider_bench.network.variants import SERVER_DRAFT, STREAM, ModeVariant
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, Cycle, Finished, RolledBack, Unverified, Verified
from outrider_client.core.statistics import Statistics
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import DraftTree


def draft(seq: int, nodes: int = 2) -> Draft:
    return Draft(seq, 5, (), 3, DraftTree.chain(range(nodes)))


def committed(first: int, *tokens: int) -> Committed:
    return Committed(first, tokens, "accepted", "")


def recorded(*events: tuple[float, object]) -> TimedAnswer:
    recorder = AnswerRecorder()
    for at_ms, event in events:
        recorder.take(event, at_ms)
    return recorder.recorded(None)


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_path_and_bonus_of_a_verdict_arrive_together():
    record = recorded(
        (50, Cycle(draft(1, 0), Verdict(1, (), 7, verify_us=40_000))),
        (50, committed(0, 7)),
        (90, Cycle(draft(2), Verdict(2, (0, 1), 9, verify_us=33_000))),
        (90, committed(1, 4, 5)),
        (91, committed(3, 9)),
        (91, Finished("eos", Statistics(target_calls=2))),
    )
    assert record.token_ids == (7, 4, 5, 9)
    assert record.arrivals == (Arrival(50, 1), Arrival(90, 3))
    assert record.replies == (VerdictRecord(1, False, 40.0, 0.0), VerdictRecord(3, True, 33.0, 0.0))
    assert record.statistics.target_calls == 2


def test_tokens_written_offline_arrive_when_written_and_count_when_verified():
    record = recorded(
        (10, Cycle(draft(1, 0), Verdict(1, (), 7))),
        (10, committed(0, 7)),
        (20, Unverified(1, (5,), "")),
        (30, Unverified(2, (6,), "")),
        (90, Cycle(draft(2), Verdict(2, (0,), 8))),
        (90, Verified(1, 1)),
        (90, RolledBack(2, 1, "")),
        (90, committed(2, 8)),
    )
    assert record.token_ids == (7, 5, 8)
    assert record.arrivals == (Arrival(10, 1), Arrival(20, 1), Arrival(90, 1))
    assert record.replies[-1].tokens == 2


# -- what it comes to --------------------------------------------------------------------------------------------------


def test_eta_is_the_share_of_the_bound_by_round_trip_and_verify_time():
    run = variant_metrics([answer()], rtt_ms=31.0, bounded=True)
    assert run.tokens_per_second == pytest.approx(50.0)
    assert run.answer_tokens_per_second == pytest.approx(42.0)
    assert run.mean_acceptance_length == 4.0
    assert run.verify_ms == 33.0
    assert run.eta == pytest.approx((31 + 33) / 80)
    assert run.ttft_ms == 100.0


def test_time_before_an_arrival_is_shared_among_its_tokens_and_a_pause_is_not():
    run = variant_metrics([answer()], rtt_ms=31.0, bounded=True)
    assert run.inter_token_ms == {"p50": 20.0, "p95": 20.0, "p99": 20.0}
    assert run.pause_ms == {"p50": 80.0, "p95": 80.0, "p99": 80.0}


def test_bytes_and_packets_are_counted_by_token_and_by_reply():
    run = variant_metrics([answer(told=Statistics(bytes_up=210, bytes_down=4200))] * 2, rtt_ms=31.0, bounded=True)
    assert (run.bytes_up_per_token, run.bytes_down_per_token) == (10.0, 200.0)
    assert run.link_bytes_down_per_token == pytest.approx(18000 / 21)
    assert (run.packets_up_per_reply, run.packets_per_reply) == (2.0, 3.0)


# -- ways --------------------------------------------------------------------------------------------------------------


def test_a_variant_s_own_options_come_before_those_of_all():
    variant = ModeVariant.parse(
        "stop-and-wait,wait_for_features=true,levels=3,tree=auto", {"levels": 5, "budget": 12, "outcomes": None}
    )
    config = variant.configured(ClientConfig())
    assert config.mode == "stop-and-wait"
    assert config.wait_for_features is True
    assert config.shape == TreeShape(levels=3, budget=12)
    assert config.tree == "auto"


@pytest.mark.parametrize(
    "text", ["stop-and-wait,levels", "stop-and-wait,color=red", "stop-and-wait,levels=deep", "auto,tree=x"]
)
def test_an_unknown_option_is_refused(text):
    with pytest.raises(UsageError, match="option of a mode"):
        ModeVariant.parse(text, {})


# -- the report --------------------------------------------------------------------------------------------------------


def run_of(speeds: dict[str, int]) -> ScenarioRun:
    of_ways = {name: variant_metrics([answer(tokens)], rtt_ms=30.0, bounded=True) for name, tokens in speeds.items()}
    return ScenarioRun(of_ways, dict.fromkeys(speeds, 0), PingStats.of([29.0, 31.0]))


def case_of(runs: list[ScenarioRun]) -> Scenario:
    setting = ScenarioSetting(
        "paper-5g", "tun", "", 30.7, "moa", "int8", "paper", {}, ("code",), 1, 21, 1, {"levels": 5}
    )
    return Scenario(setting, [ModeVariant.parse(name, {}) for name in ALL], {}, runs)


ALL = {STREAM: 1, SERVER_DRAFT: 3, "stop-and-wait": 2}


def test_the_ratio_is_the_median_of_the_runs_ratios():
    runs = [run_of(ALL | {STREAM: stream, "stop-and-wait": mine}) for stream, mine in ((1, 2), (2, 2), (1, 8))]
    assert case_of(runs).medians_of("stop-and-wait")["ratio_to_stream"] == pytest.approx(2.0)
    assert medians([run.metrics[STREAM] for run in runs])["tokens_per_second"] == pytest.approx(12.5)
