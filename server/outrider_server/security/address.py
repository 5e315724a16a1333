"""The address a call comes from, as gRPC names its peer."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import unquote

_OWN_NETWORK = 64  # bits of an IPv6 address that one household or machine has to itself


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """`name` is what limits count by: without the port, of which a client has many."""

    name: str
    is_loopback: bool

    @classmethod
    def of(cls, peer: str) -> PeerAddress:
        """`ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5`, `unix:path`."""
        kind, _, rest = unquote(peer).partition(":")
        if kind == "unix":
            return cls(kind, is_loopback=True)
        try:
            ip = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return cls(peer.rpartition(":")[0] or peer, is_loopback=False)
        if ip.version == 6 and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if ip.version == 6 and not ip.is_loopback:
            return cls(str(ipaddress.ip_network((ip, _OWN_NETWORK), strict=False)), is_loopback=False)
        return cls(str(ip), is_loopback=ip.is_loopback)


def host_and_port(host: str, port: int) -> str:
    """As gRPC wants it: an IPv6 address in brackets, which people may leave out."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback_host(host: str) -> bool:
    """Whether who listens at this name or address is heard by this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
