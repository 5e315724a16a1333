"""Replays of tapes made by hand: times and calls that follow from a sheet of paper, by the client's own modes."""

from dataclasses import replace

import pytest

from outrider_bench.network.variants import ModeVariant
from outrider_drafters.emulation.pace import Pace
from outrider_lab.virtual.replay import ReplaySetup, answers, replay
from outrider_lab.virtual.tape import Thinning, thinned
from outrider_lab.virtual.texts import TapedTexts
from outrider_netsim import Direction, Profile, profile_named
from outrider_proto.errors import UsageError

from .tapes import CYCLE, LEVELS, NEVER, RIGHT, SECOND, answer_of, recording_of, tape_of, texts_of

NEW = 1 + 8 * CYCLE  # the prompt's own token, and eight cycles in which all is accepted
DELAY_MS = 40.0
PACE = Pace("hand", "made up", verify_ms=30.0, draft_level_ms=6.0, server_level_ms=4.0, batch_factors={8: 1.0})
T_V, T_D, T_S, R = 0.030, 0.006, 0.004, 2 * DELAY_MS / 1e3
STEADY = Profile.symmetric("steady", Direction(DELAY_MS))
CHAIN = {"breadth": 1, "levels": LEVELS, "budget": LEVELS}
AHEAD = ("proactive,outcomes=1", "proactive", "pipelined,outcomes=1", "pipelined")
MODES = ("stream", "server-draft", "stop-and-wait", "stop-and-wait,wait_for_features=true", *AHEAD)


def ends_of_cycles(number):
    return number % CYCLE == 0


def variant(text):
    return ModeVariant.parse(text, CHAIN)


def setup(ranks=lambda number: RIGHT, profile=STEADY, pace=PACE):
    return ReplaySetup(texts_of(recording_of(NEW, ranks)), profile, pace, max_new_tokens=NEW)


def variant_metrics(text, on):
    return replay(on, [variant(text)], seed=1).metrics[text]


def speed(text, on):
    return variant_metrics(text, on).tokens_per_second


@pytest.mark.parametrize(
    ("text", "cycle_s"),
    [
        ("stop-and-wait", LEVELS * T_D + R + T_V),
        ("stop-and-wait,wait_for_features=true", LEVELS * T_D + R + T_V),  # the link has no rate: they come along
        ("server-draft", LEVELS * T_S + T_V),
    ],
)
def test_a_cycle_takes_as_long_as_its_parts(text, cycle_s):
    found = variant_metrics(text, setup())
    assert found.tokens_per_second == pytest.approx(CYCLE / cycle_s, rel=1e-6)
    assert found.mean_acceptance_length == CYCLE
    assert found.target_calls == 1 + 8


@pytest.mark.parametrize(("levels_per_pass", "passes"), [(LEVELS, 1), (LEVELS - 1, 2)])
def test_the_levels_of_a_block_are_one_pass(levels_per_pass, passes):
    texts = TapedTexts(tape_of(recording_of(NEW), levels_per_pass=levels_per_pass))
    on = ReplaySetup(texts, STEADY, PACE, max_new_tokens=NEW)
    assert speed("stop-and-wait", on) == pytest.approx(CYCLE / (passes * T_D + R + T_V), rel=1e-6)
    assert speed("server-draft", on) == pytest.approx(CYCLE / (passes * T_S + T_V), rel=1e-6)
    ahead = 8 * CYCLE / (8 * (R + T_V) + passes * T_D)
    assert speed("proactive,outcomes=1", on) == pytest.approx(ahead, rel=1e-6)


def test_the_stream_is_blind_to_the_round_trip():
    found = variant_metrics("stream", setup())
    assert found.tokens_per_second == pytest.approx(1 / T_V, rel=1e-6)
    assert found.target_calls == NEW


def test_a_draft_made_ahead_costs_no_drafting():
    """The whole chain and the bonus the drafter believes in: the likeliest outcome, each time."""
    found = variant_metrics("proactive,outcomes=1", setup())
    assert found.hit_rate == 1.0
    assert found.target_calls == 1 + 8
    assert found.tokens_per_second == pytest.approx(8 * CYCLE / (8 * (R + T_V) + LEVELS * T_D), rel=1e-6)


def test_a_bonus_that_the_drafter_holds_second_takes_more_than_one_outcome():
    """Among all outcomes that one is the sixth: before it come the whole chain and a second choice at every node."""
    on = setup(lambda number: SECOND if ends_of_cycles(number) else RIGHT)
    one, eight = variant_metrics("proactive,outcomes=1", on), variant_metrics("proactive,outcomes=8", on)
    assert (one.hit_rate, eight.hit_rate) == (0.0, 1.0)
    assert one.target_calls == eight.target_calls == 1 + 8
    assert eight.tokens_per_second > one.tokens_per_second
    assert one.tokens_per_second == pytest.approx(speed("stop-and-wait", on), rel=0.1)  # guessing never delays much


def test_two_drafts_in_flight_share_a_round_trip():
    """A draft leaves as soon as it is made, so two cycles fit into R + T_v, which is longer than two drafts take."""
    found = variant_metrics("pipelined,in_flight=2,outcomes=1", setup())
    assert found.hit_rate == 1.0
    assert found.tokens_per_second > 1.6 * speed("proactive,outcomes=1", setup())
    assert found.mean_acceptance_length == CYCLE


def test_late_features_cost_what_was_taped_of_them():
    """Features come after their verdict; without the newest ones nothing is guessed, but at first."""
    recording = recording_of(NEW)
    blind = recording_of(NEW, lambda number: NEVER).positions
    late = replace(recording, late={CYCLE: (*recording.positions[:2], *blind[2:])})
    on = ReplaySetup(texts_of(late), STEADY, PACE, max_new_tokens=NEW)
    fresh, without = (variant_metrics(f"stop-and-wait,wait_for_features={wait}", on) for wait in ("true", "false"))
    assert (fresh.mean_acceptance_length, fresh.stale_tokens) == (CYCLE, 0.0)
    assert without.mean_acceptance_length < CYCLE
    run = replay(on, [variant("pipelined,outcomes=1")], seed=1)
    assert run.metrics["pipelined,outcomes=1"].mean_acceptance_length < CYCLE
    assert run.mismatches == {"pipelined,outcomes=1": 0}


def test_stale_drafts_cost_the_server_nothing():
    """All drafts sent ahead assume a bonus that does not come."""
    on = setup(lambda number: NEVER if ends_of_cycles(number) else RIGHT)
    found = variant_metrics("pipelined,outcomes=1", on)
    assert found.stale_drafts > 0
    assert found.server_busy_ms_per_token == pytest.approx(T_V * 1e3 / CYCLE, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "profile"), [*((text, "paper-4g") for text in MODES), ("pipelined", "lte-edge"), ("proactive", "wifi")]
)
def test_every_mode_gives_the_tapes_answer_through_jitter_and_loss(text, profile):
    """Again and again with the same metrics."""
    recordings = (
        recording_of(NEW, lambda number: (RIGHT, RIGHT, SECOND, RIGHT, NEVER)[number * number % 5]),
        recording_of(NEW, lambda number: SECOND if number % 3 == 0 else RIGHT, "hand-1", (9, 8), salt=3),
    )
    on = ReplaySetup(texts_of(*recordings), profile_named(profile), PACE, max_new_tokens=NEW)
    run = replay(on, [variant(text)], seed=5)
    assert run.mismatches == {text: 0}
    assert run == replay(on, [variant(text)], seed=5)
    assert run != replay(on, [variant(text)], seed=6)


def test_an_answer_may_end_before_its_limit():
    recording = recording_of(NEW)
    ended = replace(recording, answer=(*recording.answer[:12], 0), positions=recording.positions[:13])
    on = ReplaySetup(TapedTexts(tape_of(ended)), STEADY, PACE, max_new_tokens=NEW)
    for text in MODES:
        assert [one.token_ids for one in answers(on, variant(text), 1)] == [(*answer_of(12), 0)]


def test_features_have_the_size_of_padded_rows():
    wide = replace(PACE, feature_width=2048)
    thin_link = Profile.symmetric("thin", Direction(DELAY_MS, rate_bps=20e6))
    narrow, padded = (variant_metrics("stop-and-wait,wait_for_features=true", setup(pace=p)) for p in (PACE, wide))
    assert padded.bytes_down_per_token > 1800 > 100 > narrow.bytes_down_per_token
    waits, goes_on = (
        variant_metrics(text, setup(profile=thin_link, pace=wide))
        for text in ("stop-and-wait,wait_for_features=true", "stop-and-wait,wait_for_features=false")
    )
    assert waits.tokens_per_second < goes_on.tokens_per_second


def test_a_thinned_tape_is_slower_and_never_wrong():
    tape = tape_of(recording_of(NEW))
    taus = []
    for share in (0.0, 0.2, 0.5, 1.0):
        on = ReplaySetup(TapedTexts(thinned(tape, Thinning(share, 2))), STEADY, PACE, max_new_tokens=NEW)
        run = replay(on, [variant("stop-and-wait")], seed=1)
        assert run.mismatches == {"stop-and-wait": 0}
        taus.append(run.metrics["stop-and-wait"].mean_acceptance_length)
    assert taus == sorted(taus, reverse=True)
    assert (taus[0], taus[-1]) == (CYCLE, 1.0)


def test_a_replay_cannot_ask_for_more_than_was_taped():
    with pytest.raises(UsageError, match="the tape has"):
        ReplaySetup(texts_of(recording_of(NEW)), STEADY, PACE, max_new_tokens=NEW + 1)
