"""What is measured of TCP over a link, and the sizes, counts and durations of it. Plain data; knows no engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from outrider_netsim.core.engine_names import DEFAULT_CONGESTION
from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.profile import Direction, Profile

Measure = Literal["download", "after_idle", "reply", "lone_loss", "recovery", "overhead"]
# Figures by name, each a list of samples in its unit.
Samples = dict[str, list[float]]

SMALL_BYTES = 100  # of a request or a small reply, less than a segment
REPLY_BYTES = 8 * 1448  # eight full segments: a verdict with the features of its tokens
OVERHEAD = "overhead_ms"  # the figure: what a round trip takes beyond the link's delays
# A lone lost packet costs at least Linux's shortest timeout, 200 ms, on top of a round trip; jitter hardly 150 ms.
STALL_MS = 150.0


@dataclass(frozen=True, slots=True)
class TransferTask:
    """One measure on a link of its own."""

    measure: Measure
    cut_s: float = 0.0  # of a recovery


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How long and how often each measure is taken in one repetition; a count or duration of 0 leaves it out."""

    seconds: float = 10.0  # of the download
    size_bytes: int = 150_000  # of a transfer after a pause
    idle_s: float = 1.5  # the pause
    transfers: int = 7
    cuts_s: tuple[float, ...] = (3.0, 8.0)
    requests: int = 16  # begun during each cut, on connections of their own
    loss: float = 0.04  # share of packets, up only, for the lone lost packet
    exchanges: int = 300
    replies: int = 80
    pings: int = 30  # over a link without chance, for what the engine adds
    congestion: str = DEFAULT_CONGESTION

    def __post_init__(self) -> None:
        for name, most in (("seconds", 3600), ("idle_s", 3600), ("loss", 0.5)):
            _check(name, getattr(self, name), 0, most)
        _check("size_bytes", self.size_bytes, 1, 1 << 30)
        for name in ("transfers", "exchanges", "replies", "pings"):
            _check(name, getattr(self, name), 0, 100_000)
        _check("requests", self.requests, 0, 100)
        for cut_s in self.cuts_s:
            _check("cut", cut_s, 0.1, 600)

    @property
    def tasks(self) -> tuple[TransferTask, ...]:
        """The measures of one repetition; the download comes first."""
        wanted: list[tuple[Measure, float]] = [
            ("download", self.seconds),
            ("after_idle", self.transfers),
            ("reply", self.replies),
            ("lone_loss", self.exchanges * self.loss),
            ("overhead", self.pings),
        ]
        cuts = [TransferTask("recovery", cut_s) for cut_s in self.cuts_s] if self.requests else []
        return (*(TransferTask(measure) for measure, amount in wanted if amount), *cuts)

    def only(self, task: TransferTask) -> TransferPlan:
        """Return the plan of which `task` is the only one."""
        return replace(
            self,
            seconds=self.seconds if task.measure == "download" else 0.0,
            transfers=self.transfers if task.measure == "after_idle" else 0,
            replies=self.replies if task.measure == "reply" else 0,
            exchanges=self.exchanges if task.measure == "lone_loss" else 0,
            pings=self.pings if task.measure == "overhead" else 0,
            cuts_s=(task.cut_s,) if task.measure == "recovery" else (),
        )

    def connections(self, task: TransferTask) -> int:
        """Return the number of connections that `task` opens."""
        return {"download": 2, "recovery": self.requests}.get(task.measure, 1)

    def link(self, task: TransferTask, profile: Profile) -> Profile:
        """Return the link for `task`: `profile` without planned outages.

        For lone losses it has their loss, up only; for the engine's overhead the mean delays and nothing of chance.
        """
        if task.measure == "overhead":
            return replace(profile, up=_steady(profile.up), down=_steady(profile.down), outages=())
        if task.measure != "lone_loss":
            return replace(profile, outages=())
        up = replace(profile.up, loss=self.loss, bursts=None)
        return replace(profile, up=up, down=replace(profile.down, loss=0.0, bursts=None), outages=())

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:  # Any: what json.loads gives
        """Read what `asdict` wrote."""
        # Reports without "pings" are older than that measure, and lack nothing else.
        described = {"pings": cls().pings, **described}
        known = {field.name: described[field.name] for field in fields(cls)}
        return cls(**known | {"cuts_s": tuple(known["cuts_s"])})


def recovery_name(cut_s: float) -> str:
    """Return the name of the figure: the time from the restore to the answer, after a cut of `cut_s`."""
    return f"recovery_{cut_s:g}s_ms"


def stall_ms(profile: Profile) -> float:
    """Return the time from which on a small exchange has lost a packet."""
    return profile.round_trip_ms + STALL_MS


def _steady(direction: Direction) -> Direction:
    """Return a direction with the same rate, and the mean delay for every packet."""
    return Direction(direction.mean_delay_ms, rate_bps=direction.rate_bps, in_order=direction.in_order)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ProfileError(f"{name}={value:g}: need {least:g} to {most:g}")
