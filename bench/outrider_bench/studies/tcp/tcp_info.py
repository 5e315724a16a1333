"""What the kernel says of a TCP connection (struct tcp_info of linux/tcp.h); Linux only."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_INFO_BYTES = 232
_AT = {"rto_us": 8, "rtt_us": 68, "cwnd": 80, "reordering": 88, "resent": 100, "sent": 156, "dsacks": 216}


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Counts are since the connection began. An old kernel's missing fields are 0."""

    rto_us: int
    rtt_us: int
    cwnd: int  # packets that may be under way
    reordering: int  # places by which a packet may be late before it counts as lost
    resent: int  # packets sent again
    sent: int  # packets with data, those sent again included
    dsacks: int  # packets that the other side says it got twice: sent again needlessly

    @classmethod
    def of(cls, connection: socket.socket) -> TcpInfo:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES).ljust(_INFO_BYTES, b"\0")
        return cls(**{name: struct.unpack_from("=I", data, offset)[0] for name, offset in _AT.items()})
