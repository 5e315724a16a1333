"""Read and write trace files: Mahimahi's packet deliveries, and tables of rate, delay and loss over time.

The first line tells which it is; lines that begin with # are comments. Everything wrong with a file is a ProfileError
with its name and line. What is written is read as it was.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from array import array
from collections.abc import Iterable, Iterator
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path

from outrider_netsim.core.engine_names import Way
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.trace_columns import parse_table, shown
from outrider_netsim.profiles.traces import MAX_TRACE_S, ConditionTrace, DeliveryTrace, RecordedLink, Trace

GZIP_START = b"\x1f\x8b"
MAX_MIB = 128  # of a trace, unpacked
_MAX_LINE = 2**20
FOR_RATES = "; for one rate a second, let the first line be rate_mbps"


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
    """Load a trace file, both directions; - is standard input. Raises ProfileError."""
    return parse_trace(_lines(Path(path)), str(path))


def parse_trace(lines: Iterable[str], name: str) -> RecordedLink:
    """Parse lines of either format, one by one. Raises ProfileError with `name` and line."""
    rest, before = iter(lines), list[str]()
    while (first := next(rest, "")).startswith("#"):
        before.append(first)
    if not first.strip():
        what = "the line is empty: remove it" if first else "the trace is empty"
        raise ProfileError(f"{name}, line {len(before) + 1}: {what}")
    lines = chain(before, [first], rest)
    if first.strip()[0] in "+-.0123456789" and len(first.replace(",", " ").replace(";", " ").split()) == 1:
        trace = _mahimahi(lines, name)
        said = (
            f"{len(trace.at_ms):,} opportunities for 1504 bytes in {trace.period_ms / 1000:g} s (Mahimahi), both ways"
        )
        return RecordedLink(f"{name}: {said}", trace, trace)
    return parse_table(lines, first, name, before[-1] if before else "")


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write `trace` in its own format; condition traces must end in .csv, others must not. Raises ProfileError."""
    if isinstance(trace, ConditionTrace) != is_csv(path):
        raise ProfileError(f"{path}: conditions go to a file that ends in .csv, deliveries to any other")
    write_text(Path(path), trace_text(trace))


def trace_text(trace: Trace) -> str:
    """Return the text of the trace's file."""
    if isinstance(trace, DeliveryTrace):
        return "".join(f"{at}\n" for at in trace.at_ms)
    columns = {"time_s": trace.times_s, "delay_ms": trace.delay_ms, "rate_bps": trace.rate_bps, "loss": trace.loss}
    given = {key: map(_short, column) for key, column in columns.items() if column is not None}
    return "".join(f"{','.join(row)}\n" for row in [given, *zip(*given.values(), strict=True)])


def _mahimahi(lines: Iterable[str], name: str) -> DeliveryTrace:
    at_ms, n, empty, before = array("I"), 0, 0, 0
    for n, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("#"):
            continue
        if not text or empty:
            if text:
                raise ProfileError(f"{name}, line {empty}: the line is empty: remove it")
            empty = empty or n
            continue
        at = int(text) if len(text) < 9 and text.isdecimal() and text.isascii() else _whole_ms(text, name, n)
        if at < before:
            raise ProfileError(f"{name}, line {n}: {at} comes after {before}: sort the lines by time{FOR_RATES}")
        at_ms.append(at)
        before = at
    if not at_ms[-1]:
        raise ProfileError(f"{name}, line {n}: the trace ends at 0 ms: the last line, its length, must be above 0")
    return DeliveryTrace(name, at_ms)


def _whole_ms(text: str, name: str, n: int) -> int:
    where = f"{name}, line {n}: {shown(text)}"
    if not (text.isascii() and text.isdecimal()):
        raise ProfileError(f"{where} is not a time: need a whole number of milliseconds, 0 or more{FOR_RATES}")
    if len(text) > 12 or int(text) > MAX_TRACE_S * 1000:
        raise ProfileError(f"{where} ms is beyond {MAX_TRACE_S / 86400:g} days: cut the trace")
    return int(text)


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) and value < 1e15 else repr(value)


def _lines(path: Path) -> Iterator[str]:
    from outrider_proto.files import open_at_once  # here: the ends of a link import this module, and read no files

    is_input = str(path) == "-"
    try:
        # Standard input stays open: a command is to have it, and the next file to open would get its number.
        with (
            open(0 if is_input else path, "rb", closefd=not is_input, opener=open_at_once) as file,
            _text(file) as text,
        ):
            yield from _bounded(text, path)
    except (OSError, EOFError, zlib.error) as error:
        raise ProfileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _bounded(text: TextIOWrapper, path: Path) -> Iterator[str]:
    """Yield lines until they are too many; a few bytes may unpack to many gigabytes."""
    left = MAX_MIB * 2**20
    while line := text.readline(_MAX_LINE):
        left -= len(line)
        if left < 0:
            raise ProfileError(f"{path}: more than {MAX_MIB} MiB of text: cut it")
        if len(line) == _MAX_LINE and not line.endswith("\n"):
            raise ProfileError(f"{path}: a line of more than {_MAX_LINE} characters")
        yield line


def _text(file: BufferedReader) -> TextIOWrapper:
    """Return what a file has as text: unpacked, and what is no text replaced, as in columns that are passed over."""
    start = file.peek(2)[:2]
    # Windows editors write a byte order mark, which would become part of the first column's name.
    encoding = "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    return TextIOWrapper(gzip.GzipFile(fileobj=file) if start == GZIP_START else file, encoding, errors="replace")


def read_text(path: Path) -> str:
    """Return a file's text with plain line ends. Raises ProfileError."""
    return "".join(_lines(path))


def write_text(path: Path, text: str, name: str = "") -> None:
    """Write a file. Raises ProfileError that calls it by `name`, if that is more than its path."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{name or path}: cannot be written: {error.strerror or error}") from None
