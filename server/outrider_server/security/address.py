"""Addresses of callers, as gRPC names its peers, and the check of the address to listen on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import unquote

from outrider_proto.addresses import counted_as, is_loopback_host
from outrider_proto.errors import UsageError
from outrider_server.config.config import SecurityConfig


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A caller's address. `name` is what limits count by: it has no port, of which a client has many."""

    name: str
    is_loopback: bool

    @classmethod
    def of(cls, peer: str) -> PeerAddress:
        """Parse gRPC's `ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5` or `unix:path`."""
        kind, _, rest = unquote(peer).partition(":")
        if kind == "unix":
            return cls(kind, is_loopback=True)
        try:
            name = counted_as(rest.rpartition(":")[0].strip("[]"))
        except ValueError:
            return cls(peer.rpartition(":")[0] or peer, is_loopback=False)
        return cls(name, is_loopback=is_loopback_host(name))


def check_exposure(host: str, security: SecurityConfig) -> None:
    """Raise UsageError for an address that other machines reach, unless clients need credentials or --open-to-network
    is given."""
    if is_loopback_host(host.strip("[]")) or security.open_to_network:
        return
    lacking = []
    if security.tls_cert is None:
        lacking.append("--tls-cert and --tls-key (`outrider-server certs` makes them)")
    if not security.authenticates_clients:
        lacking.append("--keys (`outrider-server keys add`) or --client-ca")
    if lacking:
        remedy = f"give {', and '.join(lacking)}"
        raise UsageError(f"host={host}: others can reach it; {remedy}, or --open-to-network to let anyone connect")


def check_free(host: str, port: int) -> None:
    """Raise UsageError where a port is taken, or the address is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does: otherwise sockets in TIME_WAIT would make a free port look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
