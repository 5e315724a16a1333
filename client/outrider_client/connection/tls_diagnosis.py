"""Diagnosis of failed TLS connections: TLS on one side only, or certificates that are not accepted.

gRPC reports these in its own words or only says that the socket was closed. A connection with Python's TLS
reveals more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from outrider_client.connection.access import Access
from outrider_proto.addresses import host_of, port_of
from outrider_proto.errors import UsageError

_LOOK_S = 2.0
_SAID = (
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet: is this device's clock right?"),
    ("Hostname Verification", "its certificate is for another name: use that name, or --set server-name=NAME"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: leave out --tls, --ca and client-cert"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is signed by an authority that is not trusted here: give --ca FILE"),
    ("handshake failed", "the TLS handshake failed"),
)
_UNCLEAR = ("Socket closed", "Connection reset", "recvmsg")


class TrustError(UsageError):
    """The link works, but the two sides' TLS settings do not match: retrying does not help."""


async def explain_tls_failure(server: str, access: Access, message: str) -> str | None:
    """Explain gRPC's `message`; None if the failure is not about TLS."""
    for sign, meaning in _SAID:
        if sign in message:
            return meaning
    if not any(sign in message for sign in _UNCLEAR):
        return None
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_LOOK_S):
            return await _diagnose(server, access)
    return None


async def _diagnose(server: str, access: Access) -> str | None:
    """Connect and describe what goes wrong. Raises OSError if the server cannot be reached."""
    if not access.is_encrypted:
        is_tls = await _closes_connection(server, _unverified_context()) is not None
        return "it speaks TLS: give --tls, or --ca FILE with its authority" if is_tls else None
    hangs_up = await _closes_connection(server, access.ssl_context(), access.server_name)
    if not hangs_up:
        return None
    if access.client_cert is None:
        return "it closes the connection after the TLS handshake: it may want --set client-cert=FILE, client-key=FILE"
    return "it closes the connection after the TLS handshake: it may not accept this client's certificate"


async def _closes_connection(server: str, context: ssl.SSLContext, name: str | None = None) -> bool | None:
    """Return whether the server closes the connection after the handshake; None if the handshake fails."""
    context.set_alpn_protocols(["h2"])
    host, port = host_of(server), port_of(server)
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name or host)
    except ssl.SSLError:
        return None
    try:
        return await reader.read(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True
    finally:
        writer.close()


def _unverified_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate, to see whether the server speaks TLS at all."""
    # No certificate is checked, so no data may be sent over such a connection: it only shows whether TLS is there.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
