"""What commands say about their link: what it is when it starts, and what passed when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider_netsim.impairments.path import LinkStats, PathStats
    from outrider_netsim.link import Link


def introduction(link: Link) -> str:
    """Describe a started link in one line."""
    from outrider_netsim.link import seed_text

    seed = seed_text(link.seed, link.seed_is_honoured)
    return (
        f"{link.profile.name}, mean round trip {link.profile.round_trip_ms:.1f} ms; {seed}, {link.congestion}; "
        f"engine {link.engine}: {link.why}"
    )


def totals(stats: LinkStats) -> str:
    """Return a link's counters in words."""
    return f"{stats.connections} connections; up {_counted(stats.up)}; down {_counted(stats.down)}"


def _counted(path: PathStats) -> str:
    gone = {"lost": path.lost, "in outages": path.dropped_by_outage, "by the full queue": path.dropped_by_queue}
    gone |= {"duplicated": path.duplicated, "corrupted": path.corrupted}
    losses = "".join(f", {number:,} {how}" for how, number in gone.items() if number)
    return f"{path.bytes_out:,} bytes in {path.packets_out:,} packets{losses}"
