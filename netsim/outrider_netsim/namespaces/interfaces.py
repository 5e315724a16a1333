"""Network interfaces, sockets and TCP settings of the namespace that this process is in.

The namespace holder runs these on either side. The link's addresses are 10.77.0.1 on A and 10.77.0.2 on B.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider_netsim.core.errors import EngineError
from outrider_netsim.namespaces.blackhole import FIRST_PACKETS, attach_filter

Side = Literal["A", "B"]
SocketKind = Literal["tcp", "udp"]

LINK_ADDRESSES: dict[Side, str] = {"A": "10.77.0.1", "B": "10.77.0.2"}
LINK_NETMASK = "255.255.255.252"
LINK_INTERFACE = "outrider0"  # its name in both namespaces
MTU_BYTES = 1500
TUN_QUEUE_PACKETS = 10_000  # the kernel's, before the link's own queue: so large that only the link's drops packets

TUN_DEVICE = "/dev/net/tun"
TUNSETIFF = 0x4004_54CA  # linux/if_tun.h
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000  # bare packets
IFF_UP = 0x0001  # linux/if.h
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C  # linux/sockios.h
RTM_NEWLINK, IFLA_MTU, IFLA_TXQLEN = 16, 4, 13  # linux/rtnetlink.h, linux/if_link.h
NLM_F_REQUEST, NLM_F_ACK = 1, 4  # linux/netlink.h

ETH_P_IP = 0x0800  # linux/if_ether.h
TCP_LISTEN = "0A"  # net/tcp_states.h
# Addresses in /proc/net (words of a little-endian machine) that take connections to a loopback address.
LISTENING = {
    "tcp": {"00000000": "127.0.0.1", "0100007F": "127.0.0.1"},
    "tcp6": {f"{0:032}": "127.0.0.1", f"{'FFFF00000100007F':0>32}": "127.0.0.1", f"{'01000000':0>32}": "::1"},
}

SETTINGS = Path("/proc/sys")
AVAILABLE_CONGESTION = "net/ipv4/tcp_available_congestion_control"

# What would differ between hosts, or between the connections of one run, if it stayed as it is. All other settings of
# TCP are the kernel's defaults in a new namespace, whatever the host has (net/ipv4/tcp_ipv4.c, tcp_sk_init).
TCP_SETTINGS = {
    # Otherwise a connection starts from the slow start threshold and the reordering that the one before it cached for
    # the address: the first answer of a run and the second would meet different links.
    "tcp_no_metrics_save": "1",
    # A new namespace copies these two from the host. Linux's own defaults, from 1 GB of memory on.
    "tcp_rmem": "4096 131072 6291456",
    "tcp_wmem": "4096 16384 4194304",
}


@dataclass(frozen=True, slots=True)
class PassedDescriptor:
    """A file descriptor for the parent, returned by a function in the namespace holder, which closes its own copy."""

    descriptor: int


def open_socket(kind: SocketKind, congestion: str | None = None) -> PassedDescriptor:
    """Open a socket, neither bound nor connected; it stays in this namespace for its lifetime."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as opened:
        if congestion is not None:
            choose_congestion(opened, congestion)
        return PassedDescriptor(os.dup(opened.fileno()))


def open_listener(host: str, port: int, congestion: str | None = None) -> PassedDescriptor:
    """Open a listening TCP socket, also on privileged ports: the holder is root in its namespaces."""
    with socket.create_server((host, port)) as listener:
        if congestion is not None:
            # Its connections inherit it.
            choose_congestion(listener, congestion)
        # A copy, because `with` closes the original.
        return PassedDescriptor(os.dup(listener.fileno()))


def open_tun(name: str, address: str | None = None) -> PassedDescriptor:
    """Create a TUN device, with an address of the link's, and bring it up.

    The descriptor reads and writes one IPv4 packet at a time. Raises EngineError when there is no TUN device for us.
    """
    device = _tun_device()
    try:
        flags = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(device, TUNSETIFF, flags)
        if address is not None:
            set_address(name, address)
        set_up(name, struct.pack("HHIHHI", 8, IFLA_MTU, MTU_BYTES, 8, IFLA_TXQLEN, TUN_QUEUE_PACKETS))
    # Also when cancelled: the device lives as long as its descriptor.
    except BaseException:
        os.close(device)
        raise
    return PassedDescriptor(device)


def open_sniffer(interface: str) -> PassedDescriptor:
    """Open a socket that reads the IPv4 packets which begin TCP connections over an interface."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_PACKET, kind, 0) as sniffer:
        # Before it is bound, or others would wait in it.
        attach_filter(sniffer, FIRST_PACKETS)
        sniffer.bind((interface, ETH_P_IP))
        return PassedDescriptor(os.dup(sniffer.fileno()))


def listening_ports() -> dict[int, str]:
    """Return the TCP ports that servers listen at on this namespace's loopback, each with its address there."""
    found: dict[int, str] = {}
    for version, addresses in LISTENING.items():
        # A kernel may have no IPv6.
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/self/net/{version}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                address, _, port = local.partition(":")
                if state == TCP_LISTEN and address in addresses:
                    found.setdefault(int(port, 16), addresses[address])
    return found


def set_up_tcp(congestion: str) -> None:
    """Give this namespace's TCP the same settings on every host. Raises EngineError without that congestion control."""
    with socket.socket() as trial:
        choose_congestion(trial, congestion)
    # Copied from the host, too. Addresses of loopback cross the link, which a check of reverse paths would not allow.
    with contextlib.suppress(OSError):
        (SETTINGS / "net/ipv4/conf/all/rp_filter").write_text("0")
    for name, value in {**TCP_SETTINGS, "tcp_congestion_control": congestion}.items():
        # Read-only in some containers. And a namespace takes no congestion control that the host keeps for root (it is
        # not in tcp_allowed_congestion_control): the splices' sockets choose it one by one.
        with contextlib.suppress(OSError):
            (SETTINGS / "net/ipv4" / name).write_text(value)


def choose_congestion(connection: socket.socket, congestion: str) -> None:
    """Set the congestion control of a TCP socket, or of a listener's connections. Raises EngineError."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    except OSError as error:
        available = ", ".join(SETTINGS.joinpath(AVAILABLE_CONGESTION).read_text().split())
        raise EngineError(
            f"congestion {congestion!r}: the kernel has {available} ({error.strerror}): choose one of these, or load "
            f"its module (modprobe tcp_{congestion})"
        ) from None


def set_up(name: str, attributes: bytes = b"") -> None:
    """Bring an interface up, with other attributes, by netlink (struct nlmsghdr, struct ifinfomsg).

    The ioctl for its queue is refused in a user namespace.
    """
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, socket.if_nametoindex(name), IFF_UP, IFF_UP) + attributes
    header = struct.pack("IHHII", 16 + len(body), RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.send(header + body)
        (failure,) = struct.unpack_from("i", route.recv(4096), 16)
    if failure:
        raise OSError(-failure, f"interface {name}: {os.strerror(-failure)}")


def set_address(name: str, address: str) -> None:
    """Set an interface's IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for code, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, LINK_NETMASK)):
            request = struct.pack("16sHH4s16x", name.encode(), socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, code, request)


def _tun_device() -> int:
    try:
        return os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise EngineError(f"no {TUN_DEVICE}: load its module (modprobe tun), or use --engine proxy") from None
    except PermissionError:
        raise EngineError(
            f"{TUN_DEVICE} is closed to this user: open it (chmod 666 {TUN_DEVICE}; it gives no rights outside "
            "the user's own namespaces), run as root, or use --engine kernel or proxy"
        ) from None
