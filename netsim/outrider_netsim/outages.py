"""Planned outages of a link: "3s@10s" is three seconds without it, ten seconds after the start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from outrider_netsim.profile import ProfileError

_TIME = r"(\d+(?:\.\d+)?)(ms|s|m)"
_OUTAGE = re.compile(f"{_TIME}@{_TIME}")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Cuttable(Protocol):
    """Any engine's link."""

    def cut(self) -> None: ...
    def restore(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outage:
    """No link from `start_s` on, for `duration_s`."""

    duration_s: float
    start_s: float

    def __post_init__(self) -> None:
        if not self.duration_s > 0:
            raise ProfileError(f"duration_s={self.duration_s:g}: an outage needs more than 0")
        if not self.start_s >= 0:
            raise ProfileError(f"start_s={self.start_s:g}: need 0 or more")

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


def parse_outage(text: str) -> Outage:
    """`3s@10s`, also in ms and m. Raises ProfileError."""
    match = _OUTAGE.fullmatch(text.strip())
    if match is None:
        raise ProfileError(f"outage {text!r}: need DURATION@START, such as 3s@10s or 500ms@2m")
    duration, unit, start, start_unit = match.groups()
    return Outage(float(duration) * _SECONDS[unit], float(start) * _SECONDS[start_unit])


def in_order(outages: Sequence[Outage]) -> list[Outage]:
    """Sorted by start. Raises ProfileError when two overlap."""
    ordered = sorted(outages, key=lambda outage: outage.start_s)
    for first, second in pairwise(ordered):
        if second.start_s < first.end_s:
            raise ProfileError(
                f"the outage at {second.start_s:g} s starts before the one at {first.start_s:g} s ends "
                f"({first.end_s:g} s): make them one"
            )
    return ordered


async def run_outages(link: Cuttable, outages: Sequence[Outage]) -> None:
    """Cut and restore `link` as planned, counting from now."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    for outage in in_order(outages):
        await asyncio.sleep(started_at + outage.start_s - loop.time())
        link.cut()
        await asyncio.sleep(started_at + outage.end_s - loop.time())
        link.restore()
