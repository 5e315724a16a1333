"""Server-side TLS from PEM files that may be replaced while serving: each handshake uses the newest."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from outrider_proto.errors import UsageError
from outrider_proto.files import read_regular, stamp_of
from outrider_server.config.config import SecurityConfig

_log = logging.getLogger(__name__)


class _CertificateReloader:
    """Called by gRPC at each handshake, from its own threads.

    Raises UsageError for files that are unusable at the start. Unusable files are read once, not at every handshake:
    callers are still unknown.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._files = cert, key, client_ca
        self._paths = [path for path in self._files if path is not None]
        self._config = _load(*self._files)
        self._stamp = stamp_of(*self._paths)

    def __call__(self) -> grpc.ServerCertificateConfiguration:
        stamp = stamp_of(*self._paths)
        if stamp != self._stamp:
            # Before _load(): files that cannot be used are not read again until they change.
            self._stamp = stamp
            try:
                self._config = _load(*self._files)
                _log.info("TLS files read again")
            except (OSError, UsageError) as error:
                _log.error("TLS files cannot be read again, the old ones stay in use: %s", error)
        return self._config


def server_credentials(security: SecurityConfig) -> grpc.ServerCredentials | None:
    """Return gRPC credentials, None without TLS. Raises UsageError."""
    if security.tls_cert is None or security.tls_key is None:
        return None
    fetcher = _CertificateReloader(security.tls_cert, security.tls_key, security.client_ca)
    return grpc.dynamic_ssl_server_credentials(fetcher(), fetcher, security.client_ca is not None)


def _load(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    """Load and check the files. Raises UsageError."""
    pem, pem_key = read_regular(cert), read_regular(key)
    ca = None if client_ca is None else read_regular(client_ca)
    # gRPC takes any bytes and then fails at every handshake: let Python's ssl check the files first.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ValueError as error:
        raise UsageError(f"tls_key={key}: needs a password: give a key without one") from error
    except ssl.SSLError as error:
        raise UsageError(f"tls_cert={cert}, tls_key={key}: {_plain(error)}") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise UsageError(f"client_ca={client_ca}: {_plain(error)}") from error
    return grpc.ssl_server_certificate_configuration([(pem_key, pem)], ca)


def _no_password() -> str:
    raise ValueError("encrypted")


def _plain(error: ssl.SSLError) -> str:
    known = {
        "KEY_VALUES_MISMATCH": "the key is not the certificate's",
        "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in PEM form",
    }
    return known.get(error.reason or "", f"not usable PEM files ({error.reason or 'unknown format'})")
