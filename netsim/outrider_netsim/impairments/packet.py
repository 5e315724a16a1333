"""What travels over a link. The impairments look at its size and never into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

ETHERNET_BYTES = 14  # the kernel's shapers count the Ethernet header with the IP packet


@dataclass(frozen=True, slots=True)
class Packet:
    """`data` is opaque: an IP packet, a piece of a TCP stream, or nothing; `size_bytes` is what counts for the rate."""

    data: bytes
    size_bytes: int

    @classmethod
    def of_ip(cls, data: bytes) -> Self:
        """An IP packet, as it comes out of a TUN device, with the size that it has on Ethernet."""
        return cls(data, len(data) + ETHERNET_BYTES)
