"""The packets that a probe sends and receives: plain data between measurement and report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Transport = Literal["datagrams", "streams"]
Way = Literal["up", "down"]
WAYS: tuple[Way, Way] = ("up", "down")


@dataclass(frozen=True, slots=True)
class PacketTrain:
    """Numbered packets sent both ways at once, one each way every `spacing_s`, then `settle_s` of waiting."""

    packets: int
    spacing_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class SaturatingLoad:
    """Full packets at `offered_bps` of link bytes, above the link's rate, one way for `duration_s`."""

    way: Way
    offered_bps: float
    duration_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """Send and receive times of the packets of one direction, in seconds of one clock.

    None: it never arrived, or, over streams, only after a stall.
    """

    sent_s: tuple[float, ...]
    received_s: tuple[float | None, ...]

    @property
    def delays_ms(self) -> list[float]:
        """One-way delays of the packets that arrived, in the order sent."""
        pairs = zip(self.sent_s, self.received_s, strict=True)
        return [(received - sent) * 1000 for sent, received in pairs if received is not None]

    @property
    def lost(self) -> list[bool]:
        """True for each lost packet, in the order sent."""
        return [received is None for received in self.received_s]


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Arrivals of a saturating load, in bytes as the link's rate counts them."""

    started_s: float
    ended_s: float  # end of sending
    arrivals: tuple[tuple[float, float], ...]  # (s, link bytes), by time
    offered_bps: float  # actually sent
    held_back: bool  # the sender had to wait, so the link was saturated


@dataclass(frozen=True, slots=True)
class Samples:
    """Everything one probe measured."""

    transport: Transport
    link_bytes: int  # of a packet in the trains, as the link's rate counts them
    delay: dict[Way, PacketTimes]
    loss: dict[Way, PacketTimes]
    load_times: dict[Way, LoadTimes]  # ways without a rate are left out
