"""What a probe sends through a link and what it sees come out: plain data between measuring and judging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Transport = Literal["datagrams", "streams"]
Way = Literal["up", "down"]
WAYS: tuple[Way, Way] = ("up", "down")


@dataclass(frozen=True, slots=True)
class PacketTrain:
    """Numbered packets to send both ways at once, one each way every `spacing_s`; then `settle_s` for the last ones."""

    packets: int
    spacing_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class SaturatingLoad:
    """More than the link's rate, one way, for `duration_s`: `offered_bps` of link bytes in full packets."""

    way: Way
    offered_bps: float
    duration_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """One direction of a train, by packet, in seconds of one clock for both ends.

    None: it never came, or over streams only after a stall.
    """

    sent_s: tuple[float, ...]
    received_s: tuple[float | None, ...]

    @property
    def delays_ms(self) -> list[float]:
        """One-way delays of the packets that came, in the order they were sent."""
        pairs = zip(self.sent_s, self.received_s, strict=True)
        return [(received - sent) * 1000 for sent, received in pairs if received is not None]

    @property
    def lost(self) -> list[bool]:
        """By packet, in the order of sending."""
        return [received is None for received in self.received_s]


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """What came of a load: when, and how many bytes as the link's rate counts them."""

    started_s: float
    ended_s: float  # of sending
    arrivals: tuple[tuple[float, float], ...]  # (s, link bytes), by time
    offered_bps: float  # what was really sent
    held_back: bool  # the sender had to wait for the link, so that it had all it could take


@dataclass(frozen=True, slots=True)
class Samples:
    """Everything one probe saw."""

    transport: Transport
    link_bytes: int  # of a packet in the volleys, as the link's rate counts them
    delay: dict[Way, PacketTimes]
    loss: dict[Way, PacketTimes]
    load_times: dict[Way, LoadTimes]  # ways without a rate are left out
