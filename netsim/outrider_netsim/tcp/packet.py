"""What TCP puts on a link, as far as it matters for time: no addresses, no content."""

from __future__ import annotations

from dataclasses import dataclass, field

SEGMENT_BYTES = 1448  # payload of a full packet on Ethernet: 1500 less IPv4 and TCP headers with timestamps
HEADER_BYTES = 66  # Ethernet, IPv4 and TCP with timestamps
SYN_BYTES = 74

Range = tuple[int, int]  # sequence numbers from, up to


@dataclass(frozen=True, slots=True)
class TcpPacket:
    """A segment with its acknowledgment; sequence numbers count payload bytes from 0, and one for the FIN."""

    seq: int
    end: int
    ack: int
    sacks: tuple[Range, ...]
    stamp_ms: int  # RFC 7323's TSval, in Linux's milliseconds
    echo_ms: int  # TSecr
    syn: bool = False
    fin: bool = False
    rst: bool = False

    @property
    def size_bytes(self) -> int:
        """On Ethernet."""
        return SYN_BYTES if self.syn else HEADER_BYTES + self.end - self.seq - self.fin


@dataclass(slots=True, eq=False)
class SentSegment:
    """A segment that is not acknowledged yet, and what the sender knows of it."""

    seq: int
    end: int
    fin: bool
    sent_at: float = 0.0  # last
    is_sacked: bool = False
    is_lost: bool = False
    is_sent_again: bool = False  # and that transmission may still arrive
    was_sent_again: bool = False
    delivered_before: int = 0  # how many packets had been delivered when it was sent last


@dataclass(slots=True)
class AckNews:
    """What one acknowledgment told the sender (the flags of tcp_ack)."""

    echo_ms: int
    prior_una: int = 0  # the first unacknowledged byte before
    has_data: bool = False
    advanced: bool = False  # of the first unacknowledged byte
    acked: bool = False
    sacked: bool = False
    dsacked: bool = False
    dsacked_probe: bool = False  # the D-SACK names a tail loss probe
    original_arrived: bool = False  # something that was never sent again
    retransmission_lost: bool = False
    sets_timer: bool = False
    delivered: int = 0  # packets
    # When segments that were sent once left: of those acknowledged in order and of those acknowledged selectively.
    sent_at: list[float] = field(default_factory=list)
    sacked_sent_at: list[float] = field(default_factory=list)
    acked_again: bool = False  # a segment that had been sent again
