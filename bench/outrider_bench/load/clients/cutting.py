"""TCP connections of this process, shut down under the feet of whoever uses them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat


def cut_connection(port: int, generator: random.Random) -> bool:
    """End one of the connections to that port, drawn by lot; False where there is none. Linux only."""
    found = _connections(port)
    try:
        if not found:
            return False
        with contextlib.suppress(OSError):  # it has ended by itself
            generator.choice(found).shutdown(socket.SHUT_RDWR)
        return True
    finally:
        for sock in found:
            sock.close()


def _connections(port: int) -> list[socket.socket]:
    """Copies of the descriptors; shutting one down shuts the connection down."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # gone meanwhile
            continue
        if _peer_port(sock) == port:
            found.append(sock)
        else:
            sock.close()
    return found


def _peer_port(sock: socket.socket) -> int | None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return None
    try:
        return int(sock.getpeername()[1])
    except OSError:
        return None
