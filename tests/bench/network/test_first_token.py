"""Long prompts, and how answers to them begin."""

import pytest

from outrider_bench.core.prompts import lengthened, questions
from outrider_bench.network.link_endpoint import PingStats
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.timed_answer import Arrival, TimedAnswer
from outrider_client.core.config import ClientConfig
from outrider_client.core.statistics import Statistics
from outrider_client.models.local_models import LocalModels


def arrived(*arrivals: tuple[float, int]) -> TimedAnswer:
    came = tuple(Arrival(at_ms, tokens) for at_ms, tokens in arrivals)
    return TimedAnswer(tuple(range(sum(one.tokens for one in came))), came, (), Statistics())


@pytest.fixture(scope="module")
def models() -> LocalModels:
    return LocalModels.load(ClientConfig(drafter="none"))


def test_ratios_are_of_the_same_prompt_and_need_the_token_in_both():
    mine = [arrived((100, 1), (400, 40)), arrived((90, 1), (100, 2))]
    its = [arrived((50, 1), (800, 40)), arrived((60, 1), (900, 40))]
    run = ScenarioRun({}, {}, PingStats.of([1.0]), {"auto": mine, "stream": its})
    assert run.ratios_to_token("auto", 1) == [2.0, 1.5]
    assert run.ratios_to_token("auto", 32) == [0.5]


def test_a_question_is_asked_after_others_that_no_other_prompt_has(models):
    asked = questions(models, lambda family: 2 * (family in ("code", "math")))
    late = lengthened(asked, models, 300)
    for before, after in zip(asked, late, strict=True):
        assert 300 <= len(after.prompt) < 600
        assert after.sample.messages[-1] == before.sample.messages[-1]
        assert after.sample.answer == before.sample.answer
    openings = {after.sample.messages[0].content for after in late}
    assert len(openings) == len(late)
    assert lengthened(asked, models, 300) == late
