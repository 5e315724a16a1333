"""Network addresses as people write them: HOST:PORT, an IPv6 host in brackets."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket


def join_host_port(host: str, port: int) -> str:
    """Return HOST:PORT; add the brackets that people leave out around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, without brackets; empty where there is no port."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """Return the port of HOST:PORT. Raises ValueError where it is not a number."""
    return int(address.rpartition(":")[2])


def is_loopback_host(host: str) -> bool:
    """Return whether a host, without brackets, is certainly this machine. Looks no name up."""
    # A name that merely resolves to loopback today proves nothing: whoever runs its DNS can point it elsewhere.
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def counted_as(host: str) -> str:
    """Return what limits count a caller by: an IPv4 address, or the network of an IPv6 one. Raises ValueError."""
    # A link-local caller has a zone, as in fe80::1%eth0, which names our interface and not the caller.
    ip = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    # A dual-stack socket reports IPv4 callers as ::ffff:a.b.c.d: count them as what they are.
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    # One customer has a whole network: limits by single address could be evaded.
    return str(ip) if ip.is_loopback else str(ipaddress.ip_network((ip, 64), strict=False))


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on now."""
    while True:
        # Below the range from which systems give ports to connections (Linux: from 32768 on), or one may have it before
        # whoever asked listens on it; and above Ray's own (10002 to 19999).
        port = random.randrange(20_000, 32_768)
        with socket.socket() as unused, contextlib.suppress(OSError):
            unused.bind(("127.0.0.1", port))
            return port
