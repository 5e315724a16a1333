"""A distribution of delays as a table of equally likely values, such as iproute2's .dist files hold.

A file has whole numbers of 16 bits apart by white space, in units of 1/8192 of the jitter around the mean; lines that
start with # are comments (tc/q_netem.c, get_distribution). The values are used as they are, as tc and netem do: a table
whose own mean and deviation are not 0 and 8192 shifts and stretches the delays.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.trace_files import read_text

SUFFIX = ".dist"
SCALE = 8192  # NETEM_DIST_SCALE
MAX_ENTRIES = 16_384  # NETEM_DIST_MAX
LEAST_ENTRY, LARGEST_ENTRY = -(2**15), 2**15 - 1


@dataclass(frozen=True)  # no slots: they would leave no place for the sums
class DistributionTable:
    """Equally likely values in rising order, in deviations from the mean."""

    name: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        return self.name

    def quantile(self, u: float) -> float:
        """Return the value that a share `u` of draws does not exceed."""
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]

    def moments_above(self, least: float) -> tuple[float, float, float]:
        """Return the share of values above `least`, and the means of those values and of their squares over all."""
        start, count = bisect_right(self.values, least), len(self.values)
        firsts, seconds = self._sums
        return (count - start) / count, (firsts[-1] - firsts[start]) / count, (seconds[-1] - seconds[start]) / count

    @cached_property
    def _sums(self) -> tuple[list[float], list[float]]:
        return list(accumulate(self.values, initial=0.0)), list(accumulate((x * x for x in self.values), initial=0.0))


def load_distribution(path: str | Path) -> DistributionTable:
    """Load a .dist file. Raises ProfileError that names file and line."""
    entries: list[int] = []
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        if not line.startswith("#"):
            entries += [_entry(word, f"{path}, line {number}") for word in line.split()]
        if len(entries) > MAX_ENTRIES:
            raise ProfileError(f"{path}, line {number}: more than {MAX_ENTRIES} numbers: netem takes no more")
    if not entries:
        raise ProfileError(f"{path}: no numbers: need 1 to {MAX_ENTRIES}")
    return DistributionTable(str(path), tuple(sorted(entry / SCALE for entry in entries)))


def _entry(word: str, place: str) -> int:
    try:
        entry = int(word)
    except ValueError:
        raise ProfileError(f"{place}: {word[:40]!r}: need whole numbers") from None
    if not LEAST_ENTRY <= entry <= LARGEST_ENTRY:
        raise ProfileError(f"{place}: {word[:40]}: need {LEAST_ENTRY} to {LARGEST_ENTRY}, a number of 16 bits")
    return entry
