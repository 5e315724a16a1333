"""Spec-Bench's figures, computed by hand from small answers."""

import pytest

from outrider_lab.spec.answer_file import SpecAnswer, SpecChoice
from outrider_lab.spec.speed import OVERALL, SpecFigures, spec_results


def answer(category: str, *choices: SpecChoice, number: int = 1) -> SpecAnswer:
    return SpecAnswer(number, category, "a", "m", choices, 0.0)


def choice(tokens: list[int], seconds: list[float], lengths: list[int], text: str = "a b c d", index: int = 0):
    return SpecChoice(index, (text,) * len(tokens), (1,) * len(tokens), tuple(tokens), tuple(seconds), tuple(lengths))


def words(text: str) -> int:
    """A tokenizer that puts a special token first."""
    return 1 + len(text.split())


MINE = [
    answer("writing", choice([6, 2], [1.0, 1.0], [3, 3, 2])),  # 4 a second
    answer("coding", choice([10], [1.0], [5, 5])),  # 10
    answer("qa", choice([4], [4.0], [1, 1, 1, 1])),  # 1
]
PLAIN = [
    answer("writing", choice([9, 9], [4.0, 4.0], [1] * 18)),  # by its text 2 x 4 tokens: 1 a second
    answer("coding", choice([9], [2.0], [1] * 9)),  # 2
    answer("qa", choice([4], [4.0], [1] * 4)),  # 1
]


def test_a_rate_is_the_mean_over_questions_and_accepted_tokens_over_passes():
    found = spec_results(MINE, PLAIN, 1, words)
    assert list(found) == ["mt_bench", "qa", OVERALL]
    mt_bench, overall = found["mt_bench"].mean, found[OVERALL].mean
    assert mt_bench.mean_accepted_tokens == (3 + 3 + 2 + 5 + 5) / 5
    assert mt_bench.tokens_per_second == (4 + 10) / 2  # not 18 / 3
    assert mt_bench.baseline_tokens_per_second == (1 + 2) / 2
    assert mt_bench.speedup == pytest.approx(7 / 1.5)  # not the mean of 4 and 5
    assert overall.tokens_per_second == 5
    assert overall.speedup == pytest.approx(5 / (4 / 3))
    assert overall.speedup_of_new_tokens == pytest.approx(5 / ((18 / 8 + 9 / 2 + 1) / 3))
    assert found["qa"].mean == SpecFigures(1.0, 1.0, 1.0, 1.0, 1.0)
    assert (found["qa"].questions, found[OVERALL].questions) == (1, 3)


def test_runs_are_compared_with_the_same_run_and_have_a_sample_s_deviation():
    mine = [answer("rag", *(choice([10], [seconds], [5, 5], index=n) for n, seconds in enumerate((1.0, 2.0, 5.0))))]
    plain = [answer("rag", *(choice([4], [seconds], [1] * 4, index=n) for n, seconds in enumerate((1.0, 1.0, 2.0))))]
    found = spec_results(mine, plain, 3, words)["rag"]
    assert [run.speedup for run in found.runs] == [2.5, 1.25, 1.0]
    assert found.mean.speedup == pytest.approx(4.75 / 3)
    squares = [(value - 4.75 / 3) ** 2 for value in (2.5, 1.25, 1.0)]
    assert found.std.speedup == pytest.approx((sum(squares) / 2) ** 0.5)
    assert found.std.mean_accepted_tokens == 0
    assert spec_results(mine, plain, 1, words)["rag"].std.speedup is None


def test_sub_tasks_come_in_spec_bench_s_order_and_others_after_them():
    mixed = [answer(name, choice([4], [1.0], [4])) for name in ("all", "rag", "stem", "translation")]
    assert list(spec_results(mixed, mixed, 1, words)) == ["mt_bench", "translation", "rag", "all", OVERALL]
