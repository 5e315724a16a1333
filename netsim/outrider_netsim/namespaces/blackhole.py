"""Make connections to a listening socket hang, as over a dead link.

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

SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
BPF_RET_NOTHING = struct.pack("HBBI", 6, 0, 0, 0)  # one classic BPF instruction: keep 0 bytes of every packet


def ignore_connections(listener: socket.socket) -> None:
    """Drop every packet that arrives at `listener`."""
    if sys.platform == "linux":
        code = ctypes.create_string_buffer(BPF_RET_NOTHING)
        # Only an address goes into the program: `code` must stay alive until setsockopt has copied it.
        program = struct.pack("HP", 1, ctypes.addressof(code))
        with contextlib.suppress(PermissionError):
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def accept_connections(listener: socket.socket) -> None:
    """Undo `ignore_connections`; safe on any socket."""
    if sys.platform == "linux":
        try:
            listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        except FileNotFoundError:
            # There was no filter: attaching it may have been forbidden.
            return
