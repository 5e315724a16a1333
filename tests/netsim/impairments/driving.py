"""Drive an impairment through pushes, polled at its events or at any other times."""

from outrider_netsim.impairments.impairment import Packet


def numbered(n, size_bytes=1000):
    """Return the n-th packet, marked with its number."""
    return Packet(str(n).encode(), size_bytes)


def number(packet):
    return int(packet.data)


def events_until(impairment, now=float("inf")):
    """[(time, number of the packet)] of all that comes out at its own times up to `now`."""
    out = []
    while (when := impairment.next_event()) is not None and when <= now:
        out += [(when, number(packet)) for packet in impairment.pop_ready(when)]
    return out


def pushed_at(impairment, times, size_bytes=1000):
    """Push the n-th packet at the n-th time, asking at every event; [(time, number)] of what comes out."""
    out = []
    for n, now in enumerate(times):
        out += events_until(impairment, now)
        impairment.push(numbered(n, size_bytes), now)
    return out + events_until(impairment)
