"""Results as tables on standard error: stacked to fit a terminal, in full width elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table

from outrider_proto.terminal.console import TerminalConsole

_UNBOUNDED = 10_000  # columns of a file or a pipe
_LOPSIDED = 2  # times as far on one side as on the other
OVER_PROMPTS = "±: 95 % interval over the choice of prompts"  # a caption
_BORDERS = 3  # characters that a column adds to its text: two of padding, one of border


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table whose first `keys` columns name its rows.

    Where it is wider than the console, the other columns are spread over several tables, each with the keys.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int = 1
    caption: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        groups = self._groups(options.max_width)
        for number, group in enumerate(groups):
            is_last = number == len(groups) - 1
            yield self._part(group, None if number else self.title, self.caption if is_last else None)

    def _groups(self, max_width: int) -> list[list[int]]:
        """Split the columns beside the keys into one group per table."""
        widths = [self._width(number) for number in range(len(self.columns))]
        room = max_width - 1 - sum(widths[: self.keys])
        groups: list[list[int]] = [[]]
        used = 0
        for number in range(self.keys, len(self.columns)):
            if groups[-1] and used + widths[number] > room:
                groups.append([])
                used = 0
            groups[-1].append(number)
            used += widths[number]
        return groups

    def _width(self, number: int) -> int:
        texts = (self.columns[number], *(row[number] for row in self.rows))
        return max(cell_len(line) for text in texts for line in text.split("\n")) + _BORDERS

    def _part(self, group: Sequence[int], title: str | None, caption: str | None) -> Table:
        part = Table(title=title, title_justify="left", caption=caption)
        for number in (*range(self.keys), *group):
            # Folding applies only where keys and a single column are too wide: without it, rich cuts the text with "…".
            justify = "left" if number < self.keys else "right"
            part.add_column(self.columns[number], justify=justify, overflow="fold")  # type: ignore[arg-type] # a Literal
        for row in self.rows:
            part.add_row(*(row[number] for number in (*range(self.keys), *group)))
        return part


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    keys: int = 1,
    caption: str | None = None,
) -> ResultTable:
    """Build a table; rows may be shorter than `columns`."""
    filled = (tuple(row) + ("",) * (len(columns) - len(row)) for row in rows)
    return ResultTable(title, tuple(columns), tuple(filled), keys, caption)


def plus_minus(value: object, interval: tuple[float, float] | None, digits: int) -> str:
    """Format a figure and the farther end of its interval, `57.9 ±1.2`; `-` for what is no number.

    An interval that reaches much farther on one side has both: `0.86 +1.92 -0.20`.
    """
    if not isinstance(value, int | float):
        return "-"
    if interval is None or interval[0] == interval[1]:  # equal: what cannot vary, as the stream's ratio to itself
        return f"{value:.{digits}f}"
    above, below = interval[1] - value, value - interval[0]
    if min(above, below) * _LOPSIDED < max(above, below) - 10**-digits:
        return f"{value:.{digits}f} {above:+.{digits}f} {-below:+.{digits}f}"
    return f"{value:.{digits}f} ±{max(above, below):.{digits}f}"


def plus_minuses(
    figures: Mapping[str, float], intervals: Mapping[str, tuple[float, float] | None], digits: int
) -> list[str]:
    """Format figures, each with the interval of its name."""
    return [plus_minus(figure, intervals.get(name), digits) for name, figure in figures.items()]


def show(*tables: ResultTable) -> None:
    """Print tables to standard error."""
    console = _console()
    for one in tables:
        console.print(one)


def show_line(text: str, style: str | None = None) -> None:
    """Print one line of plain text to standard error, never wrapped."""
    _console().print(text, style=style, markup=False, soft_wrap=True)


def _console() -> Console:
    console = TerminalConsole(stderr=True)
    # Without a terminal rich assumes 80 columns, and cuts what is wider.
    return console if console.is_terminal else TerminalConsole(stderr=True, width=_UNBOUNDED)
