"""Read tables of a link's conditions over time, and tell by the columns' names what they are, which way, in what unit.

Our own CSV (time_s, delay_ms, rate_mbps, loss), what measurements of 4G and 5G are published as (Timestamp, DL_bitrate
and UL_bitrate in kbit/s; time, throughput; Throughput in Mbit/s without a time), and without a header two columns,
seconds and Mbit/s, or six of the logs of HSDPA in Norway and of 4G in Ghent. Other columns are passed over. Rows are
read one by one into arrays.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from outrider_netsim.core.engine_names import WAYS, Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.traces import MAX_TRACE_S, ConditionTrace, RecordedLink

LEAST_BPS = 1000.0  # for 0: what waits has to wait for the next row
USUAL_STEP_S = 1.0  # between rows without a time
LOG_COLUMNS = 6  # of logs of HSDPA in Norway (Riiser et al., 2013) and of 4G in Ghent (van der Hooft et al., 2016)
MISSING = {"", "-", "--", "nan", "na", "n/a", "none", "null"}
EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))  # a time beyond the first is counted in the second
TOO_FAST_BPS, UNSAID_UNITS = 10e9, (1e6, 1e3, 1.0)  # Mbit/s, unless no radio is that fast: then kbit/s, then bit/s
_DATES = ("%Y.%m.%d_%H.%M.%S", "%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S")
_OTHER_DATES = ("%Y-%m-%d_%H-%M-%S", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M")
_FORMS = ("", *_DATES, *_OTHER_DATES, "%H:%M:%S", "%H:%M:%S.%f")  # empty: ISO 8601

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", re.ASCII)
_TIME_WORDS = (
    *("timestamp", "datetime", "unixtime", "unix", "epoch", "time", "ts", "t"),
    *("elapsed", "seconds", "secs", "sec", "s", "date", "dtime"),
)
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BESIDE_TIME = {*_TIME_WORDS, *_TIME_UNITS, "utc", "gmt", "local", "stamp", "in"}
_WAY_WORDS: dict[str, Way] = dict.fromkeys(("dl", "down", "downlink", "download", "downstream", "rx"), "down")
_WAY_WORDS |= dict.fromkeys(("ul", "up", "uplink", "upload", "upstream", "tx"), "up")
_RATE_WORDS = {"bitrate", "datarate", "rate", "throughput", "tput", "thpt", "bandwidth", "bw", "goodput", "capacity"}
_OTHER_RATES = {"error", "loss", "drop", "sample", "sampling", "frame", "max", "min", "std", "stdev", "dev", "var"}
_RATE_UNITS = {"bps": 1.0, "bit": 1.0, "bits": 1.0, "kbps": 1e3, "kbit": 1e3, "kbits": 1e3, "mbps": 1e6, "mbit": 1e6}
_RATE_UNITS |= {"mbits": 1e6, "gbps": 1e9, "gbit": 1e9, "gbits": 1e9, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_BYTES = re.compile(r"(?<![A-Zd])([kKmMgG]?)(?:B(ps)?(?![A-Za-z])|[Bb]ytes?)")  # not decibels
_A_SECOND = {"s", "sec", "second"}
_BYTE_UNITS = {"": 8.0, "k": 8e3, "m": 8e6, "g": 8e9}
_UNIT_NAMES = {1.0: "bit/s", 1e3: "kbit/s", 1e6: "Mbit/s", 1e9: "Gbit/s", 8.0: "byte/s", 8e3: "kB/s", 8e6: "MB/s"}
_UNIT_NAMES |= {8e9: "GB/s"}


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
}
_LOSS, _LOSS_PERCENT = _Column("loss", 1, 0, 1), _Column("loss", 0.01, 0, 100)


def column_named(key: str) -> _Column | None:
    """Return what a column of this name holds; None for one to pass over."""
    if key in _COLUMNS:
        return _COLUMNS[key]
    words, in_bytes = _words(key), _BYTES.search(key)
    if "loss" in words and {"packet", "loss", "percent"}.issuperset(words):
        return _LOSS_PERCENT if "%" in key or "percent" in words else _LOSS
    if words and words[0] in _TIME_WORDS and _BESIDE_TIME.issuperset(words):
        return _Column("time", next((_TIME_UNITS[word] for word in words if word in _TIME_UNITS), 0.0), 0, math.inf)
    ways = tuple(dict.fromkeys(_WAY_WORDS[word] for word in words if word in _WAY_WORDS))
    unit = next((_RATE_UNITS[word] for word in words if word in _RATE_UNITS), 0.0)
    if in_bytes:
        unit = _BYTE_UNITS[in_bytes[1].lower()]
    # Bytes that are not said to be of a second are a counter.
    has_unit = unit and (not in_bytes or in_bytes[2] or _A_SECOND & set(words))
    is_rate = _RATE_WORDS & set(words) or has_unit or (ways and "speed" in words)
    if not is_rate or _OTHER_RATES & set(words) or len(ways) > 1:
        return None
    if not unit and ways and "bitrate" in words:
        unit = 1e3  # the data sets of University College Cork and their followers
    if not unit and "delivery" in words:
        unit = 8.0  # Puffer's, and the kernel's tcpi_delivery_rate
    return _Column("rate_bps", unit, 0, 1e12 / (unit or 1), ways or WAYS)


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key)]


def parse_table(lines: Iterable[str], first: str, name: str, comment: str = "") -> RecordedLink:
    """Parse a table whose first line is `first`, after comments; the last of them may name the columns.

    `lines` begin with all of these. Raises ProfileError.
    """
    return _read(lines, first, name, column_named, comment).link()


def parse_round_trips(lines: Iterable[str], first: str, name: str) -> tuple[array[float], array[float]]:
    """Parse a table of pings: when each was sent and its `rtt_ms`, NaN where there is none. Raises ProfileError."""
    table = _read(lines, first, name, _round_trip_column)
    if not table.has_times:
        raise ProfileError(f"{name}, line 1: no column of time beside rtt_ms: name it time_s")
    return table.times, next(iter(table.values.values()))


def _round_trip_column(key: str) -> _Column | None:
    if key == "rtt_ms":
        return _Column(key, 1, 0, 60_000)
    column = column_named(key)
    return column if column and column.field == "time" else None


def _read(
    lines: Iterable[str], first: str, name: str, column_of: Callable[[str], _Column | None], comment: str = ""
) -> _Table:
    separator = max(",;\t", key=first.count)

    def split(lines: Iterable[str]) -> Iterator[list[str]]:
        if first.count(separator):
            return csv.reader(lines, delimiter=separator)
        return (line.split() for line in lines)

    rows = _numbered(split(lines), name)
    n, first_row = next(rows)
    keys, named = ([cell.strip() for cell in row] for row in (first_row, next(split([comment.lstrip("# ")]), [])))
    if all(_number(key) is not None for key in keys):
        rows = chain([(n, keys)], rows)
        if len(named) == len(keys) and any(map(column_named, named)):
            keys = named
        elif _is_log(keys):
            keys, rows = ["time_ms", "download_kbps"], _logged(rows, name)
        elif len(keys) == 2:
            keys = ["time", "rate_mbps"]
        else:
            raise ProfileError(f"{name}, line {n}: {len(keys)} columns and no header that says what they are: add one")
    elif _number(keys[0]) is not None:
        raise ProfileError(f"{name}, line {n}: {shown(' '.join(keys))} is neither numbers nor names of columns")
    table = _Table(name, keys, n, column_of)
    table.read(rows, separator == ";")
    return table


def _is_log(cells: Sequence[str]) -> bool:
    """Return whether a row without a header begins as those logs do: a stamp of this century, ms, a place on Earth."""
    if len(cells) != LOG_COLUMNS:
        return False
    stamp, _, latitude, longitude, *_ = map(float, cells)
    return stamp >= 9e8 and abs(latitude) <= 90 and abs(longitude) <= 180


def _logged(rows: Iterable[tuple[int, list[str]]], name: str) -> Iterator[tuple[int, list[str]]]:
    """Turn a stamp, ms, a place of two columns, and the bytes and ms since the row before into a start and a rate."""
    before_ms = None
    for n, row in rows:
        cells = [*row, *[""] * LOG_COLUMNS]
        at_ms, size, took_ms = (parse_number(cells[at], f"{name}, line {n}: column {at + 1}") for at in (1, 4, 5))
        yield n, [str(max(0.0, at_ms - took_ms) if before_ms is None else before_ms), str(8 * size / max(took_ms, 1.0))]
        before_ms = at_ms


def _numbered(rows: Iterable[list[str]], name: str) -> Iterator[tuple[int, list[str]]]:
    n, empty = 0, 0
    try:
        for n, row in enumerate(rows, 1):
            if row and row[0].startswith("#"):
                continue
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

    def __init__(self, name: str, keys: Sequence[str], line: int, column_of: Callable[[str], _Column | None]) -> None:
        self._name, self._keys = name, keys
        columns = {at: column for at, key in enumerate(keys) if (column := column_of(key)) is not None}
        times = {at: column for at, column in columns.items() if column.field == "time"}
        self._time_at = min(times, key=lambda at: _TIME_WORDS.index(_words(keys[at])[0]), default=None)
        self._time_unit = 0.0 if self._time_at is None else times[self._time_at].unit
        self._columns = {at: column for at, column in columns.items() if at not in times}
        self._check(f"{name}, line {line}")
        self.times = array("d")  # in seconds, the first one 0
        self.values = {at: array("d") for at in self._columns}
        self._date: str | None = None
        self._period_s = 0.0

    def _check(self, where: str) -> None:
        given = ", ".join(self._keys)
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

    @property
    def has_times(self) -> bool:
        return self._time_at is not None

    def read(self, rows: Iterator[tuple[int, list[str]]], has_decimal_comma: bool) -> None:
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
                values = self.values[at]
                values.append(self._cell(cells[at], at, column, n, values[-1] if values else 0.0))
        if not self.times:
            raise ProfileError(f"{self._name}, line {n + 1}: the trace is empty: need numbers below the header")
        self._period_s = _spread(self.times)

    def _cell(self, text: str, at: int, column: _Column, n: int, before: float) -> float:
        value = _number(text)
        if value is not None and column.least <= value <= column.most:
            return value
        if text.strip().lower() in MISSING:
            return math.nan if column.field == "rtt_ms" else before
        where = f"{self._name}, line {n}: {self._keys[at]}"
        value = parse_number(text, where)
        raise ProfileError(f"{where}={value:g}: need {column.least:g} to {column.most:g}")

    def _add_time(self, row: list[str], n: int) -> None:
        times = self.times
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
        return self._date_s(text.removesuffix(" UTC"), where)

    def _date_s(self, text: str, where: str) -> float:
        for form in (self._date,) if self._date else _FORMS:
            try:
                at = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
            except ValueError:
                continue
            self._date = form or None
            return (at.replace(tzinfo=None) - datetime(1900, 1, 1)).total_seconds()
        raise ProfileError(f"{where}={shown(text)} is no time: need seconds, or a date such as 2026-05-01 12:00:00")

    def link(self) -> RecordedLink:
        """Return the columns as traces."""
        said = []
        given: dict[Way, dict[str, array[float]]] = {way: {} for way in WAYS}
        for at, column in self._columns.items():
            unit, values = column.unit, self.values[at]
            if not unit:
                unit = next(unit for unit in UNSAID_UNITS if max(values) * unit <= TOO_FAST_BPS or unit == 1)
            is_rate = column.field == "rate_bps"
            scaled = array("d", (max(LEAST_BPS, value * unit) if is_rate else value * unit for value in values))
            for way in column.ways:
                given[way][column.field] = scaled
            kind = f" in {_UNIT_NAMES[unit]}" if is_rate else ""
            said.append(f"{self._keys[at]}{kind} {' and '.join(column.ways)}")
        time = f"times from {self._keys[self._time_at]}" if self._time_at is not None else "one row a second"
        known = {*self._columns, self._time_at}
        others = [key for at, key in enumerate(self._keys) if at not in known]
        passed = f"; passed over: {shown(', '.join(others))}" if others else ""
        found = f"{self._name}: {len(self.times):,} rows in {self._period_s:g} s; {', '.join(said)}; {time}{passed}"
        up, down = (
            ConditionTrace(self._name, self.times, self._period_s, **one) if one else None for one in given.values()
        )
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
