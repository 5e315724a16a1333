"""The figures that Spec-Bench's evaluation/speed.py computes from answer files. Pure.

    mean accepted tokens = the mean of all accept_lengths of the questions of a sub-task
    tokens/s             = the mean over questions of sum(new_tokens) / sum(wall_time)
    speed-up             = the ratio of that mean to the baseline's

The baseline's tokens are counted anew there: those of its text, less one a turn, since Vicuna's tokenizer puts a
special token first. With other tokenizers that takes a token too many away, and the end of text is never counted. The
baseline then looks slower, by a tenth or two for an answer of ten tokens. So there is `speedup_of_new_tokens` too, from
`new_tokens` on both sides.

Sub-tasks are those of speed.py, MT-bench's eight categories together; a category that is none of Spec-Bench's is one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from outrider_bench.core.stats import Number, mean, ratio
from outrider_lab.spec.answer_file import SpecAnswer, SpecChoice

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SUB_TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
OVERALL = "overall"
CountTokens = Callable[[str], int]  # of a text, special tokens included


@dataclass(frozen=True, slots=True)
class SpecFigures:
    """Figures of a sub-task in one run."""

    mean_accepted_tokens: Number
    tokens_per_second: Number
    baseline_tokens_per_second: Number
    speedup: Number
    speedup_of_new_tokens: Number


@dataclass(frozen=True, slots=True)
class SpecResult:
    """Figures of a sub-task: means over the runs, their standard deviations (None of one run), and each run's own."""

    questions: int
    mean: SpecFigures
    std: SpecFigures
    runs: tuple[SpecFigures, ...]

    @classmethod
    def of(cls, questions: int, runs: Sequence[SpecFigures]) -> SpecResult:
        by_name = {field.name: [getattr(run, field.name) for run in runs] for field in fields(SpecFigures)}
        known = {name: [value for value in values if value is not None] for name, values in by_name.items()}
        return cls(
            questions,
            SpecFigures(**{name: mean(values) for name, values in known.items()}),
            SpecFigures(
                **{name: statistics.stdev(values) if len(values) > 1 else None for name, values in known.items()}
            ),
            tuple(runs),
        )


def sub_task_of(category: str) -> str:
    return "mt_bench" if category in MT_BENCH else category


def spec_results(
    answers: Sequence[SpecAnswer], baseline: Sequence[SpecAnswer], runs: int, count_tokens: CountTokens
) -> dict[str, SpecResult]:
    """Return the figures of each sub-task that has questions, and over all; run n compares the choices n of both."""
    categories = dict.fromkeys(sub_task_of(answer.category) for answer in answers)
    tasks = [*(task for task in SUB_TASKS if task in categories), *(one for one in categories if one not in SUB_TASKS)]
    found = {}
    for task in (*tasks, OVERALL):
        mine, theirs = (
            [one for one in some if task in (sub_task_of(one.category), OVERALL)] for some in (answers, baseline)
        )
        found[task] = SpecResult.of(len(mine), [_figures(mine, theirs, run, count_tokens) for run in range(runs)])
    return found


def _figures(
    answers: Sequence[SpecAnswer], baseline: Sequence[SpecAnswer], run: int, count_tokens: CountTokens
) -> SpecFigures:
    mine, theirs = ([answer.choices[run] for answer in some] for some in (answers, baseline))
    speed = mean(map(_speed, mine))
    counted = mean(sum(count_tokens(turn) - 1 for turn in one.turns) / sum(one.wall_time) for one in theirs)
    plain = mean(map(_speed, theirs))
    return SpecFigures(
        mean(length for one in mine for length in one.accept_lengths),
        speed,
        counted,
        ratio(speed, counted) if speed is not None and counted is not None else None,
        ratio(speed, plain) if speed is not None and plain is not None else None,
    )


def _speed(choice: SpecChoice) -> float:
    return sum(choice.new_tokens) / sum(choice.wall_time)


def by_way(results: Mapping[str, Mapping[str, SpecResult]]) -> list[str]:
    """Return the sub-tasks of all ways in their order, the sum last."""
    tasks = dict.fromkeys(task for of_way in results.values() for task in of_way if task != OVERALL)
    return [*tasks, OVERALL]
