"""Read recordings of a link: what `ping` prints, a CSV of round trips, or a trace. Everything wrong is a ProfileError.

The kind is seen from the file: round trips by their columns, a ping by its lines, and everything else is a trace.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.trace_columns import parse_number, parse_round_trips
from outrider_netsim.profiles.trace_files import load_trace, read_text
from outrider_netsim.profiles.traces import Trace

USUAL_INTERVAL_S = 1.0  # of `ping` without -i
MAX_RTT_MS = 60_000.0
MAX_LOST_IN_A_ROW = 1_000_000  # more says that two recordings are in one file

# Linux, BSD and macOS print the same reply. -D puts the time of its arrival before it in seconds, others as a date.
# (?>...) tries one place alone, and a line is read so far: else a long one could take hours.
_MOST_READ = 400
_REPLY = re.compile(
    r"(?:\[(?P<at>\d[^]]{0,40})\] )?\d+ bytes from (?>.*icmp_seq[= ])(?P<number>\d{1,9}) "
    r"(?>.*time[=<])(?P<rtt>[\d.]+) ?ms",
    re.ASCII,
)
_SUMMARY = re.compile(r"(?P<sent>\d{1,9}) packets transmitted, (?>.*time )(?P<ms>\d{1,12})ms", re.ASCII)


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Pings in the order they were sent: when, in seconds, and how long each took, in ms; NaN where none came back."""

    name: str
    sent_s: NDArray[np.float64]
    rtt_ms: NDArray[np.float64]

    @property
    def is_lost(self) -> NDArray[np.bool_]:
        return np.isnan(self.rtt_ms)

    @property
    def interval_s(self) -> float:
        """Return the median time between two pings."""
        return float(np.median(np.diff(self.sent_s)))

    @property
    def duration_s(self) -> float:
        return float(self.sent_s[-1] - self.sent_s[0]) + self.interval_s


Recording = RoundTrips | Trace


def load_recording(path: Path, interval_s: float | None = None) -> Recording:
    """Load a recording of any kind. `interval_s` is the time between pings whose file does not tell it."""
    text, name = read_text(path), str(path)
    first = text.partition("\n")[0]
    if path.suffix.lower() == ".csv" and "rtt_ms" in re.split(r"[\s,;]+", first):
        lines = text.splitlines(keepends=True)
        times, rtts = parse_round_trips(lines, lines[0], name)
        return RoundTrips(name, np.array(times), np.array(rtts))
    is_ping = "icmp_seq" in text or "packets transmitted" in text
    return parse_ping(text, name, interval_s) if is_ping else load_trace(path)


def parse_ping(text: str, name: str, interval_s: float | None = None) -> RoundTrips:
    """Parse what `ping` prints, best with -D. A number that no reply has is a lost ping, also the ones at the end.

    Without -D and `interval_s`, the last line's total time gives the interval, or else ping's usual second.
    """
    replies: dict[int, tuple[float, float | None]] = {}  # by number: ms, time of arrival; a duplicate's first counts
    turn, latest = 0, 0  # icmp_seq has 16 bits
    sent, total_ms = 0, None
    for n, line in enumerate(text.split("\n"), 1):
        if found := _REPLY.search(line, 0, _MOST_READ):
            number = int(found["number"])
            turn += number < latest - 2**15
            latest = number
            at = _stamp(found["at"], f"{name}, line {n}") if found["at"] else None
            replies.setdefault(number + 2**16 * turn, (_rtt_ms(found["rtt"], f"{name}, line {n}: time"), at))
        elif found := _SUMMARY.search(line, 0, _MOST_READ):
            sent, total_ms = int(found["sent"]), int(found["ms"])
    if not replies:
        raise ProfileError(f"{name}: no reply: need lines such as '64 bytes from 192.0.2.1: icmp_seq=1 time=20 ms'")
    first = min(1, *replies)  # BSD counts from 0
    numbers = range(first, max(*replies, sent - 1 + first) + 1)
    if len(numbers) > MAX_LOST_IN_A_ROW + len(replies):
        raise ProfileError(f"{name}: {len(numbers)} pings and {len(replies)} replies: give each recording its own file")
    if interval_s is None and total_ms and sent > 1:
        interval_s = total_ms / 1000 / (sent - 1)
    times = _sent_times(numbers, replies, interval_s or USUAL_INTERVAL_S)
    return RoundTrips(name, times, np.array([replies.get(number, (np.nan, None))[0] for number in numbers]))


def _stamp(text: str, where: str) -> float:
    """Return the seconds of a stamp, which are those since 1970 or a date and a time of day."""
    try:
        return float(text) if text.replace(".", "").isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ProfileError(f"{where}: [{text}] is not a time: need seconds, as from ping -D, or a date") from None


def _sent_times(
    numbers: Sequence[int], replies: dict[int, tuple[float, float | None]], interval_s: float
) -> NDArray[np.float64]:
    """Return when each ping was sent: by its stamp, between two stamped ones, or by the interval."""
    stamped = [(number, at - ms / 1000) for number, (ms, at) in sorted(replies.items()) if at is not None]
    if len(stamped) < 2:
        return (np.array(numbers) - numbers[0]) * interval_s
    known, sent = (np.array(column, dtype=np.float64) for column in zip(*stamped, strict=True))
    step = (sent[-1] - sent[0]) / (known[-1] - known[0])
    asked = np.array(numbers, dtype=np.float64)
    times = np.interp(asked, known, sent)
    times += np.minimum(asked - known[0], 0) * step + np.maximum(asked - known[-1], 0) * step
    return np.asarray(np.maximum.accumulate(times) - times[0])


def _rtt_ms(text: str, what: str) -> float:
    value = parse_number(text, what)
    if value > MAX_RTT_MS:
        raise ProfileError(f"{what}={text}: need 0 to {MAX_RTT_MS / 1000:g} seconds")
    return value
