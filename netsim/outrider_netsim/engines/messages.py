"""Messages between the tun engine and its packet pump process, sent as pickles."""

from __future__ import annotations

from dataclasses import dataclass

from outrider_netsim.impairments.path import PathStats
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.recording.recorder import RecordingFiles


@dataclass(frozen=True, slots=True)
class Start:
    """The first message, answered by Started: the link starts now."""

    profile: Profile
    seed: int
    recording: RecordingFiles


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Set:
    """Change both directions."""

    up: Direction
    down: Direction


@dataclass(frozen=True, slots=True)
class Cut:
    """Drop packets that enter, both ways."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Undo Cut."""


@dataclass(frozen=True, slots=True)
class Report:
    """Ask for PumpStats."""


@dataclass(frozen=True, slots=True)
class PumpStats:
    """Counters of both directions."""

    up: PathStats
    down: PathStats


PumpRequest = Set | Cut | Restore | Report
