"""Overhead beside link and hardware: how it is read from metrics, and where it is added. A server that is stopped
sends its last rows."""

from dataclasses import replace

import pytest
from virtual_tapes import CYCLE, LEVELS, recording_of, texts_of

from outrider_bench.network.metrics import variant_metrics
from outrider_bench.network.variants import ModeVariant
from outrider_bench.virtual.overhead import Overhead
from outrider_bench.virtual.replay import ReplaySetup, answers
from outrider_drafters.emulation.pace import Pace
from outrider_netsim import Direction, Profile
from outrider_proto.errors import UsageError

NEW = 1 + 6 * CYCLE
PACE = Pace("hand", "made up", verify_ms=30.0, draft_level_ms=6.0, server_level_ms=4.0)
CHAIN = {"breadth": 1, "levels": LEVELS, "budget": LEVELS}


FAST, SLOW = Direction(10.0), Direction(10.0, rate_bps=2e5)
SHORT = (recording_of(NEW),)
LONG = recording_of(NEW, prompt=(1, 2, 3) * 14), recording_of(NEW, name="hand-1", prompt=(3, 2, 1) * 14, salt=5)


def speed(mode: str, overhead: Overhead, recordings=SHORT, variant=FAST) -> float:
    link = Profile.symmetric("20 ms", variant)
    setup = ReplaySetup(texts_of(*recordings), link, PACE, max_new_tokens=NEW, overhead=overhead)
    run = variant_metrics(answers(setup, ModeVariant.parse(mode, CHAIN), 1), 20.0, bounded=False)
    assert run.tokens_per_second is not None
    return run.tokens_per_second


@pytest.mark.parametrize(
    ("mode", "overhead", "more_ms"),
    [
        ("stream", Overhead(between_passes_ms=3.0), 3.0),
        ("stream", Overhead(exchange_ms=5.0, level_ms=1.0), 0.0),
        ("server-draft", Overhead(between_passes_ms=3.0, level_ms=1.0), 3.0 + LEVELS),
        ("stop-and-wait", Overhead(exchange_ms=5.0, level_ms=1.0), 5.0 + LEVELS),
        ("stop-and-wait", Overhead(between_passes_ms=3.0), 0.0),
    ],
)
def test_overhead_adds_to_what_it_is_of(mode, overhead, more_ms):
    tokens = 1 if mode == "stream" else CYCLE
    longer_ms = 1e3 * tokens / speed(mode, overhead) - 1e3 * tokens / speed(mode, Overhead())
    assert longer_ms == pytest.approx(more_ms, abs=0.4)


def test_levels_for_several_outcomes_have_an_overhead_of_their_own():
    overhead = Overhead(level_ms=1.0, ahead_level_ms=2.5)
    wide = replace(PACE, batch_factors={1: 1.0, 8: 1.5})
    assert overhead.drafting_s(wide, 1) == pytest.approx(0.007)
    assert overhead.drafting_s(wide, 8) == pytest.approx(0.0115)
    link = Profile.symmetric("100 ms", Direction(50.0))
    setup = ReplaySetup(texts_of(*SHORT), link, wide, max_new_tokens=NEW, overhead=overhead)
    run = variant_metrics(answers(setup, ModeVariant.parse("proactive,outcomes=8", CHAIN), 1), 100.0, bounded=False)
    assert (run.level_ms, run.ahead_level_ms) == (pytest.approx(7.0), pytest.approx(11.5))


REAL = {
    "stream": {"queue_ms": 2.5},
    "stop-and-wait": {"exchange_ms": 37.0, "level_ms": 7.75},
    "proactive": {"ahead_level_ms": 8.2},
}
BARE = {
    "stream": {"queue_ms": 0.0},
    "stop-and-wait": {"exchange_ms": 31.0, "level_ms": 7.0},
    "proactive": {"ahead_level_ms": 8.5},
}


def test_overhead_is_what_the_real_stack_takes_longer():
    assert Overhead.fitted([(REAL, BARE)]) == Overhead(6.0, 0.75, 0.0, 2.5)


def test_overhead_of_several_cases_is_their_mean_before_noise_is_cut_off():
    quicker = {**REAL, "stop-and-wait": {"exchange_ms": 33.0, "level_ms": 6.0}, "proactive": {}}
    assert Overhead.fitted([(REAL, BARE), (quicker, BARE)]) == Overhead(4.0, 0.0, 0.0, 2.5)


@pytest.mark.parametrize(("mode", "figure"), [("stop-and-wait", "level_ms"), ("proactive", "ahead_level_ms")])
def test_overhead_needs_metrics_of_three_modes(mode, figure):
    with pytest.raises(UsageError, match=f"no {figure} of {mode}"):
        Overhead.fitted([({**REAL, mode: {**REAL[mode], figure: None}}, BARE)])
    with pytest.raises(UsageError, match=f"of {mode}"):
        Overhead.fitted([({name: told for name, told in REAL.items() if name != mode}, BARE)])


def test_overhead_is_not_negative():
    with pytest.raises(UsageError, match="level_ms=-1"):
        Overhead(level_ms=-1.0)


def test_a_drafter_that_waits_for_features_need_not_wait_long_after_the_server_was_stopped():
    waiting, going_on = (
        speed(mode, Overhead(), LONG, SLOW) for mode in ("stop-and-wait,wait_for_features=true", "stop-and-wait")
    )
    assert waiting > 0.8 * going_on
