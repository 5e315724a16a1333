"""Why a server cannot be reached, in plain words.

gRPC reports failures of TLS in its own words or only says that the socket was closed. A connection with Python's TLS
reveals more.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Iterator

from outrider_client.connection.access import Access
from outrider_proto.addresses import host_of, port_of
from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError

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

_FAILURE = re.compile(r"(?:cannot reach )?\S+: (?P<reason>.*)", re.DOTALL)
_GRPC_WORDS = re.compile(
    r"failed to connect to all addresses; last error: \w+: (\S+: )?(Failed to connect to remote host: )?"
)
_PULL_PLACEHOLDER = "outrider pull HOST:PORT"  # as a server says it, which does not know its own name
_SILENT = "it does not answer; is the address right, and does a firewall let it through?"
_HANGS_UP = "what listens there hangs up; is it an outrider-server?"
_NO_NETWORK = "this device has no network to it"
# Parts of gRPC's texts and ours, in lower case, and what they mean.
_MEANINGS = {
    "connection refused": "no server listens there; is outrider-server running?",
    "domain name not found": "there is no host of that name",
    "errors resolving": "there is no host of that name",
    "network is unreachable": _NO_NETWORK,
    "no route to host": _NO_NETWORK,
    "timed out": _SILENT,
    "deadline exceeded": _SILENT,
    "no answer within": _SILENT,
    "socket closed": _HANGS_UP,
    "connection reset": _HANGS_UP,
    "broken pipe": _HANGS_UP,
    "http/": "what listens there is no Outrider server; is the port right?",
}


class TrustError(UsageError):
    """The link works, but the two sides' TLS settings do not match: retrying does not help."""


def explained(error: OutriderError, server: str, hint: str = "") -> OutriderError:
    """Return the error in plain words, and with commands in it that name `server`; itself if that changes nothing.

    `hint` goes behind the reason why the server cannot be reached.
    """
    match error:
        case LinkError() if (plain := _plain_words(str(error), server, hint)) != str(error):
            return LinkError(plain)
        case Refusal(message=message) if _PULL_PLACEHOLDER in message:
            plain = message.replace(_PULL_PLACEHOLDER, f"outrider pull {server}")
            return Refusal(error.reason, plain, error.retry_after_s)
        case _:
            return error


@contextlib.contextmanager
def explaining(server: str, hint: str = "") -> Iterator[None]:
    """Explain the errors of a block that talks to `server`; the cause of each stays attached."""
    try:
        yield
    except OutriderError as error:
        if (plain := explained(error, server, hint)) is error:
            raise
        raise plain from error


def _plain_words(message: str, server: str, hint: str) -> str:
    failure = _FAILURE.fullmatch(message)
    reason = "" if failure is None else failure["reason"]
    meaning = next((meaning for sign, meaning in _MEANINGS.items() if sign in reason.lower()), None)
    # Not the address in the message: behind an emulated link that is one of our own.
    plain = _GRPC_WORDS.sub("", message) if meaning is None else f"cannot reach {server}: {meaning}"
    return plain + hint if any(meaning in plain for meaning in _MEANINGS.values()) else plain


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
