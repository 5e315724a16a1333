"""Sockets of this machine in front of a link and behind it: what waits in them hides the link, so little may."""

from __future__ import annotations

import asyncio
import socket
import sys

BUFFER_BYTES = 64 * 1024
UNSENT_BYTES = 16 * 1024  # in a socket's kernel, beyond what is under way
SEGMENT_BYTES = 1460  # as on the link: over loopback's 64 KB, the other end's kernel buffers megabytes from the start
TCP_NOTSENT_LOWAT = 25  # linux/tcp.h


def hold_back(own: socket.socket) -> None:
    """Keep little of what arrives at a socket that listens, or is not connected yet."""
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    if sys.platform == "linux":
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)


def keep_little_unsent(own: socket.socket) -> None:
    if sys.platform == "linux":
        own.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)


async def connected_socket(host: str, port: int) -> socket.socket:
    """Connect such a socket to the first address that accepts it. Raises the first OSError."""
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        own = socket.socket(family, kind, protocol)
        try:
            own.setblocking(False)
            hold_back(own)
            await loop.sock_connect(own, address)
        except OSError as error:
            own.close()
            errors.append(error)
        except BaseException:
            own.close()
            raise
        else:
            return own
    raise errors[0] if errors else OSError(f"{host} has no address")
