"""Reads a capture back, as strictly as the format says (draft-ietf-opsawg-pcapng)."""

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """One packet at one interface."""

    interface: int
    time_ns: int
    data: bytes
    flags: int
    packet_id: int


def blocks(data):
    """Yield (type, body) of every block; asserts that both lengths agree and are multiples of four."""
    while data:
        kind, size = struct.unpack_from("=II", data)
        assert size % 4 == 0
        assert size >= 12
        assert struct.unpack_from("=I", data, size - 4) == (size,)
        yield kind, data[8 : size - 4]
        data = data[size:]


def options(data):
    """{code: value} up to the end of options, which must be the end."""
    found = {}
    while True:
        code, size = struct.unpack_from("=HH", data)
        data = data[4:]
        if code == 0:
            assert (size, data) == (0, b"")
            return found
        found[code] = data[:size]
        data = data[size + -size % 4 :]


def read_pcapng(path):
    """Return the section's options, the interfaces' options, and the packets in the order of the file."""
    (kind, section), *rest = blocks(path.read_bytes())
    assert kind == 0x0A0D0D0A
    assert struct.unpack_from("=IHHq", section) == (0x1A2B3C4D, 1, 0, -1)
    interfaces, packets = [], []
    for kind, body in rest:
        match kind:
            case 1:
                assert struct.unpack_from("=HHI", body) == (228, 0, 0)  # raw IPv4, no limit
                interfaces.append(options(body[8:]))
            case 6:
                interface, high, low, size, original = struct.unpack_from("=IIIII", body)
                assert size == original
                assert interface < len(interfaces)
                found = options(body[20 + size + -size % 4 :])
                (flags,), (packet_id,) = struct.unpack("=I", found[2]), struct.unpack("=Q", found[5])
                packets.append(Seen(interface, high << 32 | low, body[20 : 20 + size], flags, packet_id))
            case _:
                raise AssertionError(f"block of type {kind}")
    return options(section[16:]), interfaces, packets
