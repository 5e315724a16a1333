"""The server's passes, as its metrics count them (Prometheus, text format)."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PassMetrics:
    """All samples of the metrics whose names were asked for, by name and labels."""

    samples: Mapping[str, float] = field(default_factory=dict)

    def since(self, before: PassMetrics) -> PassMetrics:
        return PassMetrics({name: value - before.samples.get(name, 0.0) for name, value in self.samples.items()})

    def as_dict(self) -> dict[str, float] | None:
        return dict(self.samples) or None


async def scrape(address: str | None, names: tuple[str, ...]) -> PassMetrics:
    """Nothing where there is no address. Only metrics that begin with one of `names`, without their `_created`."""
    if address is None:
        return PassMetrics()
    text = await asyncio.to_thread(_fetch, address)
    return PassMetrics(parse(text, names))


def parse(text: str, names: tuple[str, ...]) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name.startswith(names) and "_created" not in name}


def mean_of(samples: Mapping[str, float], histogram: str) -> float:
    """Of what a histogram has seen; 0 for nothing."""
    return samples.get(f"{histogram}_sum", 0.0) / max(samples.get(f"{histogram}_count", 0.0), 1.0)


def share_of(samples: Mapping[str, float], part: str, whole: str) -> float:
    """Of one counter in another; 0 of nothing."""
    return samples.get(part, 0.0) / max(samples.get(whole, 0.0), 1.0)


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""
