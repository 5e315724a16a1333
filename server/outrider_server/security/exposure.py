"""Whether a server may listen where it is told to."""

from __future__ import annotations

from outrider_proto.errors import UsageError
from outrider_server.config.security import Security
from outrider_server.security.address import is_loopback_host


def check_exposure(host: str, security: Security) -> None:
    """Raises UsageError for an address that strangers reach, unless they are kept out or it was asked for in words."""
    if is_loopback_host(host) or security.open_to_network:
        return
    lacking = []
    if security.tls_cert is None:
        lacking.append("--tls-cert and --tls-key (`outrider-server certs` makes them)")
    if not security.knows_clients:
        lacking.append("--keys (`outrider-server keys add`) or --client-ca")
    if lacking:
        remedy = f"give {', and '.join(lacking)}"
        raise UsageError(f"host={host}: others can reach it; {remedy}, or --open-to-network to serve strangers")
