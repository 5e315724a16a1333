"""What the answers of a chat cost, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from outrider_client.core.statistics import Statistics
from outrider_client.display.status_line import in_bytes


def figures(answers: Sequence[Statistics]) -> Table:
    """The last answer beside all of them. `answers` is not empty."""
    table = Table("", "last answer", f"all {len(answers)}", box=None, pad_edge=False)
    for name, last, together in zip(_NAMES, _column(answers[-1:]), _column(answers), strict=True):
        table.add_row(name, last, together)
    return table


_NAMES = ("tokens", "tokens/s", "first token, ms", "τ", "R, ms", "target calls", "up", "down", "outages", "unverified")


def _column(answers: Sequence[Statistics]) -> tuple[str, ...]:
    """Sums; means are weighted with each answer's tokens or target calls."""
    tokens = sum(each.new_tokens for each in answers)
    calls = sum(each.target_calls for each in answers)
    seconds = sum(each.new_tokens / each.tokens_per_second for each in answers if each.tokens_per_second)
    return (
        f"{tokens}",
        f"{tokens / seconds:.1f}" if seconds else "-",
        f"{sum(each.time_to_first_token_ms for each in answers) / len(answers):.0f}",
        f"{sum(each.mean_acceptance_length * each.target_calls for each in answers) / max(calls, 1):.2f}",
        f"{answers[-1].rtt_ms:.0f}",
        f"{calls}",
        in_bytes(sum(each.bytes_up for each in answers)),
        in_bytes(sum(each.bytes_down for each in answers)),
        f"{sum(each.outages for each in answers)}",
        f"{sum(each.unverified for each in answers)}",
    )
