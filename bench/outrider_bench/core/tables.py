"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from outrider_bench.studies.pair.evaluation import Evaluation
from outrider_bench.studies.pair.recover import Recovery


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table


def scores_table(evaluation: Evaluation) -> Table:
    """What the target alone gets right."""
    rows = [[name, f"{s.passed}", f"{s.total}", f"{s.rate:.2f}"] for name, s in evaluation.scores.items()]
    return table("target alone, held-out compositions", ("family", "right", "of", "share"), rows)


def acceptance_table(evaluation: Evaluation) -> Table:
    """Mean acceptance length, bonus included."""
    columns, by_column = ["family"], []
    for name, result in evaluation.drafters.items():
        for shape, accepted in result.acceptance.items():
            columns.append(f"{name} {shape}")
            by_column.append({**accepted.by_family, "all": accepted.overall, "not exact": float(accepted.mismatches)})
    families = list(by_column[0]) if by_column else []
    rows = [[family, *(_number(values[family], family) for values in by_column)] for family in families]
    return table("mean acceptance length (tokens per verdict, bonus included)", columns, rows)


def outage_table(evaluation: Evaluation) -> Table:
    """pass@1 of code when the link dies for good."""
    cuts = list(evaluation.stop)
    rows = [["stop"] + [f"{evaluation.stop[cut]:.2f}" for cut in cuts]]
    rows += [[name] + [f"{result.outage[cut]:.2f}" for cut in cuts] for name, result in evaluation.drafters.items()]
    rows += [["target alone"] + [f"{evaluation.target_alone:.2f}"] * len(cuts)]
    return table("code pass@1, link dead after n tokens", ("n", *map(str, cuts)), rows)


def overhead_table(medians: Mapping[str, Mapping[str, float]]) -> Table:
    """Median ms of a cycle's parts, a column a drafter."""
    parts = list(next(iter(medians.values())))
    rows = [[part, *(f"{values[part]:.2f}" for values in medians.values())] for part in parts]
    return table("a cycle on loopback, median ms", ("part", *medians), rows)


def recovery_table(recoveries: Sequence[Recovery]) -> Table:
    """One row a killing."""
    rows = [
        [f"{r.killed_after}", _yes(r.interrupted), f"{r.unverified}", f"{r.rolled_back}", r.finish, _yes(r.identical)]
        for r in recoveries
    ]
    return table(
        "the server killed in mid-answer",
        ("killed after", "interrupted", "unverified", "rolled back", "finish", "identical"),
        rows,
    )


def _number(value: float, row: str) -> str:
    return f"{value:.0f}" if row == "not exact" else f"{value:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
