"""The blocks of a capture file of one link with two interfaces, in the format pcapng (draft-ietf-opsawg-pcapng).

    interface 0, "client side"  ====[ link ]====  interface 1, "server side"

A packet that goes through has one block where it enters and one where it leaves, with the same epb_packetid (Wireshark:
frame.packet_id), so delay and loss can be read from the file alone. Packets begin with their IP header (LINKTYPE_IPV4).
"""

from __future__ import annotations

import struct
from typing import Final

CLIENT_SIDE: Final = 0
SERVER_SIDE: Final = 1
# Not LINKTYPE_RAW: libpcap 1.10 refuses a second interface of a type that it numbers otherwise (pcapng.c).
LINKTYPE_IPV4 = 228
_NAMES = "client side", "server side"

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6  # block types
_BYTE_ORDER = 0x1A2B3C4D
_END_OF_OPTIONS, _COMMENT, _APPLICATION = 0, 1, 4
_INTERFACE_NAME, _RESOLUTION = 2, 9
_PACKET_FLAGS, _PACKET_ID = 2, 5
INBOUND, OUTBOUND = 1, 2  # seen from the side's host

_PACKET_HEAD = struct.Struct("=IIIIIII")
# Both options of a packet, the end of options, and the block's length again.
_PACKET_TAIL = struct.Struct("=HHIHHQHHI")


def file_start(comment: str) -> bytes:
    """Return the blocks that a file begins with."""
    options = _option(_COMMENT, comment.encode()) + _option(_APPLICATION, b"outrider-netsim")
    section = _block(_SECTION, struct.pack("=IHHq", _BYTE_ORDER, 1, 0, -1) + _ended(options))
    return section + b"".join(_interface(name) for name in _NAMES)


def packet_block(interface: int, flags: int, time_ns: int, packet_id: int, data: bytes) -> bytes:
    """Return the block of one IP packet; `flags` is INBOUND or OUTBOUND."""
    size = len(data)
    padding = bytes(-size % 4)
    total = _PACKET_HEAD.size + size + len(padding) + _PACKET_TAIL.size
    head = _PACKET_HEAD.pack(_PACKET, total, interface, time_ns >> 32, time_ns & 0xFFFF_FFFF, size, size)
    tail = _PACKET_TAIL.pack(_PACKET_FLAGS, 4, flags, _PACKET_ID, 8, packet_id, _END_OF_OPTIONS, 0, total)
    return b"".join((head, data, padding, tail))


def _interface(name: str) -> bytes:
    # 9: times in units of 10^-9 s.
    options = _option(_INTERFACE_NAME, name.encode()) + _option(_RESOLUTION, bytes([9]))
    return _block(_INTERFACE, struct.pack("=HHI", LINKTYPE_IPV4, 0, 0) + _ended(options))


def _block(kind: int, body: bytes) -> bytes:
    total = 12 + len(body)
    return struct.pack("=II", kind, total) + body + struct.pack("=I", total)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("=HH", code, len(value)) + value + bytes(-len(value) % 4)


def _ended(options: bytes) -> bytes:
    return options + struct.pack("=HH", _END_OF_OPTIONS, 0)
