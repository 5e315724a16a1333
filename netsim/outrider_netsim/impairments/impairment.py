"""The interface of every impairment, and the rules that make nested ones independent of when they are polled.

    Loss(Delay(Rate(Sink())))           a packet meets the outermost first, as with Mahimahi's nested shells

    push(packet, now) -> [ Loss ] -> [ Delay ] --at the packet's own time--> [ Rate ] --> [ Sink ] -> pop_ready(now)

1. `now` is in seconds and never goes backwards, over all calls.
2. Everything inside happens at its own time, not when it is polled: a packet whose delay ends at 1.25 goes on at 1.25
   even if `pop_ready` is called at 1 and then at 2. So polling only changes when a packet is seen.
3. At any one moment, packets under way move on before new ones enter, and packets keep the order they entered in.
4. Each impairment has its own random generator: the n-th packet that reaches it takes the n-th draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

ETHERNET_BYTES = 14  # the kernel's shapers count the Ethernet header with the IP packet
DropReason = Literal["lost", "queue", "outage"]


@dataclass(slots=True)
class Packet:
    """Opaque data, maybe empty, and the size that counts for the rate."""

    data: bytes
    size_bytes: int
    is_corrupt: bool = field(default=False, init=False)  # a bit was flipped, in `data` where there is any

    @classmethod
    def of_ip(cls, data: bytes) -> Self:
        """Wrap an IP packet from a TUN device, with its size on Ethernet."""
        return cls(data, len(data) + ETHERNET_BYTES)


class PacketObserver(Protocol):
    """Is told of every packet of a Path, at the path's own times in seconds.

    A packet is the same object in every call; a copy that the link makes is another one.
    """

    def entered(self, packet: Packet, now: float) -> None: ...
    def copied(self, copy: Packet, now: float) -> None: ...
    def left(self, packet: Packet, now: float) -> None: ...
    def dropped(self, packet: Packet, now: float, reason: DropReason) -> None: ...


def ignore_drop(packet: Packet, now: float) -> None:
    """Stand in for `on_drop` while a path has no observer."""


class Impairment(Protocol):
    """One thing that a link does to packets, together with everything behind it."""

    def push(self, packet: Packet, now: float) -> None:
        """Let `packet` enter at `now`."""

    def pop_ready(self, now: float) -> list[Packet]:
        """Return the packets that have come out by `now`, in order, each once."""

    def next_event(self) -> float | None:
        """Return when to poll again; None while nothing is under way.

        No packet comes out earlier. The time may be in the past.
        """


class InOrder(Impairment, Protocol):
    """An impairment in and behind which no packet overtakes another."""

    def earliest_exit(self, packet: Packet, now: float) -> float:
        """Return the earliest time at which `packet` could come out if it entered an empty link at `now`."""


def earlier(own: float, behind: float | None) -> float:
    """Return the earlier of an impairment's own event and the one behind it, if there is one."""
    return own if behind is None or own < behind else behind
