"""The comparison table as text: a row for each profile and engine, a column for each figure. Pure."""

from __future__ import annotations

from outrider_netsim.transfers.estimates import TransferEstimate, TransferRatio
from outrider_netsim.transfers.plan import OVERHEAD, recovery_name
from outrider_netsim.transfers.report import TransferReport, TransferRow

NOTE = (
    "Medians in Mbit/s and ms with their 95 % intervals; then the ratio to the reference, the row without one.\n"
    "own delay: what the engine and this machine add to a round trip, and the time of the packets at the rate\n"
    "! off by more than 15 %   ? off by more than 15 %, but chance may explain it"
)


def headings(report: TransferReport) -> list[str]:
    """Return the names of the columns."""
    return ["profile", "engine", *(heading for heading, _ in _columns(report))]


def table_rows(report: TransferReport, reference: str | None = None) -> list[list[str]]:
    """Return the cells of every row; a cell has two lines, the figure and its interval."""
    return [_cells(report, row, reference) for row in report.rows]


def markdown(report: TransferReport, reference: str | None = None) -> str:
    """Return the comparison as a Markdown table."""
    columns = headings(report)
    rows = [columns, ["---"] * len(columns), *table_rows(report, reference)]
    cells = [[" ".join(cell.split()) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


DETAIL_HEADINGS = ("profile", "engine", "figure", "median", "95 % interval", "mean", "p95", "samples")


def detail_rows(report: TransferReport) -> list[list[str]]:
    """Return a row for each figure of each profile and engine, with what the comparison leaves out."""
    return [
        [row.profile, row.engine, heading, *_details(row.estimates.get(figure))]
        for row in report.rows
        for heading, figure in _columns(report)
    ]


def _details(estimate: TransferEstimate | None) -> list[str]:
    if estimate is None:
        return ["-", "", "", "", "0"]
    middle, mean, p95 = map(_number, (estimate.median, estimate.mean, estimate.p95))
    return [middle, _interval(estimate), mean, p95, str(estimate.count)]


def _columns(report: TransferReport) -> list[tuple[str, str]]:
    """Headings and figures, those that were measured."""
    plan = report.plan
    size = f"{plan.size_bytes / 1000:g} kB"
    columns = [
        ("Mbit/s", "goodput_mbps"),
        ("RTT idle", "idle_rtt_ms"),
        ("RTT loaded", "loaded_rtt_ms"),
        (f"{size} after {plan.idle_s:g} s", "after_idle_ms"),
        ("lone loss", "lone_loss_ms"),
        *((f"cut of {cut_s:g} s", recovery_name(cut_s)) for cut_s in plan.cuts_s),
        ("8-packet reply", "reply_ms"),
        ("own delay", OVERHEAD),
    ]
    measured = {figure for row in report.rows for figure in row.samples}
    return [column for column in columns if column[1] in measured]


def _cells(report: TransferReport, row: TransferRow, reference: str | None) -> list[str]:
    rate = f"\nof {row.rate_mbps:g} Mbit/s" if row.rate_mbps else ""
    figures = [_cell(row.estimates.get(figure), report.ratio(row, figure, reference)) for _, figure in _columns(report)]
    return [f"{row.profile}{rate}", row.engine, *figures]


def _cell(estimate: TransferEstimate | None, ratio: TransferRatio | None) -> str:
    if estimate is None:
        return "-"
    return f"{_number(estimate.median)}{_ratio(ratio)}\n{_interval(estimate)}"


def _interval(estimate: TransferEstimate) -> str:
    return f"{_number(estimate.interval.low)} to {_number(estimate.interval.high)}"


def _ratio(ratio: TransferRatio | None) -> str:
    if ratio is None:
        return ""
    mark = "!" if ratio.is_surely_outside else "?" if ratio.is_outside else " "
    return f"  x{ratio.ratio:.2f}{mark}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
