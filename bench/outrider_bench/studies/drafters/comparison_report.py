"""Tables and plots of compared drafters."""

from __future__ import annotations

from pathlib import Path

from outrider_bench.core.plots import saved_figure
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.studies.drafters.comparison import PLAIN, Comparison

MAX_POSITIONS = 8  # columns


def families_table(result: Comparison) -> ResultTable:
    """Build the table of mean acceptance lengths by family."""
    categories = list(next(iter(result.drafters.values())).tau)
    rows = [
        [name, drafted.family, *(f"{drafted.tau[category]:.2f}" for category in categories), f"{drafted.overall:.2f}"]
        for name, drafted in result.drafters.items()
    ]
    return table(
        "mean acceptance length (tokens per verdict, bonus included)", ("drafter", "family", *categories, "all"), rows
    )


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
    """Build the table of speeds and costs; medians over prompts."""
    rows = []
    for name, speed in result.speeds.items():
        drafted = result.drafters.get(name)
        cost = ["", "", "", ""]
        if drafted is not None:
            sizes = (drafted.bytes_up_per_token, drafted.bytes_down_per_token)
            cost = [f"{drafted.draft_ms_per_level:.2f}", *(f"{size:.0f}" for size in sizes), f"{drafted.mismatches}"]
        rows.append([name, f"{speed.tokens_per_s:.0f}", f"{speed.speedup:.2f}", *cost])
    columns = ("way", "tokens/s", "x plain", "ms a level", "bytes up", "bytes down", "not exact")
    return table("in process, one answer at a time (bytes a new token, the prompt's share included)", columns, rows)


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
                f"{drafted.overall:.2f}",
                " ".join(f"{share:.2f}" for share in at.reached[:MAX_POSITIONS]),
                f"{result.speeds[levels].speedup:.2f}",
            ]
        )
    columns = ("levels", "accepted / drafted", "1/n", "tau", "accepted at least 1, 2, ... (share)", "x plain")
    return table(f"{name}: chains of 1 to n levels", columns, rows)


def plot_comparison(result: Comparison, path: Path) -> None:
    """Plot mean acceptance length by family, acceptance by position, and speeds."""
    from matplotlib.ticker import MaxNLocator

    with saved_figure(path, 1, 3, figsize=(16.5, 4.5)) as (_, (left, middle, right)):
        width = 0.8 / len(result.drafters)
        for number, (name, drafted) in enumerate(result.drafters.items()):
            places = [place + number * width - 0.4 for place in range(len(drafted.tau))]
            left.bar(places, [tau - 1 for tau in drafted.tau.values()], width * 0.9, bottom=1, label=name)
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
        right.barh(names, [result.speeds[name].speedup for name in names], color="#4C78A8")
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
        right.plot(levels, [drafted.overall for drafted in result.drafters.values()], "o-", label="tokens per verdict")
        right.plot(levels, [result.speeds[str(n)].speedup for n in levels], "s-", label=f"speed / {PLAIN}")
        right.set_xlabel("levels")
        right.legend(frameon=False)
