"""What the tun engine tells the process that carries its packets. Both sides import them, so know them by name."""

from __future__ import annotations

from dataclasses import dataclass

from outrider_netsim.impairments.path import PathStats
from outrider_netsim.profiles.profile import Direction, Profile


@dataclass(frozen=True, slots=True)
class Start:
    """The first request, answered by Started: the link begins now."""

    profile: Profile
    seed: int


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Set:
    """Both directions become these."""

    up: Direction
    down: Direction


@dataclass(frozen=True, slots=True)
class Cut:
    """Drop what enters, both ways."""


@dataclass(frozen=True, slots=True)
class Restore:
    """No longer."""


@dataclass(frozen=True, slots=True)
class Report:
    """Answered by PumpStats."""


@dataclass(frozen=True, slots=True)
class PumpStats:
    """Packets of both directions so far."""

    up: PathStats
    down: PathStats


PumpRequest = Set | Cut | Restore | Report
