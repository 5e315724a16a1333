"""Figures, tables and plots of compared drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outrider_bench.core.acceptance import ALL, PositionAcceptance
from outrider_bench.core.bootstrap import Interval, median_interval
from outrider_bench.core.plots import reaches, saved_figure
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, plus_minuses, table
from outrider_client.core.head_statistics import HeadUse

MAX_POSITIONS = 8  # columns
PLAIN = "plain loop"
Repeated = Sequence[Sequence[float]]  # by repetition and prompt


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second, and the ratio to the plain loop: medians over prompts, then over repetitions.

    `*_ci95` are their 95 % intervals, `by_group` has easy and hard text apart, or a user's categories.
    `joules_per_token`: of the whole processor, None without a meter.
    """

    tokens_per_s: float
    speedup: float
    tokens_per_s_ci95: Interval | None
    speedup_ci95: Interval | None
    by_group: Mapping[str, Speed] = field(default_factory=dict)
    joules_per_token: float | None = None
    joules_per_token_ci95: Interval | None = None

    @classmethod
    def of(cls, seconds: Repeated, plain: Repeated, lengths: Sequence[int], joules: Repeated = ()) -> Speed:
        """Compute it from the seconds of each answer and of the plain loop's, the answers' tokens, and their joules.

        `joules`: NaN, or nothing, without a meter.
        """
        rates = [[tokens / took for tokens, took in zip(lengths, run, strict=True)] for run in seconds]
        ratios = [
            [its / mine for its, mine in zip(theirs, run, strict=True)]
            for theirs, run in zip(plain, seconds, strict=True)
        ]
        energy = [[taken / tokens for tokens, taken in zip(lengths, run, strict=True)] for run in joules]
        return cls(
            median_of_medians(rates) or 0.0,
            median_of_medians(ratios) or 0.0,
            median_interval(rates),
            median_interval(ratios),
            joules_per_token=median_of_medians(energy),
            joules_per_token_ci95=median_interval(energy) if energy else None,
        )


@dataclass(frozen=True, slots=True)
class DrafterMetrics:
    """One drafter's acceptance lengths, acceptance by position, time per drafted level, and bytes per token.

    All but the time are the same in every repetition. `*_ci95` are 95 % intervals, those of tau as in TauByText.
    `mismatches` counts answers that differ from the plain loop's, apart from those sampled ones that `rounded` counts:
    they depart where a draw falls on a border of two tokens' probabilities.
    """

    family: str
    tau: Mapping[str, float]
    overall: float
    positions: PositionAcceptance
    draft_ms_per_level: float
    bytes_up_per_token: float
    bytes_down_per_token: float
    mismatches: int
    tau_by_group: Mapping[str, float]
    tau_ci95: Mapping[str, Interval | None]
    draft_ms_per_level_ci95: Interval | None
    rounded: int = 0


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """One prompt: new tokens, seconds of every way in each repetition, verdicts on drafts, their tokens, and heads."""

    family: str
    tokens: int
    seconds: Mapping[str, Sequence[float]]
    verdicts: Mapping[str, int]
    judged: Mapping[str, int]  # tokens of these verdicts, bonus included
    heads: Mapping[str, HeadUse]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Metrics by drafter, speeds of drafters, controls and the plain loop, and what both are made of.

    `seed`: of the order, and at a temperature of the draws.
    """

    drafters: Mapping[str, DrafterMetrics]
    speeds: Mapping[str, Speed]
    repetitions: int
    seed: int
    prompts: Sequence[PromptFigures] = ()
    temperature: float = 0.0


def families_table(result: Comparison) -> ResultTable:
    """Build the table of mean acceptance lengths by family, of easy and hard text, and over all."""
    rows = []
    for name, drafted in result.drafters.items():
        figures = _tau(drafted)
        rows.append([name, drafted.family, *plus_minuses(figures, drafted.tau_ci95, 2)])
    columns = ("drafter", "family", *_tau(next(iter(result.drafters.values()))))
    how = f", temperature {result.temperature:g}" if result.temperature else ""
    title = f"mean acceptance length (tokens per verdict, bonus included{how})"
    return table(title, columns, rows, caption=OVER_PROMPTS)


def positions_table(result: Comparison) -> ResultTable:
    """Build the table of shares that accepted the n-th drafted token, of those that accepted the one before."""
    depth = min(MAX_POSITIONS, max(len(drafted.positions.kept) for drafted in result.drafters.values()))
    rows = [
        [
            name,
            *(f"{share:.2f}" for share in drafted.positions.kept[:depth]),
            *[""] * (depth - len(drafted.positions.kept)),
        ]
        for name, drafted in result.drafters.items()
    ]
    return table(
        "accepted at position n, of those accepted before it", ("drafter", *map(str, range(1, depth + 1))), rows
    )


def speeds_table(result: Comparison) -> ResultTable:
    """Build the table of speeds and costs; medians over prompts and repetitions."""
    rows = []
    metered = any(speed.joules_per_token is not None for speed in result.speeds.values())
    for name, speed in result.speeds.items():
        drafted = result.drafters.get(name)
        cost = ["", "", "", ""]
        if drafted is not None:
            level_ms = plus_minus(drafted.draft_ms_per_level, drafted.draft_ms_per_level_ci95, 2)
            sizes = (drafted.bytes_up_per_token, drafted.bytes_down_per_token)
            cost = [level_ms, *(f"{size:.0f}" for size in sizes), f"{drafted.mismatches}"]
        by_group = [_speedup(of_group) for of_group in speed.by_group.values()]
        tokens_per_s = plus_minus(speed.tokens_per_s, speed.tokens_per_s_ci95, 0)
        energy = [plus_minus(speed.joules_per_token, speed.joules_per_token_ci95, 3)] if metered else []
        rows.append([name, tokens_per_s, _speedup(speed), *by_group, *energy, *cost])
    groups = (f"x, {group}" for group in next(iter(result.speeds.values())).by_group)
    energy = ["J a token"] if metered else []
    columns = ("way", "tokens/s", "x plain", *groups, *energy, "ms a level", "bytes up", "bytes down", "not exact")
    title = "in process, one answer at a time (bytes a new token, the prompt's share included)"
    return table(title, columns, rows, caption=f"{OVER_PROMPTS}, asked {result.repetitions} times in random order")


def plot_comparison(result: Comparison, path: Path) -> None:
    """Plot mean acceptance length by family, acceptance by position, and speeds."""
    from matplotlib.ticker import MaxNLocator

    with saved_figure(path, 1, 3, figsize=(16.5, 4.5)) as (_, (left, middle, right)):
        width = 0.8 / len(result.drafters)
        for number, (name, drafted) in enumerate(result.drafters.items()):
            places = [place + number * width - 0.4 for place in range(len(drafted.tau))]
            errors = reaches(drafted.tau, drafted.tau_ci95)
            heights = [tau - 1 for tau in drafted.tau.values()]
            left.bar(places, heights, width * 0.9, bottom=1, label=name, yerr=errors, error_kw={"linewidth": 0.8})
            left.set_xticks(range(len(drafted.tau)), list(drafted.tau), rotation=30)
            middle.plot(range(1, len(drafted.positions.kept) + 1), drafted.positions.kept, "o-", label=name)
        left.set_title("mean acceptance length")
        left.set_ylabel("tokens per verdict, bonus included")
        left.set_ylim(top=left.get_ylim()[1] * 1.25)  # room for the legend
        left.legend(frameon=False, fontsize="small", ncols=3)
        middle.set_title("acceptance by position")
        middle.set_xlabel("drafted token")
        middle.xaxis.set_major_locator(MaxNLocator(integer=True))
        middle.set_ylabel("accepted, of those accepted before it")
        middle.set_ylim(0, 1.02)
        names = list(result.speeds)[::-1]
        speedups = {name: result.speeds[name].speedup for name in names}
        errors = reaches(speedups, {name: result.speeds[name].speedup_ci95 for name in names})
        right.barh(names, list(speedups.values()), color="#4C78A8", xerr=errors, error_kw={"linewidth": 0.8})
        right.axvline(1, color="black", linewidth=1)
        right.set_title(f"speed against the {PLAIN}, in process")


def _tau(drafted: DrafterMetrics) -> dict[str, float]:
    return {**drafted.tau, **drafted.tau_by_group, ALL: drafted.overall}


def _speedup(speed: Speed) -> str:
    return plus_minus(speed.speedup, speed.speedup_ci95, 2)
