"""Read and write trace files: Mahimahi's packet deliveries, and tables of rate, delay and loss over time.

The first line tells which it is. Everything wrong with a file is a ProfileError with its name and line. What is written
is read as it was.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import assert_never

from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.trace_columns import parse_table, shown
from outrider_netsim.profiles.traces import MAX_TRACE_S, ConditionTrace, DeliveryTrace, RecordedLink, Trace


def is_csv(path: str | Path) -> bool:
    """Return whether a file of this name is to hold a condition trace."""
    return Path(path).suffix.lower() == ".csv"


def load_trace(path: str | Path, way: Way = "down") -> Trace:
    """Load what a trace says of one direction. Raises ProfileError."""
    link = load_recorded(path)
    found = link.up if way == "up" else link.down
    if found is None:
        raise ProfileError(f"{path}: says nothing of the way {way}: give it for the other one ({link.summary})")
    return found


def load_recorded(path: str | Path) -> RecordedLink:
    """Load a trace file, both directions. Raises ProfileError."""
    return parse_trace(_lines(Path(path)), str(path))


def parse_trace(lines: Iterable[str], name: str) -> RecordedLink:
    """Parse lines of either format, one by one. Raises ProfileError with `name` and line."""
    rest = iter(lines)
    first = next(rest, "")
    if not first.strip():
        raise ProfileError(f"{name}, line 1: the trace is empty")
    if first.strip()[0] in "+-.0123456789" and len(first.replace(",", " ").replace(";", " ").split()) == 1:
        trace = _mahimahi(chain([first], rest), name)
        said = (
            f"{len(trace.at_ms):,} opportunities for 1504 bytes in {trace.period_ms / 1000:g} s (Mahimahi), both ways"
        )
        return RecordedLink(f"{name}: {said}", trace, trace)
    return parse_table(chain([first], rest), first, name)


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


def _mahimahi(lines: Iterable[str], name: str) -> DeliveryTrace:
    at_ms, n, empty, before = array("I"), 0, 0, 0
    for n, line in enumerate(lines, 1):
        text = line.strip()
        if not text or empty:
            if text:
                raise ProfileError(f"{name}, line {empty}: the line is empty: remove it")
            empty = empty or n
            continue
        at = int(text) if len(text) < 9 and text.isdecimal() and text.isascii() else _whole_ms(text, name, n)
        if at < before:
            raise ProfileError(f"{name}, line {n}: {at} comes after {before}: sort the lines by time")
        at_ms.append(at)
        before = at
    if not at_ms[-1]:
        raise ProfileError(f"{name}, line {n}: the trace ends at 0 ms: the last line, its length, must be above 0")
    return DeliveryTrace(name, at_ms)


def _whole_ms(text: str, name: str, n: int) -> int:
    where = f"{name}, line {n}: {shown(text)}"
    if not (text.isascii() and text.isdecimal()):
        raise ProfileError(f"{where} is not a time: need a whole number of milliseconds, 0 or more")
    if len(text) > 12 or int(text) > MAX_TRACE_S * 1000:
        raise ProfileError(f"{where} ms is beyond {MAX_TRACE_S / 86400:g} days: cut the trace")
    return int(text)


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


def _lines(path: Path) -> Iterator[str]:
    try:
        # -sig: Windows editors write a byte order mark, which would become part of the first column's name.
        with path.open(encoding="utf-8-sig") as file:
            yield from file
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}, line {_first_wrong(path)}: not text: need lines of numbers") from None


def _first_wrong(path: Path) -> int:
    with path.open("rb") as file:
        for n, line in enumerate(file, 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return n
    return 1


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
