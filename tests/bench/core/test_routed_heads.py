"""Two heads that draft for one client, each at its own kind of text: the answer is the target's own."""

import pytest

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import COLD, in_process, stop_and_wait_config
from outrider_bench.core.prompts import questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_drafters.routing.rules import Routing
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_server.engine.target import Target


async def routed(routing: Routing, heads=("eagle2_math", "eagle2_chat")):
    """Return the answers to a question of each family, and what the second head cost."""
    first, *others = map(drafter_dir, heads)
    config = stop_and_wait_config(target=target_dir(), drafter=first, other_heads=tuple(others), routing=routing)
    target = Target.load(str(target_dir()))
    async with in_process(target_dir(), config, target, COLD) as pair:
        asked = questions(pair.models, 1)
    expected = plain_answers(target, asked, 12, lambda *_: None)
    async with in_process(target_dir(), config, target, COLD) as pair, pair.client() as client:
        answers = [await gather(client, one.prompt, max_new_tokens=12) for one in asked]
    assert [answer.token_ids for answer in answers] == expected
    return answers


def total(answers, count: str) -> int:
    return sum(getattr(answer.statistics.heads, count) for answer in answers)


async def test_a_second_head_doubles_the_drafts_but_in_one_batch_not_the_passes():
    alone = await routed(Routing(), ("eagle2_math",))
    apart, batch = await routed(Routing(batched=False)), await routed(Routing())
    assert total(apart, "drafts") == total(batch, "drafts") == 2 * sum(len(answer.cycles) for answer in batch)
    assert total(apart, "passes") == 2 * total(batch, "passes")
    assert total(alone, "drafts") == sum(len(answer.cycles) for answer in alone)


@pytest.mark.parametrize("routing", [Routing("entropy"), Routing(gate=0.5, batched=False), Routing(gate=0.5)])
async def test_every_way_of_choosing_is_exact(routing):
    answers = await routed(routing)
    assert bool(total(answers, "gate_skips")) == (routing.gate is not None)
