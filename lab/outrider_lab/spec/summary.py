"""The summary of a directory of answer files: Spec-Bench's figures of every way, and answers that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider_bench.core.stats import median
from outrider_bench.core.tables import ResultTable, table
from outrider_lab.spec.answer_file import SpecAnswer, first_runs
from outrider_lab.spec.plan import BASELINE, PLAIN
from outrider_lab.spec.records import QuestionRecord
from outrider_lab.spec.speed import OVERALL, CountTokens, SpecFigures, SpecResult, by_way, spec_results


@dataclass(frozen=True, slots=True)
class Differing:
    """Answers (all turns of a question in one run) that differ from the plain loop's.

    `largest_gap` is that of two tokens' logits where such an answer begins to differ. None: unknown, or there is none,
    as where one answer merely ends earlier.
    """

    answers: int
    of: int
    largest_gap: float | None = None

    @property
    def share(self) -> float:
        return self.answers / self.of if self.of else 0.0

    @property
    def in_words(self) -> str:
        gap = "" if self.largest_gap is None else f", at logits at most {self.largest_gap:.3g} apart"
        return f"{self.answers} answers ({self.share:.1%}) differ from those of the plain loop{gap}"

    def __str__(self) -> str:
        return f"{self.answers} of {self.of}"


@dataclass(frozen=True, slots=True)
class SpecSummary:
    """Figures by way and sub-task; `differing` is empty without the plain loop's answers, `ttft_s` without records.

    `settings` and `left_out`, of which the number of `questions` is the rest, are None and empty for a directory of
    answers; `ours` are the ways of our clients.
    """

    ways: Mapping[str, Mapping[str, SpecResult]]
    differing: Mapping[str, Differing]
    ttft_s: Mapping[str, float]
    baseline: str = BASELINE
    settings: Mapping[str, Any] | None = None  # Any: JSON
    left_out: tuple[str, ...] = ()
    questions: int = 0
    ours: tuple[str, ...] = ()

    @property
    def exact_ways(self) -> tuple[str, ...]:
        """Ways whose answers have to be those of the plain loop: ours in float32 and int8."""
        return self.ours if self.settings is not None and self.settings["dtype"] in ("float32", "int8") else ()


def summarize(
    answers: Mapping[str, Sequence[SpecAnswer]],
    count_tokens: CountTokens,
    records: Sequence[QuestionRecord] = (),
    gaps: Mapping[str, float | None] | None = None,
) -> SpecSummary:
    """Compute the summary of answers by way, the baseline among them, and compare tokens by `records`, or else texts.

    `gaps` are the largest ones by way.
    """
    runs = min(map(first_runs, answers.values()))
    results = {way: spec_results(answers[way], answers[BASELINE], runs, count_tokens) for way in _in_order(answers)}
    if records:
        differing = {
            way: replace(one, largest_gap=(gaps or {}).get(way))
            for way, one in _differing({way: _tokens(records, way) for way in results}).items()
        }
        timed = {way: median(one.turns[0].ttft_s for one in records if one.way == way) for way in results}
        return SpecSummary(results, differing, {way: value for way, value in timed.items() if value is not None})
    return SpecSummary(results, _differing({way: _texts(answers[way]) for way in results}), {})


def _in_order(ways: Mapping[str, object]) -> list[str]:
    """Return the baseline, transformers' other ways and the plain loop first."""
    return sorted(ways, key=lambda way: (way != BASELINE, not way.startswith(BASELINE), way != PLAIN, way))


_ByAnswer = Mapping[tuple[int, int | str], object]


def _tokens(records: Sequence[QuestionRecord], way: str) -> _ByAnswer:
    return {(one.run, one.question_id): one.token_ids for one in records if one.way == way}


def _texts(answers: Sequence[SpecAnswer]) -> _ByAnswer:
    return {(choice.index, answer.question_id): choice.turns for answer in answers for choice in answer.choices}


def _differing(by_way: Mapping[str, _ByAnswer]) -> dict[str, Differing]:
    plain = by_way.get(PLAIN)
    if plain is None:
        return {}
    return {
        way: Differing(sum(mine[key] != plain[key] for key in mine.keys() & plain.keys()), len(mine.keys() & plain))
        for way, mine in by_way.items()
        if way != PLAIN
    }


def speedup_table(summary: SpecSummary) -> ResultTable:
    """Build the table of speed-ups over `generate`, a column a sub-task."""
    caption = "as Spec-Bench's speed.py counts: the baseline's tokens from its text, less one a turn"
    return _table(summary, f"speed-up over {BASELINE}", caption, lambda one: one.speedup, 2)


def new_tokens_table(summary: SpecSummary) -> ResultTable:
    """Build the table of speed-ups by the tokens that were made."""
    title = f"speed-up over {BASELINE}, new tokens on both sides"
    return _table(summary, title, None, lambda one: one.speedup_of_new_tokens, 2)


def tokens_table(summary: SpecSummary) -> ResultTable:
    """Build the table of tokens per second."""
    return _table(summary, "tokens/s, prompt included", None, lambda one: one.tokens_per_second, 1)


def accepted_table(summary: SpecSummary) -> ResultTable:
    """Build the table of mean accepted tokens, with each way's differing answers and time to the first token."""
    title = "mean accepted tokens (a pass of the target, bonus included, the prompt's too)"
    built = _table(summary, title, None, lambda one: one.mean_accepted_tokens, 2)
    columns = (*built.columns, "TTFT ms", f"differ from {PLAIN}")
    more = [
        (
            f"{summary.ttft_s[way] * 1e3:.0f}" if way in summary.ttft_s else "-",
            str(summary.differing.get(way, "-")),
        )
        for way in summary.ways
    ]
    return table(title, columns, [(*row, *cells) for row, cells in zip(built.rows, more, strict=True)])


def _table(
    summary: SpecSummary, title: str, caption: str | None, value: Callable[[SpecFigures], float | None], digits: int
) -> ResultTable:
    tasks = by_way(summary.ways)
    runs = len(summary.ways[BASELINE][OVERALL].runs)
    spread = f"±: standard deviation over {runs} runs" if runs > 1 else None
    rows = [
        [way, *(_cell(results.get(task), value, digits) for task in tasks)] for way, results in summary.ways.items()
    ]
    lines = [line for line in (caption, spread) if line is not None]
    return table(title, ("way", *tasks), rows, caption="; ".join(lines) or None)


def _cell(result: SpecResult | None, value: Callable[[SpecFigures], float | None], digits: int) -> str:
    if result is None or (found := value(result.mean)) is None:
        return "-"
    spread = value(result.std)
    return f"{found:.{digits}f}" if spread is None else f"{found:.{digits}f} ±{spread:.{digits}f}"
