"""Read tables of a link's conditions over time, and tell by the columns' names what they are, which way, in what unit.

Our own CSV (time_s, delay_ms, rate_mbps, loss), what measurements of 4G and 5G are published as (Timestamp, DL_bitrate
and UL_bitrate in kbit/s; time, throughput; Throughput in Mbit/s without a time), and two columns without a header:
seconds and Mbit/s. Other columns are passed over. Rows are read one by one into arrays.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

from outrider_netsim.core.engine_names import WAYS, Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.traces import MAX_TRACE_S, ConditionTrace, RecordedLink

LEAST_BPS = 1000.0  # for 0: what waits has to wait for the next row
USUAL_STEP_S = 1.0  # between rows without a time
MISSING = {"", "-", "--", "nan", "na", "n/a", "none", "null"}
EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # a time beyond the first is counted in the second
TOO_FAST_BPS, UNSAID_UNITS = 10e9, (1e6, 1e3, 1.0)  # Mbit/s, unless no radio is that fast: then kbit/s, then bit/s
_DATES = ("%Y.%m.%d_%H.%M.%S", "%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S")
_FORMS = ("", *_DATES, "%Y-%m-%d_%H-%M-%S", "%H:%M:%S")  # empty: ISO 8601

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", re.ASCII)
_TIME_WORDS = (
    *("timestamp", "datetime", "unixtime", "unix", "epoch", "time", "ts", "t"),
    *("elapsed", "seconds", "secs", "sec", "s", "date"),
)
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BESIDE_TIME = {*_TIME_WORDS, *_TIME_UNITS, "utc", "local", "stamp", "in"}
_WAY_WORDS: dict[str, Way] = dict.fromkeys(("dl", "down", "downlink", "download", "downstream", "rx"), "down")
_WAY_WORDS |= dict.fromkeys(("ul", "up", "uplink", "upload", "upstream", "tx"), "up")
_RATE_WORDS = {"bitrate", "datarate", "rate", "throughput", "tput", "thpt", "bandwidth", "bw", "goodput", "capacity"}
_OTHER_RATES = {"error", "loss", "drop", "sample", "sampling", "frame", "max", "min", "std", "stdev", "dev", "var"}
_RATE_UNITS = {"bps": 1.0, "bit": 1.0, "bits": 1.0, "kbps": 1e3, "kbit": 1e3, "kbits": 1e3, "mbps": 1e6, "mbit": 1e6}
_RATE_UNITS |= {"mbits": 1e6, "gbps": 1e9, "gbit": 1e9, "gbits": 1e9, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_BYTE_UNITS = {"bytes": 8.0, "KB": 8e3, "kbytes": 8e3, "MB": 8e6, "mbytes": 8e6}
_UNIT_NAMES = {1.0: "bit/s", 1e3: "kbit/s", 1e6: "Mbit/s", 1e9: "Gbit/s", 8.0: "byte/s", 8e3: "kB/s", 8e6: "MB/s"}


@dataclass(frozen=True, slots=True)
class _Column:
    """What a column is; `unit` converts it to that of ConditionTrace's `field`, 0 where its size has to tell."""

    field: str
    unit: float
    least: float
    most: float
    ways: tuple[Way, ...] = WAYS


_COLUMNS = {
    "delay_s": _Column("delay_ms", 1e3, 0, 60),
    "delay_ms": _Column("delay_ms", 1, 0, 60_000),
    "loss": _Column("loss", 1, 0, 1),
    "loss_percent": _Column("loss", 0.01, 0, 100),
}


def column_named(key: str) -> _Column | None:
    """Return what a column of this name holds; None for one to pass over."""
    if key in _COLUMNS:
        return _COLUMNS[key]
    words = _words(key)
    if words and words[0] in _TIME_WORDS and _BESIDE_TIME.issuperset(words):
        return _Column("time", next((_TIME_UNITS[word] for word in words if word in _TIME_UNITS), 0.0), 0, math.inf)
    ways = tuple(dict.fromkeys(_WAY_WORDS[word] for word in words if word in _WAY_WORDS))
    units = [_BYTE_UNITS[word] for word in (*_WORDS.findall(key), *words) if word in _BYTE_UNITS]
    unit = next(iter((*units, *(_RATE_UNITS[word] for word in words if word in _RATE_UNITS))), 0.0)
    is_rate = _RATE_WORDS & set(words) or (unit and not units) or (ways and "speed" in words)
    if not is_rate or _OTHER_RATES & set(words) or len(ways) > 1:
        return None
    if not unit and ways and "bitrate" in words:
        unit = 1e3  # the data sets of University College Cork and their followers
    return _Column("rate_bps", unit, 0, 1e12 / (unit or 1), ways or WAYS)


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key)]


def parse_table(lines: Iterable[str], first: str, name: str) -> RecordedLink:
    """Parse a table whose first line is `first`; `lines` begin with it, too. Raises ProfileError."""
    separator = max(",;\t", key=first.count)
    is_spaced = not first.count(separator)
    rows = ([*line.split()] for line in lines) if is_spaced else csv.reader(lines, delimiter=separator)
    numbers = _numbered(rows, name)
    keys = [key.strip() for key in next(numbers)[1]]
    if all(_number(key) is not None for key in keys):
        if len(keys) != 2:
            raise ProfileError(f"{name}, line 1: {len(keys)} columns and no header that says what they are: add one")
        return _Table(name, ["time", "rate_mbps"]).read(chain([(1, keys)], numbers), separator == ";")
    return _Table(name, keys).read(numbers, separator == ";")


def _numbered(rows: Iterable[list[str]], name: str) -> Iterator[tuple[int, list[str]]]:
    n, empty = 0, 0
    try:
        for n, row in enumerate(rows, 1):
            if not row or not (row[0] or "".join(row)).strip():
                empty = empty or n
            elif empty:
                raise ProfileError(f"{name}, line {empty}: the line is empty: remove it")
            else:
                yield n, row
    except csv.Error as error:
        raise ProfileError(f"{name}, line {n + 1}: {error}") from None


class _Table:
    """The columns of a table as they fill."""

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self._name, self._keys = name, keys
        columns = {at: column for at, key in enumerate(keys) if (column := column_named(key)) is not None}
        times = {at: column for at, column in columns.items() if column.field == "time"}
        self._time_at = min(times, key=lambda at: _TIME_WORDS.index(_words(keys[at])[0]), default=None)
        self._time_unit = 0.0 if self._time_at is None else times[self._time_at].unit
        self._columns = {at: column for at, column in columns.items() if at not in times}
        self._check()
        self._times = array("d")
        self._values = {at: array("d") for at in self._columns}
        self._date: str | None = None

    def _check(self) -> None:
        where, given = f"{self._name}, line 1", ", ".join(self._keys)
        if not self._columns:
            raise ProfileError(
                f"{where}: no column of rate, delay or loss in {shown(given)}: name it rate_bps, rate_kbps or "
                "rate_mbps (with dl_ or ul_ for one way), delay_ms, or loss"
            )
        by_field: dict[tuple[str, Way], str] = {}
        for at, column in self._columns.items():
            for way in column.ways:
                other = by_field.setdefault((column.field, way), self._keys[at])
                if other != self._keys[at] or self._keys.count(other) > 1:
                    raise ProfileError(
                        f"{where}: {other} and {self._keys[at]} say the same thing twice: keep one column of each"
                    )

    def read(self, rows: Iterator[tuple[int, list[str]]], has_decimal_comma: bool) -> RecordedLink:
        n = 1
        for n, row in rows:
            if len(row) != len(self._keys) and any(row[len(self._keys) :] or ["-"]):
                raise ProfileError(
                    f"{self._name}, line {n}: {len(row)} columns where the header has {len(self._keys)}: "
                    f"{shown(','.join(row))}"
                )
            cells = [cell.replace(",", ".") for cell in row] if has_decimal_comma else row
            self._add_time(cells, n)
            for at, column in self._columns.items():
                values = self._values[at]
                values.append(self._cell(cells[at], at, column, n, values[-1] if values else 0.0))
        if not self._times:
            raise ProfileError(f"{self._name}, line {n + 1}: the trace is empty: need numbers below the header")
        return self._link(_spread(self._times))

    def _cell(self, text: str, at: int, column: _Column, n: int, before: float) -> float:
        value = _number(text)
        if value is not None and column.least <= value <= column.most:
            return value
        if text.strip().lower() in MISSING:
            return before
        where = f"{self._name}, line {n}: {self._keys[at]}"
        value = parse_number(text, where)
        raise ProfileError(f"{where}={value:g}: need {column.least:g} to {column.most:g}")

    def _add_time(self, row: list[str], n: int) -> None:
        times = self._times
        if self._time_at is None:
            times.append(len(times) * USUAL_STEP_S)
            return
        text = row[self._time_at]
        value = _number(text)
        if value is None and times and text.strip().lower() in MISSING:
            times.append(times[-1])
            return
        at = self._seconds(text.strip(), value, n)
        if times and at < times[-1]:
            raise ProfileError(
                f"{self._name}, line {n}: time {at:.15g} s comes before {times[-1]:.15g} s: sort the lines by time"
            )
        times.append(at)
        if at - times[0] > MAX_TRACE_S:
            raise ProfileError(f"{self._name}, line {n}: more than {MAX_TRACE_S / 86400:g} days: cut the trace")

    def _seconds(self, text: str, value: float | None, n: int) -> float:
        if value is not None and value >= 0:
            if value >= EPOCHS[-1][0]:
                return value * next(unit for least, unit in EPOCHS if value >= least)
            return value * (self._time_unit or 1.0)
        where = f"{self._name}, line {n}: {self._keys[self._time_at or 0]}"
        if value is not None:
            raise ProfileError(f"{where}={value:g}: need 0 or more")
        return self._date_s(text, where)

    def _date_s(self, text: str, where: str) -> float:
        for form in (self._date,) if self._date else _FORMS:
            try:
                at = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
            except ValueError:
                continue
            self._date = form or None
            return (at.replace(tzinfo=None) - datetime(1900, 1, 1)).total_seconds()
        raise ProfileError(f"{where}={shown(text)} is no time: need seconds, or a date such as 2026-05-01 12:00:00")

    def _link(self, period_s: float) -> RecordedLink:
        said, ways = [], {way: ConditionTrace(self._name, self._times, period_s) for way in WAYS}
        for at, column in self._columns.items():
            unit, values = column.unit, self._values[at]
            if not unit:
                unit = next(unit for unit in UNSAID_UNITS if max(values) * unit <= TOO_FAST_BPS or unit == 1)
            is_rate = column.field == "rate_bps"
            scaled = array("d", (max(LEAST_BPS, value * unit) if is_rate else value * unit for value in values))
            changed: dict[str, Any] = {column.field: scaled}  # Any: for mypy, which takes it for any field
            for way in column.ways:
                ways[way] = replace(ways[way], **changed)
            kind = f" in {_UNIT_NAMES[unit]}" if is_rate else ""
            said.append(f"{self._keys[at]}{kind} {' and '.join(column.ways)}")
        time = f"times from {self._keys[self._time_at]}" if self._time_at is not None else "one row a second"
        known = {*self._columns, self._time_at}
        others = [key for at, key in enumerate(self._keys) if at not in known]
        passed = f"; passed over: {shown(', '.join(others))}" if others else ""
        found = f"{self._name}: {len(self._times):,} rows in {period_s:g} s; {', '.join(said)}; {time}{passed}"
        up, down = (None if one.rate_bps is one.delay_ms is one.loss is None else one for one in ways.values())
        return RecordedLink(found, up, down)


def _spread(times: array[float]) -> float:
    """Count from the first time, and let rows of one time share what there is until the next. Return the period."""
    first, start, step = times[0], 0, USUAL_STEP_S
    for n in range(1, len(times) + 1):
        if n < len(times) and times[n] == times[start]:
            continue
        begin = times[start] - first
        if n < len(times):
            step = (times[n] - times[start]) / (n - start)
        elif n - start > 1 and start == 0:
            step = USUAL_STEP_S / (n - start)
        for row in range(start, n):
            times[row] = begin + (row - start) * step
        start = n
    return times[-1] + step


def _number(text: str) -> float | None:
    # float() alone would accept "nan", "1_0", "inf" and digits of other scripts.
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and text.isascii() and "_" not in text else None


def parse_number(text: str, what: str) -> float:
    """Parse a finite number. Raises ProfileError that begins with `what`, such as 'FILE, line 3: rtt_ms'."""
    value = _number(text)
    if value is None:
        raise ProfileError(f"{what}={shown(text)} is not a finite number")
    return value


def shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
