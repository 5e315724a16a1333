"""Planned outages of a link: "3s@10s" lasts three seconds and begins ten seconds after the start.

"1s@5s/30s" recurs every thirty seconds, "3s@first+2s" counts from the first byte of an answer, "up:3s@5s" is for one
direction. Packets sent meanwhile are lost, unless "+hold" follows: then they wait and go on afterwards, as in a
handover whose old cell forwards them to the new one (3GPP TS 36.300, 10.1.2.1).
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Protocol, cast

from outrider_netsim.core.engine_names import WAYS, Way
from outrider_netsim.core.errors import ProfileError

_TIME = r"(\d+(?:\.\d+)?)(ms|s|min|m)"
_OUTAGE = re.compile(f"(?:(up|down):)?{_TIME}@(?:(first)(?:\\+{_TIME})?|{_TIME})(?:/{_TIME})?(\\+hold)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0}


class Cuttable(Protocol):
    """A link that can be cut and restored."""

    def cut(self, ways: Sequence[Way] = WAYS) -> None: ...
    def restore(self, ways: Sequence[Way] = WAYS) -> None: ...


class OutageSwitch:
    """Calls `switch` with the directions that are out, when a planned outage begins and when it ends."""

    def __init__(self, switch: Callable[[frozenset[Way]], None]) -> None:
        self._switch = switch
        self._out: frozenset[Way] = frozenset()

    def cut(self, ways: Sequence[Way] = WAYS) -> None:
        self._out |= set(ways)
        self._switch(self._out)

    def restore(self, ways: Sequence[Way] = WAYS) -> None:
        self._out -= set(ways)
        self._switch(self._out)


@dataclass(frozen=True, slots=True)
class Outage:
    """A time without a link: from `start_s` for `duration_s`, recurring every `every_s` if given.

    Packets sent meanwhile are lost, or with `hold` wait until its end; what is then under way waits as well. `way` is
    the direction, if it is not both, and `after_answer` counts `start_s` from the first byte of an answer, which only
    `run` and `proxy` see.
    """

    duration_s: float
    start_s: float
    every_s: float | None = None
    hold: bool = False
    way: Way | None = None
    after_answer: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.duration_s < float("inf"):
            raise ProfileError(f"duration_s={self.duration_s:g}: an outage needs more than 0 seconds")
        if not 0 <= self.start_s < float("inf"):
            raise ProfileError(f"start_s={self.start_s:g}: need 0 or more seconds")
        if self.every_s is not None and not self.duration_s < self.every_s < float("inf"):
            raise ProfileError(f"every_s={self.every_s:g}: need more than the outage's {self.duration_s:g} seconds")

    def concerns(self, way: Way) -> bool:
        return self.way in (None, way)

    @property
    def end_s(self) -> float:
        """Return when the first occurrence ends."""
        return self.start_s + self.duration_s

    def times(self) -> Iterator[tuple[float, float]]:
        """Yield start and end of each occurrence in seconds, forever if it recurs."""
        if self.every_s is None:
            yield self.start_s, self.end_s
            return
        for n in count():
            start = self.start_s + n * self.every_s
            yield start, start + self.duration_s


def parse_outage(text: str) -> Outage:
    """Parse `3s@10s`, `1s@5s/30s` or `50ms@7s/20s+hold`; units are ms, s and min. Raises ProfileError."""
    match = _OUTAGE.fullmatch(text.strip())
    if match is None or (match[4] and match[11]):
        raise ProfileError(
            f"outage {text!r}: need DURATION@START or DURATION@START/EVERY, such as 3s@10s or 1s@5s/30s; 3s@first+2s "
            "counts from the first byte of an answer, up:3s@10s is for one direction; with +hold behind it "
            "(50ms@7s/20s+hold), packets wait instead of being lost"
        )
    way, duration, unit, first, *starts, every, every_unit, hold = match.groups()
    start, start_unit = starts[2:] if first is None else (starts[0] or "0", starts[1] or "s")
    try:
        return Outage(
            float(duration) * _SECONDS[unit],
            float(start) * _SECONDS[start_unit],
            float(every) * _SECONDS[every_unit] if every else None,
            hold=hold is not None,
            way=cast("Way | None", way),
            after_answer=first is not None,
        )
    except ProfileError as error:
        raise ProfileError(f"outage {text!r}: {error}") from None


def outage_text(outage: Outage) -> str:
    """Return the text that parse_outage reads."""
    every = f"/{_seconds_text(outage.every_s)}" if outage.every_s is not None else ""
    start = f"{'first+' if outage.after_answer else ''}{_seconds_text(outage.start_s)}"
    way = f"{outage.way}:" if outage.way else ""
    return f"{way}{_seconds_text(outage.duration_s)}@{start}{every}{'+hold' if outage.hold else ''}"


def _seconds_text(seconds: float) -> str:
    # Via repr and Decimal: the shortest digits that parse to the same float, never in exponent form.
    return f"{Decimal(repr(seconds)).normalize():f}s"


def in_order(outages: Sequence[Outage]) -> list[Outage]:
    """Sort by start. Raises ProfileError when recurring ones leave no link."""
    for way in WAYS:
        if sum(each.duration_s / each.every_s for each in outages if each.every_s and each.concerns(way)) >= 1:
            raise ProfileError("the recurring outages together leave no time with a link: make one shorter or rarer")
    return sorted(outages, key=lambda outage: outage.start_s)


def occurrences(outages: Sequence[Outage]) -> Iterator[tuple[float, float]]:
    """Yield start and end of every time without a link, in order; touching or overlapping ones are merged."""
    last: tuple[float, float] | None = None
    # Merged lazily: recurring outages never end.
    for start, end in heapq.merge(*(outage.times() for outage in in_order(outages))):
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


async def run_outages(link: Cuttable, outages: Sequence[Outage]) -> None:
    """Cut and restore `link` as planned, counting from now. Never returns if an outage recurs.

    Raises ProfileError for one that holds packets, which only a link's own profile can: a cut drops them.
    """
    for outage in outages:
        if outage.hold:
            raise ProfileError(f"outage {outage_text(outage)}: a cut drops packets; give it in the link's profile")
    ways = {way: [outage for outage in outages if outage.concerns(way)] for way in WAYS}
    if ways["up"] == ways["down"]:
        await _run_way(link, WAYS, outages)
    else:
        await asyncio.gather(*(_run_way(link, [way], planned) for way, planned in ways.items()))


async def _run_way(link: Cuttable, ways: Sequence[Way], outages: Sequence[Outage]) -> None:
    loop = asyncio.get_running_loop()
    # Each sleep ends at a time counted from the start: errors of single sleeps do not add up.
    started_at = loop.time()
    for start, end in occurrences(outages):
        await asyncio.sleep(started_at + start - loop.time())
        link.cut(ways)
        await asyncio.sleep(started_at + end - loop.time())
        link.restore(ways)
