"""A netlink client on a given socket: send a message of pyroute2's classes and wait for the kernel's answer.

A socket belongs to the namespace it was created in, whichever process uses it. pyroute2's own clients create their
sockets themselves and need their own event loop, so the dozen lines of protocol are here.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces.interfaces import PassedDescriptor

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x001, 0x004, 0x300  # linux/netlink.h
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLMSGERR_ATTR_MSG = 1
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence number, port
ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
SIOCGSKNS = 0x894C  # linux/sockios.h: a socket's namespace, as a descriptor
SIOCGIFINDEX = 0x8933
ANSWER_TIMEOUT_S = 10.0
ANSWER_BYTES = 1 << 18
SEND_BYTES = 1 << 18


def open_netlink() -> PassedDescriptor:
    """Open a routing netlink socket in this process's namespace for the parent process."""
    # The kernel checks the rights of both the process that opened the socket and the one that sends on it.
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    return PassedDescriptor(opened.detach())


class NetlinkError(OSError):
    """The kernel's refusal: errno, with the kernel's own message if it sent one."""


class NetlinkClient:
    """Sends requests to the kernel one at a time; each takes milliseconds at most."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(ANSWER_TIMEOUT_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        # Refusals need not repeat our 8 KB of delay table.
        sock.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self._socket = sock
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def namespace(self) -> int:
        """Return a descriptor of the socket's namespace; the caller closes it."""
        return fcntl.ioctl(self._socket, SIOCGSKNS)

    def interface_index(self, name: str) -> int:
        """Return the index of an interface in that namespace. Raises OSError (ENODEV)."""
        answer = fcntl.ioctl(self._socket, SIOCGIFINDEX, struct.pack("=16si20x", name.encode(), 0))
        return int(struct.unpack_from("=i", answer, 16)[0])

    def request(self, message: Any, kind: int, flags: int = 0) -> None:  # Any: pyroute2 ships no types
        """Send a request, pyroute2's or the bytes behind the header, and wait for its acknowledgment.

        Raises NetlinkError with the kernel's reason.
        """
        self._send(message, kind, flags | NLM_F_ACK)
        for _ in self._answers():
            pass

    def dump(self, message: Any, kind: int) -> list[bytes]:
        """Return all objects of a kind, not decoded."""
        self._send(message, kind, NLM_F_DUMP)
        return list(self._answers())

    def _send(self, message: Any, kind: int, flags: int) -> None:
        self._sequence += 1
        if isinstance(message, bytes):
            body = message
        else:
            message.reset()
            message.encode()
            body = message.data[HEADER.size :]
        header = HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, self._sequence, 0)
        self._socket.send(header + body)

    def _answers(self) -> Iterator[bytes]:
        """Yield messages until the acknowledgment or the end of the dump."""
        while True:
            try:
                data = self._socket.recv(ANSWER_BYTES)
            except TimeoutError:
                raise EngineError(f"the kernel did not answer within {ANSWER_TIMEOUT_S:g} s: try again") from None
            while data:
                length, kind, flags, sequence, _ = HEADER.unpack_from(data)
                message, data = data[:length], data[(length + 3) & ~3 :]
                # A late answer to a request that timed out.
                if sequence != self._sequence:
                    continue
                if kind == NLMSG_ERROR:
                    _check(message, flags)
                    return
                if kind == NLMSG_DONE:
                    return
                yield message


def _check(message: bytes, flags: int) -> None:
    (code,) = struct.unpack_from("=i", message, HEADER.size)
    if not code:
        return
    text = _reason(message, flags) if flags & NLM_F_ACK_TLVS else ""
    raise NetlinkError(-code, text or os.strerror(-code))


def _reason(message: bytes, flags: int) -> str:
    """Return the text among the attributes of an error message."""
    # struct nlmsgerr holds the code and the request, or only the request's header if capped; attributes come after it.
    (length,) = struct.unpack_from("=I", message, HEADER.size + 4)
    at = HEADER.size + 4 + (HEADER.size if flags & NLM_F_CAPPED else (length + 3) & ~3)
    while at + ATTRIBUTE.size <= len(message):
        size, kind = ATTRIBUTE.unpack_from(message, at)
        if kind == NLMSGERR_ATTR_MSG:
            return message[at + ATTRIBUTE.size : at + size].rstrip(b"\0").decode(errors="replace")
        at += max(ATTRIBUTE.size, (size + 3) & ~3)
    return ""
