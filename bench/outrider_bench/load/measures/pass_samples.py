"""The server's passes as its Prometheus metrics count them."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PassSamples:
    """The samples that were asked for, by name and labels."""

    samples: Mapping[str, float] = field(default_factory=dict)

    def since(self, before: PassSamples) -> PassSamples:
        return PassSamples({name: value - before.samples.get(name, 0.0) for name, value in self.samples.items()})

    def as_dict(self) -> dict[str, float] | None:
        return dict(self.samples) or None


async def scrape(address: str | None, names: tuple[str, ...]) -> PassSamples:
    """Fetch the samples whose names begin with one of `names`, `_created` excepted.

    Without an address there are none.
    """
    if address is None:
        return PassSamples()
    text = await asyncio.to_thread(_fetch, address)
    return PassSamples(parse(text, names))


def parse(text: str, names: tuple[str, ...]) -> dict[str, float]:
    # `_created` is a time of day: a difference of two means nothing.
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name.startswith(names) and "_created" not in name}


def mean_of(samples: Mapping[str, float], histogram: str) -> float:
    """Return the mean of a histogram's observations; 0 for none."""
    return samples.get(f"{histogram}_sum", 0.0) / max(samples.get(f"{histogram}_count", 0.0), 1.0)


def share_of(samples: Mapping[str, float], part: str, whole: str) -> float:
    """Return the ratio of two counters; 0 if the second is 0."""
    return samples.get(part, 0.0) / max(samples.get(whole, 0.0), 1.0)


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""
