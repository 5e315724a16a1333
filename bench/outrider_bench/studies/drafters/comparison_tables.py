"""Tables of compared drafters."""

from __future__ import annotations

from outrider_bench.core.tables import ResultTable, table
from outrider_bench.studies.drafters.comparison import Comparison

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
