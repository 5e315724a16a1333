"""Read and write trace files: Mahimahi's packet deliveries, and CSV columns of delay, rate and loss over time.

Everything wrong with a file is a ProfileError with its name and line. Both formats round-trip exactly.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import assert_never

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.traces import MAX_TRACE_S, ConditionTrace, DeliveryTrace, Trace

# float() alone would accept "nan", "1_0", "inf" and digits of other scripts.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def is_csv(path: str | Path) -> bool:
    """Return whether a file of this name holds a condition trace."""
    return Path(path).suffix.lower() == ".csv"


def load_trace(path: str | Path) -> Trace:
    """Load a trace: CSV if the name ends in .csv, Mahimahi's format otherwise. Raises ProfileError."""
    text = read_text(Path(path))
    return parse_csv(text, str(path)) if is_csv(path) else parse_mahimahi(text, str(path))


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write `trace` in its own format; condition traces must end in .csv, others must not. Raises ProfileError."""
    if isinstance(trace, ConditionTrace) != is_csv(path):
        raise ProfileError(f"{path}: conditions go to a file that ends in .csv, deliveries to any other")
    try:
        Path(path).write_text(trace_text(trace), encoding="ascii")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written: {error.strerror or error}") from None


def trace_text(trace: Trace) -> str:
    """Return the text of the trace's file."""
    match trace:
        case DeliveryTrace():
            return "".join(f"{at}\n" for at in trace.at_ms)
        case ConditionTrace():
            return _csv_text(trace)
        case _:
            assert_never(trace)


def parse_mahimahi(text: str, name: str) -> DeliveryTrace:
    """Parse one whole number of milliseconds per line, in order. Raises ProfileError with `name` and line."""
    lines = _lines(text, name)
    at_ms = tuple(_whole_ms(line, f"{name}, line {n}") for n, line in enumerate(lines, 1))
    for n, (before, at) in enumerate(pairwise(at_ms), 2):
        if at < before:
            raise ProfileError(f"{name}, line {n}: {at} comes after {before}: sort the lines by time")
    if not at_ms[-1]:
        raise ProfileError(
            f"{name}, line {len(at_ms)}: the trace ends at 0 ms: the last line, its length, must be above 0"
        )
    return DeliveryTrace(name, at_ms)


def _whole_ms(line: str, where: str) -> int:
    text = line.strip()
    if not (text.isascii() and text.isdecimal()):
        raise ProfileError(f"{where}: {_shown(line)} is not a time: need a whole number of milliseconds, 0 or more")
    if len(text) > 12 or int(text) > MAX_TRACE_S * 1000:
        raise ProfileError(f"{where}: {_shown(line)} ms is beyond {MAX_TRACE_S / 86400:g} days: cut the trace")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Column:
    """The range of a CSV column; `unit` converts it to the unit of ConditionTrace's `field`."""

    field: str
    unit: float
    least: float
    most: float
    zero_remedy: str = ""


_NO_RATE = " (where nothing passes, write loss 1)"
_COLUMNS = {
    "time_s": _Column("times_s", 1, 0, math.inf),
    "time_ms": _Column("times_s", 1e-3, 0, math.inf),
    "delay_s": _Column("delay_ms", 1e3, 0, 60),
    "delay_ms": _Column("delay_ms", 1, 0, 60_000),
    "rate_bps": _Column("rate_bps", 1, 1000, 1e12, _NO_RATE),
    "rate_kbps": _Column("rate_bps", 1e3, 1, 1e9, _NO_RATE),
    "rate_mbps": _Column("rate_bps", 1e6, 1e-3, 1e6, _NO_RATE),
    "loss": _Column("loss", 1, 0, 1),
    "loss_percent": _Column("loss", 0.01, 0, 100),
}


def parse_csv(text: str, name: str) -> ConditionTrace:
    """Parse a header that names columns and units, then rows of numbers. Raises ProfileError with `name` and line."""
    header, *rows = _lines(text, name)
    keys = [key.strip() for key in header.split(",")]
    columns = _columns(keys, f"{name}, line 1")
    if not rows:
        raise ProfileError(f"{name}, line 2: the trace is empty: need a line of numbers below the header")
    values = [_row(line, keys, columns, f"{name}, line {n}") for n, line in enumerate(rows, 2)]
    by_field = dict(zip((c.field for c in columns), zip(*values, strict=True), strict=True))
    times = _from_zero(by_field.pop("times_s"), name)
    last_s = times[-1] - times[-2] if len(times) > 1 else 1.0
    return ConditionTrace(name, times, times[-1] + last_s, **by_field)


def _columns(keys: list[str], where: str) -> list[_Column]:
    for key in keys:
        if key not in _COLUMNS:
            raise ProfileError(f"{where}: column {_shown(key)} is unknown: choose from {', '.join(_COLUMNS)}")
    columns = [_COLUMNS[key] for key in keys]
    fields = [column.field for column in columns]
    if len(set(fields)) < len(fields):
        raise ProfileError(f"{where}: {', '.join(keys)} say the same thing twice: keep one column of each")
    if "times_s" not in fields or len(fields) < 2:
        raise ProfileError(f"{where}: {', '.join(keys)}: need time_s or time_ms, and a column of delay, rate or loss")
    return columns


def _row(line: str, keys: list[str], columns: list[_Column], where: str) -> list[float]:
    cells = next(csv.reader([line]), [])
    if len(cells) != len(keys):
        raise ProfileError(f"{where}: {len(cells)} columns where the header has {len(keys)}: {_shown(line)}")
    return [_cell(*cell, where) for cell in zip(cells, keys, columns, strict=True)]


def _cell(text: str, key: str, column: _Column, where: str) -> float:
    value = parse_number(text, f"{where}: {key}")
    if not column.least <= value <= column.most:
        most = "or more" if column.most == math.inf else f"to {column.most:g}"
        raise ProfileError(f"{where}: {key}={value:g}: need {column.least:g} {most}{column.zero_remedy}")
    return value * column.unit


def parse_number(text: str, what: str) -> float:
    """Parse a finite number. Raises ProfileError that begins with `what`, such as 'FILE, line 3: rtt_ms'."""
    if not _NUMBER.fullmatch(text.strip()) or not math.isfinite(value := float(text)):
        raise ProfileError(f"{what}={_shown(text)} is not a finite number")
    return value


def _from_zero(times: tuple[float, ...], name: str) -> tuple[float, ...]:
    """Return times since the first row's, so that traces may count from any moment."""
    for n, (before, at) in enumerate(pairwise(times), 3):
        if at <= before:
            raise ProfileError(
                f"{name}, line {n}: time {at:g} s does not come after {before:g} s: sort the lines by time"
            )
    if times[-1] - times[0] > MAX_TRACE_S:
        raise ProfileError(f"{name}, line {len(times) + 1}: more than {MAX_TRACE_S / 86400:g} days: cut the trace")
    return tuple(at - times[0] for at in times)


def _csv_text(trace: ConditionTrace) -> str:
    columns = [
        ("time_s", trace.times_s),
        ("delay_ms", trace.delay_ms),
        ("rate_bps", trace.rate_bps),
        ("loss", trace.loss),
    ]
    given = [(key, column) for key, column in columns if column is not None]
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(key for key, _ in given)
    writer.writerows(zip(*(map(_short, column) for _, column in given), strict=True))
    return out.getvalue()


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) and value < 1e15 else repr(value)


def _lines(text: str, name: str) -> list[str]:
    lines = text.removesuffix("\n").split("\n")
    for n, line in enumerate(lines, 1):
        if not line.strip():
            what = "the trace is empty" if len(lines) == 1 else "the line is empty: remove it"
            raise ProfileError(f"{name}, line {n}: {what}")
    return lines


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def read_text(path: Path) -> str:
    """Return a file's text with plain line ends. Raises ProfileError that names file and line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        # -sig: Windows editors write a byte order mark, which would become part of the first column's name.
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileError(f"{path}, line {line}: not text: need lines of numbers") from None
