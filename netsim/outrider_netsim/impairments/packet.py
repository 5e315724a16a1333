"""A packet on a link. The impairments look at its size, and only corruption at its content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

ETHERNET_BYTES = 14  # the kernel's shapers count the Ethernet header with the IP packet


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
