"""The order in which prompts are answered: random, seeded, and complete."""

from outrider_bench.core.prompts import AskedPrompts, CorpusQuestion, Question
from outrider_models.core.held_out import FAMILIES, held_out

WAYS = ("a", "b", "c", "d")


def asked() -> list[Question]:
    samples = [sample for family in FAMILIES for sample in held_out(family, 2)]
    return [CorpusQuestion(sample.family, (1, 2), f"{number}", sample) for number, sample in enumerate(samples)]


def test_all_ways_answer_a_prompt_before_the_next_in_an_order_that_the_seed_decides():
    questions = asked()
    prompts = AskedPrompts(questions, questions[0], repetitions=2, seed=3)
    order = list(prompts.order(WAYS))
    assert len(order) == len(prompts) * len(WAYS)
    turns = [order[first : first + len(WAYS)] for first in range(0, len(order), len(WAYS))]
    assert [{place for place, _ in turn} for turn in turns] == [{place} for _ in range(2) for place in range(12)]
    assert all({way for _, way in turn} == set(WAYS) for turn in turns)
    assert len({tuple(way for _, way in turn) for turn in turns}) > 8  # of 24 orders
    assert order == list(AskedPrompts(questions, questions[0], 2, 3).order(WAYS))
    assert order != list(AskedPrompts(questions, questions[0], 2, 4).order(WAYS))
