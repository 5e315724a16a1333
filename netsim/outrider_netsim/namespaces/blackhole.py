"""Make a listening socket deaf and hearing again, so that connecting to it hangs as it does without a radio.

Linux only: a socket filter that passes nothing drops the SYNs, and the client's kernel tries again by its own timer.
Elsewhere, and for users whom a newer kernel lets put no filter on TCP (seen on 6.1.192 and 6.18), these do nothing: the
kernel then accepts, and the connection stalls. A closed socket would answer with RST, which says "no server", not "no
network".
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
BPF_RET_NOTHING = struct.pack("HBBI", 6, 0, 0, 0)  # one classic BPF instruction: keep 0 bytes of every packet


def ignore_connections(listener: socket.socket) -> None:
    """Drop whatever comes to `listener`."""
    if sys.platform == "linux":
        code = ctypes.create_string_buffer(BPF_RET_NOTHING)
        program = struct.pack("HP", 1, ctypes.addressof(code))
        with contextlib.suppress(PermissionError):
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def accept_connections(listener: socket.socket) -> None:
    """Hear again; safe on a socket that is not deaf."""
    if sys.platform == "linux":
        try:
            listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        except FileNotFoundError:
            return
