"""Filters of packets at a socket: make connections to a listening one hang, as over a dead link.

Linux only: a socket filter that passes nothing drops the SYNs, and the client's kernel retries by its own timer. On
other systems, and for users that newer kernels forbid filters on TCP (seen on 6.1.192 and 6.18), these functions do
nothing: the kernel accepts, and the connection stalls. A closed socket would answer with RST, which means "no server",
not "no network".
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Sequence

SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
# Instructions of classic BPF (linux/filter.h: code, jump if true, jump if false, constant).
NOTHING = ((0x06, 0, 0, 0),)  # keep 0 bytes of every packet
FIRST_PACKETS = (  # of TCP over IPv4: protocol 6, of the flags SYN and ACK only SYN; keep 64 bytes
    *((0x30, 0, 0, 9), (0x15, 0, 5, 6), (0xB1, 0, 0, 0), (0x50, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02)),
    *((0x06, 0, 0, 64), *NOTHING),
)


def ignore_connections(listener: socket.socket, *, ignored: bool) -> None:
    """Drop every packet that arrives at `listener`, or no more; safe on any socket."""
    if sys.platform == "linux":
        # Attaching a filter may be forbidden, and then there is none to detach.
        with contextlib.suppress(PermissionError, FileNotFoundError):
            if ignored:
                attach_filter(listener, NOTHING)
            else:
                listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def attach_filter(receiver: socket.socket, instructions: Sequence[tuple[int, int, int, int]]) -> None:
    """Let a socket receive only what a program of classic BPF keeps. Raises OSError."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
    # Only an address goes into the program: `code` must stay alive until setsockopt has copied it.
    program = struct.pack("HP", len(instructions), ctypes.addressof(code))
    receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
