"""Tables and plots of compared drafters."""

from __future__ import annotations

from pathlib import Path

from outrider_bench.core.acceptance import ALL
from outrider_bench.core.plots import reaches, saved_figure
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, plus_minuses, table
from outrider_bench.studies.drafters.comparison import PLAIN, Comparison, DrafterMetrics, Speed

MAX_POSITIONS = 8  # columns


def families_table(result: Comparison) -> ResultTable:
    """Build the table of mean acceptance lengths by family, of easy and hard text, and over all."""
    rows = []
    for name, drafted in result.drafters.items():
        figures = _tau(drafted)
        rows.append([name, drafted.family, *plus_minuses(figures, drafted.tau_ci95, 2)])
    columns = ("drafter", "family", *_tau(next(iter(result.drafters.values()))))
    return table("mean acceptance length (tokens per verdict, bonus included)", columns, rows, caption=OVER_PROMPTS)


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
    for name, speed in result.speeds.items():
        drafted = result.drafters.get(name)
        cost = ["", "", "", ""]
        if drafted is not None:
            level_ms = plus_minus(drafted.draft_ms_per_level, drafted.draft_ms_per_level_ci95, 2)
            sizes = (drafted.bytes_up_per_token, drafted.bytes_down_per_token)
            cost = [level_ms, *(f"{size:.0f}" for size in sizes), f"{drafted.mismatches}"]
        by_group = [_speedup(of_group) for of_group in speed.by_group.values()]
        tokens_per_s = plus_minus(speed.tokens_per_s, speed.tokens_per_s_ci95, 0)
        rows.append([name, tokens_per_s, _speedup(speed), *by_group, *cost])
    groups = (f"x, {group}" for group in next(iter(result.speeds.values())).by_group)
    columns = ("way", "tokens/s", "x plain", *groups, "ms a level", "bytes up", "bytes down", "not exact")
    title = "in process, one answer at a time (bytes a new token, the prompt's share included)"
    return table(title, columns, rows, caption=f"{OVER_PROMPTS}, asked {result.repetitions} times in random order")


def sweep_table(name: str, result: Comparison) -> ResultTable:
    """Build a row per number of levels."""
    rows = []
    for levels, drafted in result.drafters.items():
        at = drafted.positions
        rows.append(
            [
                levels,
                f"{at.rate:.2f}",
                f"{1 / int(levels):.2f}",
                plus_minus(drafted.overall, drafted.tau_ci95[ALL], 2),
                " ".join(f"{share:.2f}" for share in at.reached[:MAX_POSITIONS]),
                _speedup(result.speeds[levels]),
            ]
        )
    columns = ("levels", "accepted / drafted", "1/n", "tau", "accepted at least 1, 2, ... (share)", "x plain")
    return table(f"{name}: chains of 1 to n levels", columns, rows, caption=OVER_PROMPTS)


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


def plot_depth_sweep(name: str, result: Comparison, path: Path) -> None:
    """Plot acceptance and speed against the number of levels, beside 1/n."""
    levels = [int(label) for label in result.drafters]
    with saved_figure(path, 1, 2, figsize=(11, 4.5)) as (_, (left, right)):
        left.plot(levels, [drafted.positions.rate for drafted in result.drafters.values()], "o-", label=name)
        left.plot(levels, [1 / n for n in levels], "x--", color="grey", label="1/n: only the first is accepted")
        left.set_xlabel("levels")
        left.set_ylabel("accepted / drafted")
        left.set_ylim(0, 1.02)
        left.legend(frameon=False)
        lengths = {label: drafted.overall for label, drafted in result.drafters.items()}
        speedups = {label: result.speeds[label].speedup for label in result.drafters}
        of_lengths = reaches(lengths, {label: drafted.tau_ci95[ALL] for label, drafted in result.drafters.items()})
        of_speedups = reaches(speedups, {label: result.speeds[label].speedup_ci95 for label in speedups})
        right.errorbar(levels, list(lengths.values()), of_lengths, fmt="o-", capsize=2, label="tokens per verdict")
        right.errorbar(levels, list(speedups.values()), of_speedups, fmt="s-", capsize=2, label=f"speed / {PLAIN}")
        right.set_xlabel("levels")
        right.legend(frameon=False)


def _tau(drafted: DrafterMetrics) -> dict[str, float]:
    return {**drafted.tau, **drafted.tau_by_group, ALL: drafted.overall}


def _speedup(speed: Speed) -> str:
    return plus_minus(speed.speedup, speed.speedup_ci95, 2)
