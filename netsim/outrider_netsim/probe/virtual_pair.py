"""A probe target in virtual time: the same packets through the virtual engine, without a socket or a wait."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from outrider_netsim.probe.crossings import WAYS, Crossing, Flood, Load, Transport, Volley, Way
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.virtual.link import VirtualLink


class VirtualPair:
    """Both directions of a virtual link. Its time goes on from one run to the next."""

    transport: Transport = "datagrams"
    link_bytes = 106  # as DatagramPair's
    full_bytes = 1514
    least_spacing_s = 0.0

    def __init__(self, profile: Profile, seed: int) -> None:
        self._link = VirtualLink(profile, seed)

    async def volley(self, volley: Volley) -> dict[Way, Crossing]:
        return self._carry(WAYS, volley, self.link_bytes)

    async def load(self, load: Load) -> Flood:
        spacing_s = self.full_bytes * 8 / load.offered_bps
        volley = Volley(int(load.duration_s / spacing_s), spacing_s, load.settle_s)
        crossing = self._carry([load.way], volley, self.full_bytes)[load.way]
        arrivals = sorted((when, float(self.full_bytes)) for when in crossing.received_s if when is not None)
        return Flood(crossing.sent_s[0], crossing.sent_s[-1], tuple(arrivals), load.offered_bps, held_back=False)

    async def control(self, volley: Volley) -> dict[Way, Crossing]:
        """A link that does nothing to packets: measuring costs nothing here."""
        return await VirtualPair(Profile.symmetric("none", Direction()), 0).volley(volley)

    def _carry(self, ways: Sequence[Way], volley: Volley, size_bytes: int) -> dict[Way, Crossing]:
        clock = self._link.clock
        sent = [clock.now + number * volley.spacing_s for number in range(volley.packets)]
        received: dict[Way, list[float | None]] = {way: [None] * volley.packets for way in ways}

        def send(way: Way, number: int) -> None:
            self._link.send(way, size_bytes, partial(arrived, way, number))

        def arrived(way: Way, number: int) -> None:
            received[way][number] = clock.now

        for number, when in enumerate(sent):
            for way in ways:
                clock.call_at(when, partial(send, way, number))
        clock.run_until(sent[-1] + volley.settle_s)
        return {way: Crossing(tuple(sent), tuple(received[way])) for way in ways}
