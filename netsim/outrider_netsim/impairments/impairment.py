"""The interface of every impairment, and the rules that make a nest of them independent of who asks when.

    Loss(Delay(Rate(Exit())))           a packet meets the outermost first, as with Mahimahi's nested shells

    push(packet, now) -> [ Loss ] -> [ Delay ] --at the packet's own time--> [ Rate ] --> [ Exit ] -> pop_ready(now)

1. `now` is in seconds and never goes backwards, over all calls.
2. What happens inside happens at its own time, not when somebody asks: a packet whose delay ends at 1.25 goes on at
   1.25 although `pop_ready` was last called at 1 and is called next at 2. So polling changes only when one sees it.
3. At one moment, what is under way moves on before what is pushed, and packets keep the order they were pushed in.
4. Chance comes from a generator of the impairment's own: the n-th packet that reaches it takes its n-th draw.
"""

from __future__ import annotations

from typing import Protocol

from outrider_netsim.impairments.packet import Packet


class Impairment(Protocol):
    """One thing that a link does to packets, with all that lies behind it."""

    def push(self, packet: Packet, now: float) -> None:
        """`packet` enters at `now`."""

    def pop_ready(self, now: float) -> list[Packet]:
        """What has come out at the far end by `now` and was not returned before, in the order of coming out."""

    def next_event(self) -> float | None:
        """When to ask again: no packet comes out before this; None while nothing is under way. May be in the past."""


class InOrder(Impairment, Protocol):
    """An impairment in which, and behind which, no packet overtakes another."""

    def least_exit(self, packet: Packet, now: float) -> float:
        """No sooner than this does `packet` come out if it enters at `now` and finds nothing there."""


def earlier(own: float, behind: float | None) -> float:
    """An event of one's own, or one behind, if there is one and it comes first."""
    return own if behind is None or own < behind else behind
