"""Figures and tables of offline quality, from what every drafter wrote after the cut. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider_bench.core.bootstrap import Interval, median_interval, ratio_interval
from outrider_bench.core.stats import share_interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table

WINDOW = 8  # tokens
KEPT_AT_LEAST = (1, 4, 16)
TARGET = "target"  # the control: its own continuation
# Times the median window's perplexity of the target's own text; a window above it is not readable. Of a small model
# that is about 10, which is as likely as text that people write.
MAX_PERPLEXITY_RATIO = 8.0


@dataclass(frozen=True, slots=True)
class OfflineText:
    """What follows the cut: tokens, each one's log-likelihood under the target, and how they begin as the target's.

    `copied`: tokens of the fallback drafter, which writes where the drafter cannot. `circles_at`: the token from which
    the text goes round in circles, by the rule of outrider-models distill; its length if it does not.
    """

    question: str
    text: str
    kept: int
    copied: int
    circles_at: int
    log_likelihoods: tuple[float, ...]

    @property
    def perplexities(self) -> list[float]:
        """One per window, of which the last may be shorter."""
        starts = range(0, len(self.log_likelihoods), WINDOW)
        return [math.exp(-statistics.fmean(self.log_likelihoods[first : first + WINDOW])) for first in starts]

    def readable(self, max_perplexity: float) -> int:
        """Return the tokens before the first window of higher perplexity or in circles; all if there is none."""
        for number, perplexity in enumerate(self.perplexities):
            first = number * WINDOW
            if perplexity > max_perplexity or self.circles_at < min(first + WINDOW, len(self.log_likelihoods)):
                return first
        return len(self.log_likelihoods)


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Tokens `first` and following after the cut, over all answers that have some of them."""

    first: int
    answers: int
    perplexity: float
    perplexity_ci95: Interval | None
    in_circles: float  # share of the answers
    in_circles_ci95: Interval | None


@dataclass(frozen=True, slots=True)
class OfflineFigures:
    """One drafter's figures over all questions; `*_ci95` are 95 % intervals over their choice.

    `kept_at_least`: share of the answers by number of tokens.
    """

    kept: float
    kept_ci95: Interval | None
    kept_median: float
    kept_median_ci95: Interval | None
    kept_at_least: dict[int, float]
    kept_at_least_ci95: dict[int, Interval | None]
    written: float
    copied_share: float
    readable: float
    readable_ci95: Interval | None
    readable_median: float
    readable_median_ci95: Interval | None
    windows: tuple[WindowFigures, ...]


@dataclass(frozen=True, slots=True)
class OfflineQuality:
    """All drafters, and the target's own continuation under the name TARGET.

    `left_out`: questions whose answers end before the cut. `mismatches`: answers whose last token before it was not the
    target's: 0, or there is a defect.
    """

    cut_at: int
    tokens: int
    questions: int
    left_out: int
    window: int
    max_perplexity: float  # of a readable window
    mismatches: Mapping[str, int]  # by drafter
    figures: Mapping[str, OfflineFigures]
    texts: Mapping[str, Sequence[OfflineText]]


def median_perplexity(some: Sequence[OfflineText]) -> float:
    """Return the median over all windows."""
    return statistics.median(perplexity for one in some for perplexity in one.perplexities)


def offline_figures(some: Sequence[OfflineText], max_perplexity: float) -> OfflineFigures:
    """Compute the figures of one drafter; windows up to `max_perplexity` are readable."""
    kept, readable = [one.kept for one in some], [one.readable(max_perplexity) for one in some]
    written, ones = [len(one.log_likelihoods) for one in some], [1] * len(some)
    reached = {least: sum(count >= least for count in kept) for least in KEPT_AT_LEAST}
    return OfflineFigures(
        kept=statistics.fmean(kept),
        kept_ci95=ratio_interval(kept, ones),
        kept_median=statistics.median(kept),
        kept_median_ci95=median_interval([kept]),
        kept_at_least={least: count / len(some) for least, count in reached.items()},
        kept_at_least_ci95={least: share_interval(count, len(some)) for least, count in reached.items()},
        written=statistics.fmean(written),
        copied_share=sum(one.copied for one in some) / max(sum(written), 1),
        readable=statistics.fmean(readable),
        readable_ci95=ratio_interval(readable, ones),
        readable_median=statistics.median(readable),
        readable_median_ci95=median_interval([readable]),
        windows=tuple(_window(some, first) for first in range(0, max(written), WINDOW)),
    )


def _window(some: Sequence[OfflineText], first: int) -> WindowFigures:
    there = [one for one in some if len(one.log_likelihoods) > first]
    parts = [one.log_likelihoods[first : first + WINDOW] for one in there]
    losses, counts = [-sum(part) for part in parts], [len(part) for part in parts]
    interval = ratio_interval(losses, counts)
    circling = sum(one.circles_at < first + len(part) for one, part in zip(there, parts, strict=True))
    return WindowFigures(
        first=first,
        answers=len(there),
        perplexity=math.exp(sum(losses) / sum(counts)),
        perplexity_ci95=None if interval is None else (math.exp(interval[0]), math.exp(interval[1])),
        in_circles=circling / len(there),
        in_circles_ci95=share_interval(circling, len(there)),
    )


def kept_table(result: OfflineQuality) -> ResultTable:
    """Build a row per drafter: what the target keeps, and how long the text stays readable."""
    rows = [
        [
            name,
            plus_minus(one.kept, one.kept_ci95, 1),
            plus_minus(one.kept_median, one.kept_median_ci95, 1),
            *(plus_minus(one.kept_at_least[least], one.kept_at_least_ci95[least], 2) for least in KEPT_AT_LEAST),
            plus_minus(one.readable, one.readable_ci95, 1),
            plus_minus(one.readable_median, one.readable_median_ci95, 1),
            f"{one.written:.1f}",
            f"{one.copied_share:.2f}",
        ]
        for name, one in result.figures.items()
    ]
    columns = ("drafter", "kept", "median", *(f">= {least}" for least in KEPT_AT_LEAST))
    title = f"tokens written after a cut at {result.cut_at}, of at most {result.tokens}: {result.questions} answers"
    caption = (
        f"readable: before the first {result.window} tokens of a perplexity above {result.max_perplexity:.3g} "
        f"({MAX_PERPLEXITY_RATIO:g} x the target's own median) or in circles; {OVER_PROMPTS}"
    )
    return table(title, (*columns, "readable", "median", "written", "copied"), rows, caption=caption)


def perplexity_table(result: OfflineQuality) -> ResultTable:
    """Build a row per drafter: the text's perplexity under the target, by distance from the cut."""
    return _window_table(
        "perplexity under the target, by tokens since the cut",
        result,
        lambda one: plus_minus(one.perplexity, one.perplexity_ci95, 2),
    )


def circles_table(result: OfflineQuality) -> ResultTable:
    """Build a row per drafter: the share of the answers that go round in circles, by distance from the cut."""
    return _window_table(
        "share of the answers that go round in circles, by tokens since the cut",
        result,
        lambda one: plus_minus(one.in_circles, one.in_circles_ci95, 2),
    )


def _window_table(title: str, result: OfflineQuality, cell: Callable[[WindowFigures], str]) -> ResultTable:
    rows = [[name, *map(cell, one.windows)] for name, one in result.figures.items()]
    count = max(len(row) for row in rows) - 1
    return table(title, ("drafter", *(f"{number * WINDOW}" for number in range(count))), rows, caption=OVER_PROMPTS)
