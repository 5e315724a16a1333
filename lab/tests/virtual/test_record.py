"""A tape is what the real models do: cycle for cycle, a replay is the client's own answer in process."""

import asyncio

import pytest
from golden_pairs import GOLDEN, PROMPTS, TARGETS, source

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.prompts import Question
from outrider_bench.network.variants import ModeVariant
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_lab.studies.recorded_features import record as all_features
from outrider_lab.virtual.record import LAGS, record, tape_position
from outrider_lab.virtual.replay import ReplaySetup, replaying
from outrider_lab.virtual.texts import TapedTexts
from outrider_netsim import Direction, Profile
from outrider_netsim.virtual.link import VirtualLink

NEW = 16
TAPED = TreeShape(breadth=4, levels=4, budget=12)
FIXED = TreeChoices.of([[0], [1], [0, 0], [1, 2]])
REPLAYED = (TAPED, TreeShape(breadth=2, levels=2, budget=3))
PACE = Pace("hand", "made up", verify_ms=30.0, draft_level_ms=6.0, server_level_ms=4.0)


async def taped(name, plan):
    """A tape of the golden pair, and what its client does with two shapes of trees."""
    target = GOLDEN / TARGETS[name]
    config = stop_and_wait_config(target=target, drafter=source(name), codec="float32")
    async with in_process(target, config) as pair:
        tape = await record(
            pair, [Question("code", tuple(p), str(number)) for number, p in enumerate(PROMPTS)], plan, 16, NEW
        )
        real = {}
        for shape in (plan,) if plan is FIXED else REPLAYED:
            async with pair.client() as client:
                real[shape] = [await gather(client, p, shape=shape, max_new_tokens=NEW) for p in PROMPTS]
        return tape, real


async def replayed(setup, link, shape):
    variant = ModeVariant.parse("stop-and-wait,wait_for_features=true", {})
    async with replaying(setup, variant, link) as client:
        return [await gather(client, prompt, shape=shape) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("name", "plan"),
    [("moa_tli0", TAPED), ("medusa_v01", FIXED), ("lookup", TAPED)],
)
def test_a_replay_drafts_what_the_real_drafter_drafts(name, plan):
    tape, real = asyncio.run(taped(name, plan))
    setup = ReplaySetup(TapedTexts(tape), Profile.symmetric("steady", Direction(20.0)), PACE, "float32", NEW)
    for shape, answered in real.items():
        link = VirtualLink(setup.profile, 1)
        again = link.clock.run(replayed(setup, link, shape))
        assert [one.token_ids for one in again] == [one.token_ids for one in answered]
        for mine, theirs in zip(again, answered, strict=True):
            assert [described(cycle) for cycle in mine.cycles] == [described(cycle) for cycle in theirs.cycles]


@pytest.mark.parametrize("name", ["moa_tli0", "medusa_v01"])
def test_late_positions_are_those_of_a_drafter_that_lacks_the_features(name):
    tape, drafter, whole = asyncio.run(taped_late(name))
    (recording,) = tape.recordings
    if drafter.tap.newest_only:
        assert not recording.late
        return
    assert recording.late[LAGS[0]] != recording.positions
    for lag, position in ((LAGS[0], 3), (LAGS[0], 9), (LAGS[1], 14)):
        root = len(PROMPTS[0]) + position
        state = drafter.new_state()
        state.append(whole.tokens[: root + 1])
        state.add_features(0, whole.features[: max(root - lag, len(PROMPTS[0]))])
        assert same(recording.late[lag][position], tape_position(state, TAPED, 16))


async def taped_late(name):
    """A tape of one answer, and all features of it."""
    plan = FIXED if name == "medusa_v01" else TAPED
    config = stop_and_wait_config(target=GOLDEN / TARGETS[name], drafter=source(name), codec="float32")
    async with in_process(GOLDEN / TARGETS[name], config) as pair:
        tape = await record(pair, [Question("code", tuple(PROMPTS[0]), "0")], plan, 16, NEW)
        question = Question("code", tuple(PROMPTS[0]), "code-0")
        (whole,) = await all_features(pair, [question], [tape.recordings[0].answer])
        return tape, pair.models.drafter, whole


def same(one, other):
    return one.guesses.keys() == other.guesses.keys() and all(
        one.guesses[path].tokens[0] == other.guesses[path].tokens[0]
        and one.guesses[path].log_probabilities == pytest.approx(other.guesses[path].log_probabilities, abs=1e-3)
        for path in one.guesses
    )


def described(cycle):
    return cycle.request.root, cycle.request.tree, cycle.verdict.path, cycle.verdict.bonus
